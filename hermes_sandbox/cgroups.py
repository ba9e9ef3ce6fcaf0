"""One small interface over control groups, version 1 and 2: memory, processes and CPU time of a worker's whole tree.

Theory of operation
    `probe` finds, for each controller, a place where we may make groups: a v2 tree that has the controller, else the v1
    hierarchy of the controller. In a v2 tree without controllers, which many v1 machines carry, a group still can be
    killed as one. The place is always below the group that we are in ourselves: above it we would leave the limits of
    the job or container that we run in, and count for nobody. A v2 group with processes of its own gives its children
    no controllers; there we have no place, unless we are at the top, where that rule does not hold.

    A `Group` is one directory in each hierarchy, named after its supervisor's pid and start time, so that `sweep` can
    tell whose it was. Processes are added when all of them are ours and idle; what they fork later is in it from birth.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from hermes_sandbox.errors import Refused
from hermes_sandbox.process import start_time

TOP = "hermes-sandbox"
REMOVE_PATIENCE = (
    1.0  # s until a group counts as stuck; the kernel lets go of the dead a little later than it reports them
)
CONTROLLERS = ("memory", "pids", "cpuacct")
# What a limit's name in the policy means to a controller: v1 file, v2 file.
_LIMIT_FILES = {"memory": ("memory.limit_in_bytes", "memory.max"), "pids": ("pids.max", "pids.max")}
# Without swap a memory limit is a limit. v2 must not take the whole group for one process's sin: init has to report.
_WITH_MEMORY_V2 = {"memory.swap.max": "0", "memory.oom.group": "0"}


class Cgroups:
    """Where groups can be made: controller -> (folder, version); `killer`: a v2 folder, for `cgroup.kill`."""

    def __init__(self, places: Mapping[str, tuple[Path, int]], killer: Path | None) -> None:
        self._places = places
        self._killer = killer

    def can(self, limit: str) -> bool:
        """Whether `memory`, `pids` or `cpu_time` can be had."""
        return _controller(limit) in self._places

    def mechanism(self, limit: str) -> str:
        """What enforces or counts `limit`, for results."""
        return f"cgroup v{self._places[_controller(limit)][1]}"

    def create(self, name: str, *, killable: bool, memory: int | None = None, pids: int | None = None) -> Group:
        """A new group with these limits; the name is unique in this process. `killable`: where a v2 tree is there, it
        can be killed as one. Raises Refused for a limit that cannot be set."""
        group = Group(f"{os.getpid()}-{start_time(os.getpid())}-{name}")
        try:
            for folder, version in sorted({self._places[c] for c in CONTROLLERS if c in self._places}):
                group.make(folder, version)
            if killable and self._killer is not None:
                group.make(self._killer, 2)
            for limit, value in (("memory", memory), ("pids", pids)):
                if value is not None:
                    folder, version = self._places[limit]
                    group.limit(folder, version, limit, value)
        except (OSError, KeyError) as error:
            group.remove()
            raise Refused(
                f"a control group cannot be set up: {error}", hint="see what is writable with: doctor"
            ) from error
        return group


class Group:
    """The directories of one worker. Made by `Cgroups.create`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._folders: dict[Path, int] = {}

    def make(self, parent: Path, version: int) -> None:
        folder = parent / self.name
        folder.mkdir(exist_ok=True)
        self._folders[folder] = version

    def limit(self, parent: Path, version: int, limit: str, value: int) -> None:
        folder = parent / self.name
        (folder / _LIMIT_FILES[limit][version - 1]).write_text(str(value), encoding="ascii")
        if limit == "memory" and version == 2:
            for file, setting in _WITH_MEMORY_V2.items():
                with contextlib.suppress(FileNotFoundError):  # a kernel without swap accounting has no such file
                    (folder / file).write_text(setting, encoding="ascii")
        if limit == "memory" and version == 1:
            with contextlib.suppress(FileNotFoundError):
                (folder / "memory.memsw.limit_in_bytes").write_text(str(value), encoding="ascii")

    @contextlib.contextmanager
    def joined(self) -> Iterator[None]:
        """Around a start: what this thread starts meanwhile is born in the group's v1 hierarchies.

        In v1 a thread may move alone, and moves itself without the wait of some 10 ms that moving another process
        costs. In v2 threads cannot; there `add` is the way."""
        folders = [folder for folder, version in self._folders.items() if version == 1]
        for folder in folders:
            (folder / "tasks").write_text("0", encoding="ascii")
        try:
            yield
        finally:
            for folder in folders:
                (folder.parent.parent / "tasks").write_text("0", encoding="ascii")

    @property
    def needs_adding(self) -> bool:
        """Whether a process that was started within `joined` still has to be added: to a v2 tree."""
        return 2 in self._folders.values()

    def add(self, pids: list[int]) -> None:
        """Put processes into the v2 trees. They must be idle and ours: one that forks could leave a child outside."""
        for folder in (folder for folder, version in self._folders.items() if version == 2):
            for pid in pids:
                with open(folder / "cgroup.procs", "w", encoding="ascii") as file:
                    file.write(str(pid))

    def usage(self) -> tuple[float | None, int | None]:
        """CPU seconds and the peak of memory in bytes, of all that was ever in it; None where nothing counts it."""
        cpu = self._number("cpuacct.usage")
        seconds = cpu / 1e9 if cpu is not None else None
        if seconds is None and (spent := self._field("cpu.stat", "usage_usec")) is not None:
            seconds = spent / 1e6
        peak = self._number("memory.max_usage_in_bytes")
        return seconds, peak if peak is not None else self._number("memory.peak")

    def oom_kills(self) -> int | None:
        """How many processes the kernel has killed here for want of memory."""
        found = self._field("memory.oom_control", "oom_kill")
        return found if found is not None else self._field("memory.events", "oom_kill")

    def pids_refused(self) -> int | None:
        """How many forks the limit has refused."""
        return self._field("pids.events", "max")

    def kill(self) -> None:
        """KILL everything in it at once, where a v2 tree allows that."""
        for folder, version in self._folders.items():
            if version == 2:
                with contextlib.suppress(
                    OSError
                ):  # before Linux 5.14 there is no such file: then others do the killing
                    (folder / "cgroup.kill").write_text("1", encoding="ascii")

    def remove(self) -> bool:
        """Remove the directories; everything in them must be dead. False if one would not go in time."""
        until = time.monotonic() + REMOVE_PATIENCE
        for folder in list(self._folders):
            while True:
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    pass
                except OSError:
                    if time.monotonic() < until:
                        time.sleep(0.002)
                        continue
                    return False
                del self._folders[folder]
                break
        return True

    def _number(self, file: str) -> int | None:
        text = self._read(file)
        return int(text) if text is not None and text.strip().isdigit() else None

    def _field(self, file: str, field: str) -> int | None:
        for line in (self._read(file) or "").splitlines():
            name, _, value = line.partition(" ")
            if name == field and value.isdigit():
                return int(value)
        return None

    def _read(self, file: str) -> str | None:
        for folder in self._folders:
            try:
                return (folder / file).read_text(encoding="ascii")
            except OSError:
                continue  # this hierarchy has another controller
        return None


def probe(root: Path = Path("/")) -> Cgroups:
    """Find where we may make groups, by making the common folder there. `root`: where /proc and /sys are looked for."""
    own = _own_groups(root)
    places: dict[str, tuple[Path, int]] = {}
    killer: Path | None = None
    for mount, kind, options in sorted(_mounts(root), key=lambda found: found[1]):  # v1 before v2
        mine = root / str(mount).lstrip("/")
        if kind == "cgroup2":
            folder = mine / own.get("", "/").lstrip("/") / TOP
            offered = _offer_v2(folder)
            if offered is not None:
                killer = killer or folder
                for name in offered:  # CPU time is counted in any v2 tree; the v1 hierarchy is cheaper to join
                    if name != "cpuacct" or name not in places:
                        places[name] = (folder, 2)
        for name in CONTROLLERS if kind == "cgroup" else ():
            folder = mine / own.get(name, "/").lstrip("/") / TOP
            if name in options and name not in places and _writable(folder):
                places[name] = (folder, 1)
    return Cgroups(places, killer)


def _offer_v2(folder: Path) -> list[str] | None:
    """The controllers that groups in `folder` will have; None if we may make none there."""
    try:
        available = set((folder.parent / "cgroup.controllers").read_text(encoding="ascii").split())
    except OSError:
        return None
    if not _writable(folder):
        return None
    wanted = [name for name in ("memory", "pids") if name in available]
    for group in (folder.parent, folder):
        for name in wanted:
            with contextlib.suppress(OSError):  # it has processes of its own, or it is not delegated to us
                (group / "cgroup.subtree_control").write_text(f"+{name}", encoding="ascii")
    try:
        given = (folder / "cgroup.subtree_control").read_text(encoding="ascii").split()
    except OSError:
        return None
    return [name for name in wanted if name in given] + ["cpuacct"]  # cpu.stat is there without any controller


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _mounts(root: Path) -> list[tuple[Path, str, set[str]]]:
    found = []
    try:
        lines = (root / "proc/self/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    for line in lines:
        _device, mount, kind, options, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            found.append((Path(mount.encode().decode("unicode_escape")), kind, set(options.split(","))))
    return found


def _own_groups(root: Path) -> dict[str, str]:
    """Controller -> our group's path in its hierarchy; "" is the v2 tree."""
    own: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _number, names, path = line.split(":", 2)
            own.update(dict.fromkeys(names.split(","), path))
    return own


def _controller(limit: str) -> str:
    return "cpuacct" if limit == "cpu_time" else limit


def sweep(root: Path = Path("/")) -> int:
    """Remove the groups of supervisors that are dead. Returns how many."""
    found = probe(root)
    folders = {place for place, _version in found._places.values()} | ({found._killer} if found._killer else set())
    removed = 0
    for folder in folders:
        for group in folder.iterdir():
            pid, _, rest = group.name.partition("-")
            if group.is_dir() and pid.isdigit() and str(start_time(int(pid))) != rest.partition("-")[0]:
                with contextlib.suppress(OSError):  # not empty: something in it still lives, and it is not ours to kill
                    group.rmdir()
                    removed += 1
    return removed
