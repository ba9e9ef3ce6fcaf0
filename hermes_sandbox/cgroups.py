"""One small interface over control groups, version 1 and 2: memory, processes, CPUs and CPU time of a worker's whole
tree.

Theory of operation
    `probe` finds a place for each controller (cgroup_places.py): where a group can really be made. A v2 tree without
    controllers, which many v1 machines carry, is a place too: there a group can be killed as one.

    A `Group` is one folder in each hierarchy, `hermes-sandbox/NAME`. NAME begins with the pid, start time and pid
    namespace of its supervisor, so that `sweep` can tell whose it was. The common folder goes with the last group in
    it: a batch system could not remove our own group while it is there. In v1 processes are born in the group, in v2
    they are added when all of them are ours and idle; what they fork later is in it from birth.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hermes_sandbox import cgroup_places as files
from hermes_sandbox.cgroup_places import LIMITS, TOP, Place
from hermes_sandbox.errors import Refused
from hermes_sandbox.process import start_time

CONTROLLERS = (*LIMITS, "cpuacct")
# s until a group counts as stuck: the kernel lets go of the dead a little later than it reports them
REMOVE_PATIENCE = 1.0
HINT = "leave the limit to the watchdog and the rlimits, or run where a cgroup is delegated"
CPUS_HINT = "ask for no more CPUs than the group has that we run in, or take cpus out of the policy"

_CONTROLLER = {"memory": "memory", "pids": "pids", "cpus": "cpu", "cpu_time": "cpuacct"}
_PERIOD = 100_000  # us: what a group has used up of its CPUs it gets again after this long, as in every kernel
# For each version: the files of a limit with what is written there, and the (file, field) of a count; a file without
# fields holds a number.
_LIMIT_FILES = {
    "memory": {1: {"memory.limit_in_bytes": "{}"}, 2: {"memory.max": "{}"}},
    "pids": {1: {"pids.max": "{}"}, 2: {"pids.max": "{}"}},
    "cpus": {1: {"cpu.cfs_period_us": str(_PERIOD), "cpu.cfs_quota_us": "{}"}, 2: {"cpu.max": f"{{}} {_PERIOD}"}},
}
# Without swap a memory limit is a limit. v2 must not take the whole group for the sin of one: init has to report.
_WITH_MEMORY = {1: {"memory.memsw.limit_in_bytes": "{}"}, 2: {"memory.swap.max": "0", "memory.oom.group": "0"}}
_CPU_TIME = {1: ("cpuacct.usage", ""), 2: ("cpu.stat", "usage_usec")}
_CPU_UNIT = {1: 1e-9, 2: 1e-6}  # s
_PEAK = {1: ("memory.max_usage_in_bytes", ""), 2: ("memory.peak", "")}
_OOM_KILLS = {1: ("memory.oom_control", "oom_kill"), 2: ("memory.events", "oom_kill")}
_FORKS_REFUSED = {1: ("pids.events", "max"), 2: ("pids.events", "max")}


class Cgroups:
    """Where groups can be made. `places`: by controller; `killer`: in a v2 tree, for killing."""

    def __init__(self, places: Mapping[str, Place], killer: Place | None) -> None:
        self._places = places
        self._killer = killer

    def can(self, limit: str) -> bool:
        """Whether `memory`, `pids` or `cpus` can be limited, or `cpu_time` counted."""
        return _CONTROLLER[limit] in self._places

    def mechanism(self, limit: str) -> str:
        """What enforces or counts `limit`, for results. Raises KeyError where `can` says no."""
        return f"cgroup v{self._places[_CONTROLLER[limit]].version}"

    def create(
        self,
        name: str,
        *,
        killable: bool,
        memory: int | None = None,
        pids: int | None = None,
        cpus: float | None = None,
    ) -> Group:
        """A new group with these limits (bytes, processes, CPUs); `name` is unique in this process. `killable`: with a
        folder in a v2 tree, if there is one, for `kill`; joining it costs some 10 ms, and a pid namespace has no need
        of it. Raises Refused for a limit that cannot be set."""
        asked = {"memory": memory, "pids": pids, "cpus": cpus}
        limits = {limit: value for limit, value in asked.items() if value is not None}
        if missing := sorted(limit for limit in limits if not self.can(limit)):
            raise Refused(f"no cgroup can limit {' and '.join(missing)} here", hint=HINT)
        places = {c: place for c, place in self._places.items() if c != "cpu" or cpus is not None}
        group = Group(files.owner() + name, places, self._killer if killable else None)
        doing, hint = "made", HINT
        try:
            group.make()
            for limit, value in limits.items():
                doing, hint = f"given {limit} = {value:.15g}", CPUS_HINT if limit == "cpus" else HINT
                group.limit(limit, round(value * _PERIOD) if limit == "cpus" else int(value))
        except OSError as error:
            group.remove()
            raise Refused(f"a cgroup cannot be {doing}: {error}", hint=hint) from error
        return group


class Group:
    """The folders of one worker. Made by `Cgroups.create`."""

    def __init__(self, name: str, places: Mapping[str, Place], killer: Place | None) -> None:
        self.name = name
        self._by_controller = {c: Place(place.folder / name, place.version) for c, place in places.items()}
        self._killer = Place(killer.folder / name, killer.version) if killer is not None else None
        self._folders: dict[Path, int] = {}  # that are made: version

    def make(self) -> None:
        for folder, version in {*self._by_controller.values(), *filter(None, [self._killer])}:
            files.make_below_top(folder)
            self._folders[folder] = version
            given = [c for c in LIMITS if version == 2 and self._by_controller.get(c) == (folder, 2)]
            if given:
                files.give(folder.parent, given)

    def limit(self, limit: str, value: int) -> None:
        """`value` is in the kernel's unit: bytes, processes, or us of CPU time in each period."""
        folder, version = self._by_controller[_CONTROLLER[limit]]
        for file, text in _LIMIT_FILES[limit][version].items():
            files.write(folder / file, text.format(value))
        for file, text in _WITH_MEMORY[version].items() if limit == "memory" else ():
            with contextlib.suppress(FileNotFoundError):  # a kernel that does not count swap
                files.write(folder / file, text.format(value))

    @contextlib.contextmanager
    def joined(self) -> Iterator[None]:
        """Around a start: what this thread starts meanwhile is born in the group's v1 hierarchies.

        In v1 a thread may move alone, and moves itself without the wait of some 10 ms that moving another process
        costs. In v2 a thread cannot; there `add` is the way. Raises Refused where the kernel does not allow it."""
        with contextlib.ExitStack() as way_back:
            for folder in [folder for folder, version in self._folders.items() if version == 1]:
                try:
                    files.write(folder / "tasks", "0")
                except OSError as error:
                    raise Refused(f"a worker cannot be started in a cgroup: {error}", hint=HINT) from error
                way_back.callback(files.write, folder.parent.parent / "tasks", "0")
            yield

    @property
    def needs_adding(self) -> bool:
        """Whether what was started within `joined` still has to be added, to a v2 tree."""
        return 2 in self._folders.values()

    def add(self, pids: Sequence[int]) -> None:
        """Put processes into the v2 trees. They must be idle and ours: one that forks meanwhile could leave a child
        outside. One that has ended is passed over. Raises Refused where the kernel does not allow it."""
        for folder in [folder for folder, version in self._folders.items() if version == 2]:
            for pid in pids:
                try:
                    files.write(folder / "cgroup.procs", str(pid))
                except ProcessLookupError:
                    continue
                except OSError as error:
                    raise Refused(f"a process cannot be put into a cgroup: {error}", hint=HINT) from error

    def usage(self) -> tuple[float | None, int | None]:
        """CPU seconds of all that was ever in it, and the most memory in bytes that it held at once, file cache
        included; None where nothing counts it."""
        cpu = self._count("cpuacct", _CPU_TIME)
        seconds = None if cpu is None else cpu * _CPU_UNIT[self._by_controller["cpuacct"].version]
        return seconds, self._count("memory", _PEAK)

    def oom_kills(self) -> int | None:
        """How many processes the kernel has killed here for want of memory; None where nothing counts it."""
        return self._count("memory", _OOM_KILLS)

    def pids_refused(self) -> int | None:
        """How many forks the limit has refused; None where nothing counts it."""
        return self._count("pids", _FORKS_REFUSED)

    def kill(self) -> None:
        """KILL everything in it at once, where a v2 tree allows that. `populated` tells when all are gone."""
        if self._killer is not None:
            with contextlib.suppress(OSError):  # there is no such file before Linux 5.14: then others do the killing
                files.write(self._killer.folder / "cgroup.kill", "1")

    def populated(self) -> bool | None:
        """Whether something in it lives; None when it is removed."""
        if self._killer is not None:
            found = files.count(self._killer.folder / "cgroup.events", "populated")
            return None if found is None else found > 0
        for folder in self._folders:
            with contextlib.suppress(OSError):
                return bool(files.read(folder / "cgroup.procs"))
        return None

    def remove(self) -> bool:
        """Remove the folders; everything in them must be dead. False if one did not go in time."""
        until = time.monotonic() + REMOVE_PATIENCE
        for folder in list(self._folders):
            while not files.remove(folder):
                if time.monotonic() > until:
                    break
                time.sleep(0.002)
            else:
                del self._folders[folder]
        return not self._folders

    def _count(self, controller: str, where: Mapping[int, tuple[str, str]]) -> int | None:
        place = self._by_controller.get(controller)
        if place is None:
            return None
        file, field = where[place.version]
        return files.count(place.folder / file, field)


def probe(root: Path = Path("/")) -> Cgroups:
    """Find where we may make groups, by making one in each place. `root`: what /proc and /sys are looked for below."""
    own = files.own_groups(root)
    places: dict[str, Place] = {}
    killer: Place | None = None
    for mount in sorted(files.mounts(root), key=lambda found: found.version):
        if mount.version == 2:
            base, given = files.base_of(mount, own.get("", ""))
            # CPU time is counted in every group, whatever its controllers; a v1 hierarchy is cheaper to join.
            offered = [*given, *([] if "cpuacct" in places else ["cpuacct"])]
        else:
            offered = [c for c in CONTROLLERS if c in mount.controllers and c not in places]
            base = mount.folder_of(own.get(offered[0], "")) if offered else None
        if base is None or not files.can_make(base):
            continue
        place = Place(base / TOP, mount.version)
        places.update(dict.fromkeys(offered, place))
        if mount.version == 2:
            killer = place
    return Cgroups(places, killer)


def sweep(root: Path = Path("/")) -> int:
    """Remove the groups of supervisors that are dead, wherever they are. Returns how many folders went.

    Only those of our own pid namespace: of another's pids we know nothing. What still has a process stays."""
    namespace, removed = files.owner().rsplit("-", 2)[1], 0
    for mount in files.mounts(root):
        for folder, names, _files in os.walk(mount.point):
            if os.path.basename(folder) != TOP:
                continue
            for name in names:
                pid, began, where = [*name.split("-", 3), "", ""][:3]
                if pid.isdigit() and where == namespace and str(start_time(int(pid))) != began:
                    removed += files.remove(Path(folder, name))
            names.clear()
    return removed
