"""What a sandbox may be shown: the checks of the paths that a policy names, before anything is started.

Every path below something that a tool may write is a tool's to replace. So links there are refused, and what must stay
hidden is made before a tool could make it, and cannot be moved away.

What hides is a mount, and the kernel takes a mount off a file that is replaced out here, as editors do when they save:
a sandbox that runs already sees the new one. What lies in a hidden folder stays hidden, whatever becomes of it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from pathlib import Path

from hermes_sandbox.bubblewrap import NETWORK_FILES, SYSTEM_FILES, SYSTEM_FOLDERS
from hermes_sandbox.errors import Refused
from hermes_sandbox.policy import cannot
from hermes_sandbox.runners import WorkerSpec

SYSTEM_PATHS = frozenset(
    map(Path, ("/", "/bin", "/boot", "/dev", "/etc", "/lib", "/proc", "/run", "/sys", "/tmp", "/usr", "/var"))
)
OWN_PATHS = (Path("/proc"), Path("/dev"))  # of which a sandbox has its own


def hide(spec: WorkerSpec, readable: dict[Path, Path], writable: dict[Path, Path]) -> list[Path]:
    """The paths inside at which something hidden would show, whatever links lead there. The folders on the way there
    become mounts of their own, which cannot be renamed: otherwise a tool would move them away, and the next start would
    miss them. Raises Refused for what cannot be hidden.

    What no tool may ever see is made where it is not there yet: a tool that made it would write what the operator's
    next command reads. What the policy hides is refused then."""
    asked = [Path(os.path.realpath(path)) for path in spec.policy.hide]
    if asked:
        _check_hidden(spec, asked, [*readable, *writable])
    found = []
    for hidden in dict.fromkeys([*spec.hide, *asked]):
        for shown in (readable, writable):
            for path, source in list(shown.items()):
                real = path.resolve()
                if not hidden.is_relative_to(real):
                    continue
                _must_be_there(spec, hidden)
                below = hidden.relative_to(real)
                found.append(path / below)
                shown.update({path / way: source / way for way in below.parents if way != Path()})
        found += _in_system(spec, hidden)
    outermost: list[Path] = []
    for path in sorted(dict.fromkeys(found), key=lambda path: len(path.parts)):
        if not any(path.is_relative_to(above) for above in outermost):
            outermost.append(path)
    return outermost


def _check_hidden(spec: WorkerSpec, asked: Iterable[Path], granted: Iterable[Path]) -> None:
    needed = {Path(os.path.realpath(path)): f"{path}, which the sandbox needs" for path in SYSTEM_FOLDERS}
    needed |= {path.resolve(): f"{path}, which the sandbox is to show" for path in granted}
    needed[spec.workspace.resolve()] = f"the workspace {spec.workspace}"
    for hidden in asked:
        for path, what in needed.items():
            if path.is_relative_to(hidden):
                raise cannot(spec.policy, "hide", f"{hidden} is, or holds, {what}", "hide something below it")
        if any(hidden.is_relative_to(own) for own in OWN_PATHS):
            raise cannot(spec.policy, "hide", f"of {hidden} the sandbox has its own", "take it out of hide")


def _must_be_there(spec: WorkerSpec, hidden: Path) -> None:
    if hidden in spec.hide:
        hidden.mkdir(mode=0o700, parents=True, exist_ok=True)
    elif not os.path.lexists(hidden):
        why = f"{hidden} is not there, and would show as soon as somebody makes it"
        raise cannot(spec.policy, "hide", why, "make it, or take it out of hide")


def _in_system(spec: WorkerSpec, hidden: Path) -> list[Path]:
    """Where it shows in what a sandbox sees of the system, which is read-only: nothing there can be moved away."""
    found = []
    for path, real in _system(spec.policy.network == "host"):
        if real.is_relative_to(hidden):
            found.append(path)
        elif hidden.is_relative_to(real):
            _must_be_there(spec, hidden)
            found.append(path / hidden.relative_to(real))
    return found


@functools.cache
def _system(network: bool) -> list[tuple[Path, Path]]:
    """What of the system is in sight, and where it really is: the machine's, which no tool can change."""
    folders = [folder for folder in SYSTEM_FOLDERS if not os.path.islink(folder)]  # those are links inside too
    names = [*folders, *SYSTEM_FILES, *(NETWORK_FILES if network else ())]
    return [(Path(name), Path(os.path.realpath(name))) for name in names if os.path.exists(name)]


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


def check_python(spec: WorkerSpec, path: Path, real: Path) -> None:
    """A worker's interpreter is trusted with the report of how it ended, so no tool may have put it there."""
    for root in (spec.workspace, *map(Path, spec.policy.write), *spec.writable):
        if path.is_relative_to(root) or real.is_relative_to(root.resolve()):
            raise cannot(
                spec.policy, "python", f"it lies in {root}, where a tool may have put it",
                f"name the base interpreter outside of it (such as {real}), and what it is to import in packages",
            )  # fmt: skip
