"""What a sandbox may be shown: the checks of the paths that a policy names, before anything is started.

Every path below something that a tool may write is a tool's to replace. So links there are refused, and what must stay
hidden is made before a tool could make it, and cannot be moved away.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

from hermes_sandbox.errors import Refused
from hermes_sandbox.runners import WorkerSpec

SYSTEM_PATHS = frozenset(
    map(Path, ("/", "/bin", "/boot", "/dev", "/etc", "/lib", "/proc", "/run", "/sys", "/tmp", "/usr", "/var"))
)


def hide(spec: WorkerSpec, readable: dict[Path, Path], writable: dict[Path, Path]) -> list[Path]:
    """The paths inside at which something hidden would show, whatever links lead there. What is not there yet is made:
    a tool that made it would write what the operator's next command reads. The folders on the way there become mounts
    of their own, which cannot be renamed: otherwise a tool would move them away, and the next start would miss them."""
    found = []
    for shown in (readable, writable):
        for hidden, (path, source) in itertools.product(dict.fromkeys(spec.hide), list(shown.items())):
            real = path.resolve()
            if not hidden.is_relative_to(real):
                continue
            below = hidden.relative_to(real)
            hidden.mkdir(mode=0o700, parents=True, exist_ok=True)
            found.append(path / below)
            shown.update({path / way: source / way for way in below.parents if way != Path()})
    return found


def must_exist(paths: Iterable[Path]) -> None:
    for path in paths:
        if not path.exists():
            raise Refused(
                f"the policy names {path}, which is not there", hint="make it, or take it out of read/write/workspace"
            )


def refuse_links(paths: Iterable[Path], writable: Iterable[Path]) -> None:
    """A granted path below a writable one is a tool's to replace: by a link it could have the next start show it
    anything, such as a read-only grant as a writable one."""
    for path in paths:
        for root in writable:
            if path != root and path.is_relative_to(root) and path.resolve() != root.resolve() / path.relative_to(root):
                raise Refused(
                    f"{path} is, or passes, a symbolic link in {root}, where a tool may have put it",
                    hint="grant the place that it leads to, if you trust it",
                )


def check_workspace(spec: WorkerSpec) -> None:
    workspace = spec.workspace
    if not workspace.is_dir():
        raise Refused(f"the workspace {workspace} is no folder", hint="make it, or choose another")
    if workspace in SYSTEM_PATHS:
        raise Refused(f"{workspace} cannot be a workspace: it is the machine's own", hint="work in a folder below it")
    for hidden in spec.hide:
        if workspace.is_relative_to(hidden):
            raise Refused(
                f"the workspace {workspace} lies in {hidden}, which is hidden from every tool",
                hint="choose another folder",
            )
