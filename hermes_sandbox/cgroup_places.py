"""Where control groups can be made, and the few things that are done with their files.

A place is below the group that we are in ourselves: above it we would leave the limits of the job or container that we
run in, and count for nobody. In version 2 a group that gives its children controllers may have no processes of its own.
So where our group is delegated to us and holds only us, we step aside: we move into a leaf below it. Where it holds
others too, as a session of root's does, the only place left is the top of the tree; it is taken when nothing on the way
up limits memory or CPU time and no batch system counts by it.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hermes_sandbox.process import descendants, start_time

TOP = "hermes-sandbox"
LEAF = "hermes-sandbox-supervisor"  # where we step aside to
LIMITS = ("memory", "pids", "cpu")
HELD = frozenset(("memory", "pids"))  # what a sandbox is held by; for CPUs alone no place is left for another
MANY_TRIES = 100  # each is lost only to a whole life of another's group, between two system calls of ours
_trials = itertools.count(1)


class Place(NamedTuple):
    """A folder in which groups can be made, and the version of its hierarchy."""

    folder: Path
    version: int


class Mount(NamedTuple):
    """A hierarchy as it is mounted: `point` shows the group `top` and what is below it."""

    point: Path
    top: str
    version: int
    controllers: frozenset[str]

    def folder_of(self, group: str) -> Path | None:
        """Where the group of that path is; None if this mount does not show it, as in some containers."""
        below = os.path.relpath(group or "/", self.top)
        return None if below.startswith("..") or not group else self.point / below


def mounts(root: Path) -> Iterator[Mount]:
    try:
        lines = (root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return
    for line in lines:
        before, _, after = line.partition(" - ")
        kind, _device, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            top, point = (_plain(word) for word in before.split(" ")[3:5])
            version = 1 if kind == "cgroup" else 2
            yield Mount(root / point.lstrip("/"), top, version, frozenset(options.split(",")))


def _plain(word: str) -> str:
    """A path without the octal escapes that the kernel gives blanks."""
    return re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), word)


def own_groups(root: Path) -> dict[str, str]:
    """Controller -> our group's path in its hierarchy; "" is the v2 tree."""
    own: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            _number, names, path = line.split(":", 2)
            own.update(dict.fromkeys(names.split(","), path))
    return own


def base_of(mount: Mount, own: str) -> tuple[Path | None, list[str]]:
    """For a v2 tree: the group below which we make ours, and the controllers that they will have."""
    base = mount.folder_of(own)
    if base is None:
        return None, []
    if base.name == LEAF:  # we, or who started us, have stepped aside already
        base = base.parent
    given = _enable(base)
    if HELD.difference(given) and base != mount.point and _may_leave(mount, base, own):
        at_top = listed(mount.point / "cgroup.subtree_control")
        if len(HELD.intersection(at_top)) > len(HELD.intersection(given)):
            return mount.point, at_top
    return base, given


def _enable(base: Path) -> list[str]:
    """Have the children of `base` get our controllers. Returns which they get."""
    for name in listed(base / "cgroup.controllers"):
        if name in listed(base / "cgroup.subtree_control"):
            continue
        for last_try in (False, True):
            try:
                give(base, [name])
                break
            except OSError as error:  # not ours to change, or it has processes of its own
                if last_try or error.errno != errno.EBUSY or not _step_aside(base):
                    break
    return listed(base / "cgroup.subtree_control")


def _step_aside(base: Path) -> bool:
    """Move what is in `base` into a leaf below it, if all of that is us and what we started."""
    try:
        pids = [int(line) for line in read(base / "cgroup.procs").split()]
        if not set(pids) <= {os.getpid(), *descendants(os.getpid())}:
            return False
        (base / LEAF).mkdir(exist_ok=True)
        for pid in pids:
            write(base / LEAF / "cgroup.procs", str(pid))
    except OSError:
        return False
    return True


def _may_leave(mount: Mount, base: Path, own: str) -> bool:
    """Whether groups at the top of the tree would escape from nothing that holds us."""
    if os.geteuid() != 0 or mount.top != "/" or "slurm" in own:
        return False
    while base != mount.point:
        for name in ("memory.max", "cpu.max"):
            with contextlib.suppress(OSError):
                if not read(base / name).startswith("max"):
                    return False
        base = base.parent
    return True


def can_make(base: Path) -> bool:
    trial = base / TOP / f"{owner()}trial-{next(_trials)}"  # several supervisors may look at once
    try:
        make_below_top(trial)
    except OSError:
        return False
    return remove(trial)


# Files ----------------------------------------------------------------------------------------------------------------


def make_below_top(folder: Path) -> None:
    """A new folder in the common folder, which another supervisor may remove with its own last group meanwhile."""
    for tries_left in reversed(range(MANY_TRIES)):
        try:
            folder.parent.mkdir(exist_ok=True)
            folder.mkdir()
            return
        except (FileNotFoundError, FileExistsError):  # the latter, too, if it goes while it is looked at
            if not tries_left:
                raise


def remove(folder: Path) -> bool:
    """Remove a group that may be gone already, and the common folder if it was the last. Whether it is gone."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    with contextlib.suppress(OSError):  # another group is in it
        folder.parent.rmdir()
    return True


def give(group: Path, controllers: Sequence[str]) -> None:
    write(group / "cgroup.subtree_control", " ".join(f"+{name}" for name in controllers))


def listed(path: Path) -> list[str]:
    """Which of the controllers that we use are in a list of the kernel's."""
    with contextlib.suppress(OSError):
        found = read(path).split()
        return [name for name in LIMITS if name in found]
    return []


def count(path: Path, field: str) -> int | None:
    """A number that is alone in its file, or stands beside `field`."""
    try:
        text = read(path)
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name == field and value.isdigit():
            return int(value)
    return None


def read(path: Path) -> str:
    # Counts are read around every call: a bare descriptor takes half the time of a text file's layers.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(fd, 1 << 16)
    finally:
        os.close(fd)
    return text.decode("ascii", "replace")


def write(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode("ascii"))
    finally:
        os.close(fd)


def owner() -> str:
    """What the names of our groups begin with."""
    return f"{os.getpid()}-{start_time(os.getpid())}-{os.stat('/proc/self/ns/pid').st_ino}-"
