"""Control groups: what they enforce, count, kill and leave, on this machine's own hierarchies; the rules by which a
place is chosen, on trees of plain files, since no machine has all of the arrangements that there are.

Limits are tried on children of the test's own, each in a group of its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hermes_sandbox import cgroups
from hermes_sandbox.cgroup_places import LEAF, TOP, Place
from hermes_sandbox.errors import Refused
from hermes_sandbox.process import Spawner

ROOT = Path(__file__).parent.parent
MIB = 1 << 20


@pytest.fixture(scope="module")
def here() -> cgroups.Cgroups:
    return cgroups.probe()


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    """Joining is a thread's matter: never of the thread that runs the tests."""
    made = Spawner()
    yield made
    made.close()


def needs(here: cgroups.Cgroups, *limits: str) -> None:
    for limit in limits:
        if not here.can(limit):
            pytest.skip(f"no cgroup for {limit} is writable here")


@contextlib.contextmanager
def group_of(
    here: cgroups.Cgroups, name: str, *, killable: bool = False, cpus: float | None = None, **limits: int
) -> Iterator[cgroups.Group]:
    group = here.create(f"test-{name}", killable=killable, cpus=cpus, **limits)
    try:
        yield group
    finally:
        group.kill()
        assert group.remove()


def start(spawner: Spawner, group: cgroups.Group, code: str) -> subprocess.Popen[str]:
    """Python code in the group from its first instruction in v1, and before it does anything in v2."""
    argv = [sys.executable, "-I", "-S", "-c", f"input()\n{code}"]

    def begin() -> subprocess.Popen[str]:
        with group.joined():
            return subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="utf-8",
                start_new_session=True,
            )

    child = spawner.run(begin).result(timeout=30)
    if group.needs_adding:
        group.add([child.pid])
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()
    return child


def throttled(folder: str) -> int:
    """How often the kernel has held a group's processes back."""
    file = Path(folder) / "cpu.stat"
    lines = file.read_text(encoding="ascii").splitlines() if file.exists() else []
    return int(dict(line.split() for line in lines).get("nr_throttled", 0))


def folders(prefix: str = f"{os.getpid()}-") -> list[str]:
    """The groups of a supervisor's, in whatever hierarchy."""
    walk = os.walk("/sys/fs/cgroup")
    return [f"{folder}/{name}" for folder, names, _files in walk for name in names if name.startswith(prefix)]


class TestLimits:
    def test_memory_ends_one_process_and_the_count_tells(self, here: cgroups.Cgroups, spawner: Spawner) -> None:
        needs(here, "memory")
        with group_of(here, "memory", memory=64 * MIB) as group:
            assert group.oom_kills() == 0
            with start(spawner, group, "bytearray(512 << 20)") as child:
                child.communicate(timeout=30)
            assert child.returncode == -signal.SIGKILL
            assert group.oom_kills() == 1
            _cpu, peak = group.usage()
            assert peak is None or 32 * MIB < peak <= 64 * MIB

    def test_memory_means_the_tree(self, here: cgroups.Cgroups, spawner: Spawner) -> None:
        needs(here, "memory")
        code = """
import os, signal
r, w = os.pipe()
for _ in range(4):
    if os.fork() == 0:
        held = bytearray(30 << 20); os.write(w, b"x"); signal.pause()
while True: os.waitpid(-1, 0); print("one died", flush=True)
"""
        with group_of(here, "tree", memory=96 * MIB) as group, start(spawner, group, code) as child:
            assert child.stdout is not None
            child.stdout.readline()
            assert (group.oom_kills() or 0) >= 1
            os.killpg(child.pid, signal.SIGKILL)

    def test_pids_refuse_a_fork_and_count_it(self, here: cgroups.Cgroups, spawner: Spawner) -> None:
        needs(here, "pids")
        code = """
import os, signal
made = 0
try:
    while made < 100:
        if os.fork() == 0: signal.pause()
        made += 1
except OSError as error: print(made, error.errno, flush=True)
os.killpg(0, signal.SIGKILL)
"""
        with group_of(here, "pids", pids=20) as group:
            assert group.pids_refused() == 0
            with start(spawner, group, code) as child:
                out, _ = child.communicate(timeout=30)
            assert out.split() == ["19", str(errno.EAGAIN)]
            assert (group.pids_refused() or 0) >= 1

    def test_cpu_time_of_the_dead_counts(self, here: cgroups.Cgroups, spawner: Spawner) -> None:
        needs(here, "cpu_time")
        code = """
import os, time
if os.fork() == 0:
    while time.process_time() < 0.3: pass
    os._exit(0)
os.wait()
"""
        with group_of(here, "cpu") as group:
            with start(spawner, group, code) as child:
                child.wait(timeout=30)
            cpu, _peak = group.usage()
            assert cpu is not None
            assert 0.25 < cpu < 5

    def test_cpus_bound_the_tree_at_once(self, here: cgroups.Cgroups, spawner: Spawner) -> None:
        """Four that burn for 0.6 s get together what half a CPU gives, and the kernel says that it held them back."""
        needs(here, "cpus", "cpu_time")
        code = """
import os, time
until = time.monotonic() + 0.6
for _ in range(3):
    if os.fork() == 0: break
while time.monotonic() < until: pass
try:
    while True: os.wait()
except ChildProcessError: pass
"""
        with group_of(here, "cpus", cpus=0.5) as group:
            with start(spawner, group, code) as child:
                child.wait(timeout=60)
            cpu, _peak = group.usage()
            assert cpu is not None
            assert cpu < 0.5 * (0.6 + 0.3)  # a started interpreter, and the period that is running at the end
            (folder,) = [folder for folder in folders() if folder.endswith("test-cpus") and throttled(folder)]
            assert throttled(folder) > 0

    def test_a_fraction_of_a_cpu_is_told_in_periods(self, here: cgroups.Cgroups) -> None:
        needs(here, "cpus")
        with group_of(here, "quota", cpus=1.25):
            told = {Path(folder) / name for folder in folders() for name in ("cpu.max", "cpu.cfs_quota_us")}
            assert {path.read_text(encoding="ascii").split()[0] for path in told if path.exists()} == {"125000"}

    @pytest.mark.skipif(os.geteuid() != 0, reason="limits a group of its own making")
    def test_more_cpus_than_our_own_group_has_are_refused_or_bounded_by_it(self, here: cgroups.Cgroups) -> None:
        """v1 refuses a child that is wider than its parent; v2 takes it, and the parent bounds both."""
        needs(here, "cpus")
        with group_of(here, "parent", cpus=0.5):
            (folder,) = [
                Path(found) for found in folders() if (Path(found) / "cpu.stat").exists() and "parent" in found
            ]
            version = 1 if here.mechanism("cpus") == "cgroup v1" else 2
            inner = cgroups.Cgroups({"cpu": Place(folder / TOP, version)}, None)
            if version == 2:
                pytest.skip("nothing is refused")
            with pytest.raises(Refused, match=r"a cgroup cannot be given cpus = 1\.5: ") as caught:
                inner.create("wide", killable=False, cpus=1.5)
            assert "no more CPUs than the group has" in caught.value.hint
            narrow = inner.create("narrow", killable=False, cpus=0.25)
            assert narrow.remove()

    def test_a_group_without_cpus_is_in_no_hierarchy_of_theirs(self, here: cgroups.Cgroups) -> None:
        """Each that is joined costs every start."""
        needs(here, "memory", "cpus")
        if here.mechanism("cpus") == "cgroup v2":
            pytest.skip("one hierarchy has all controllers")
        with group_of(here, "lean", memory=64 * MIB):
            assert not [folder for folder in folders() if (Path(folder) / "cpu.cfs_quota_us").exists()]

    def test_what_cannot_be_limited_is_refused_by_name(self) -> None:
        nothing = cgroups.Cgroups({}, None)
        assert not any(map(nothing.can, ("memory", "pids", "cpus", "cpu_time")))
        with pytest.raises(Refused, match="no cgroup can limit cpus here"):
            nothing.create("x", killable=True, cpus=1)
        with pytest.raises(Refused, match="memory and pids"):
            nothing.create("x", killable=True, memory=MIB, pids=3)
        with pytest.raises(KeyError):
            nothing.mechanism("memory")

    def test_a_value_that_the_kernel_refuses_leaves_nothing(self, here: cgroups.Cgroups) -> None:
        needs(here, "pids")
        with pytest.raises(Refused, match=r"cannot be given pids = -5: .*Invalid argument"):
            here.create("test-odd", killable=True, pids=-5)
        assert not [folder for folder in folders() if folder.endswith("-test-odd")]

    def test_the_mechanism_is_named(self, here: cgroups.Cgroups) -> None:
        needs(here, "memory")
        assert here.mechanism("memory") in ("cgroup v1", "cgroup v2")


class TestProcesses:
    def test_only_what_the_joined_thread_starts_is_born_in_it(self, here: cgroups.Cgroups, spawner: Spawner) -> None:
        needs(here, "memory", "pids")
        with group_of(here, "born") as group:
            home = membership("self")

            def look() -> tuple[str, str, str]:
                before = membership("thread-self")
                with group.joined():
                    return before, membership("thread-self"), membership(str(threading.main_thread().native_id))

            before, during, main = spawner.run(look).result()
            if not group.needs_adding:
                assert group.name in during
            assert before == main == home == spawner.run(lambda: membership("thread-self")).result()

    def test_a_thread_that_cannot_join_goes_back(self, here: cgroups.Cgroups, spawner: Spawner) -> None:
        needs(here, "memory", "pids")
        group = here.create("test-gone", killable=False)
        if group.needs_adding:
            group.remove()
            pytest.skip("no v1 hierarchy here")
        places = [folder for folder in folders() if folder.endswith("-test-gone")]
        os.rmdir(places[-1])

        def join() -> None:
            with group.joined():
                raise AssertionError("joined a group that is not there")

        home = spawner.run(lambda: membership("thread-self")).result()
        with pytest.raises(Refused, match="cannot be started in a cgroup"):
            spawner.run(join).result()
        assert spawner.run(lambda: membership("thread-self")).result() == home
        assert group.remove()

    def test_all_are_killed_as_one(self, here: cgroups.Cgroups, spawner: Spawner) -> None:
        """30 daemons: forked twice, in sessions of their own, deaf to TERM."""
        code = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(30):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: print("daemon", flush=True); signal.pause()
        os._exit(0)
signal.pause()
"""
        with group_of(here, "kill", killable=True) as group:
            if not group.needs_adding:
                pytest.skip("no v2 tree is writable here")
            with start(spawner, group, code) as child:
                assert child.stdout is not None
                assert [child.stdout.readline() for _ in range(30)] == ["daemon\n"] * 30
                assert group.populated() is True
                began = time.monotonic()
                group.kill()
                assert child.stdout.read() == ""  # each of them held it: the end of the file is the last one's death
                assert time.monotonic() - began < 2
                assert child.wait(timeout=5) == -signal.SIGKILL
            until = time.monotonic() + 2
            while group.populated() and time.monotonic() < until:
                time.sleep(0.001)
            assert group.populated() is False

    def test_a_process_that_has_ended_is_passed_over(self, here: cgroups.Cgroups) -> None:
        with group_of(here, "ended", killable=True) as group:
            with subprocess.Popen(["true"]) as child:
                child.wait()
            group.add([child.pid])
            assert group.populated() is not True


class TestRemoval:
    def test_a_group_with_a_process_stays_and_is_removed_when_it_is_dead(
        self, here: cgroups.Cgroups, spawner: Spawner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        needs(here, "pids")
        monkeypatch.setattr(cgroups, "REMOVE_PATIENCE", 0.05)
        group = here.create("test-busy", killable=False)
        with start(spawner, group, "import signal; print('there', flush=True); signal.pause()") as child:
            assert child.stdout is not None
            child.stdout.readline()
            assert group.populated() is True
            assert group.remove() is False
            child.kill()
        monkeypatch.undo()
        assert group.remove() is True
        assert group.remove() is True
        assert group.populated() is None

    def test_what_another_has_removed_is_no_error(self, here: cgroups.Cgroups) -> None:
        group = here.create("test-taken", killable=True)
        for folder in folders():
            if folder.endswith("-test-taken"):
                os.rmdir(folder)
        assert group.remove() is True

    def test_nothing_is_left_of_groups_and_probes(self, here: cgroups.Cgroups) -> None:
        before = folders()
        for number in range(20):
            group = here.create(f"test-{number}", killable=True, **({"pids": 5} if here.can("pids") else {}))
            assert group.remove()
        cgroups.probe()
        assert folders() == before

    def test_a_name_that_is_taken_does_not_cost_its_owner_the_group(self, here: cgroups.Cgroups) -> None:
        needs(here, "pids")
        with group_of(here, "twice", pids=7):
            before = folders()
            with pytest.raises(Refused):
                here.create("test-twice", killable=False, pids=9)
            assert folders() == before

    def test_groups_of_the_dead_are_swept_and_no_others(self, here: cgroups.Cgroups) -> None:
        needs(here, "pids")
        program = """
import os, signal
from hermes_sandbox import cgroups
cgroups.probe().create("left", killable=True, pids=9)
os.kill(os.getpid(), signal.SIGKILL)
"""
        dead = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
        dead.wait()
        left = folders(f"{dead.pid}-")
        assert left
        with group_of(here, "alive", pids=9) as group:
            strangers = [Path(left[0]).parent / name for name in foreign_names(group.name, dead.pid)]
            for folder in strangers:
                folder.mkdir()
            before = folders()
            try:
                assert cgroups.sweep() >= len(left)
                assert folders(f"{dead.pid}-") == [str(strangers[0])]
                assert folders() == before
                assert all(folder.is_dir() for folder in strangers)
            finally:
                for folder in strangers:
                    folder.rmdir()


def foreign_names(ours: str, dead: int) -> Sequence[str]:
    """A group of a supervisor in another pid namespace, whose pid means nothing here; and what is not of our making."""
    return (f"{dead}-1-1-worker", "somebody-elses", f"{dead}", f"x{ours}")


def membership(who: str) -> str:
    return Path(f"/proc/{who}/cgroup").read_text(encoding="utf-8")


@pytest.mark.skipif(os.geteuid() != 0, reason="the test becomes a plain user, which only root can")
def test_a_plain_user_without_delegation_has_none() -> None:
    program = """
import encodings.ascii, os  # a codec is loaded at its first use, which is too late for another user
from hermes_sandbox import cgroups
from hermes_sandbox.errors import Refused
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
found = cgroups.probe()
print([found.can(limit) for limit in ("memory", "pids", "cpu_time")])
try:
    found.create("x", killable=True, memory=1 << 20)
except Refused as error:
    print(error.message)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.splitlines() == ["[False, False, False]", "no cgroup can limit memory here"]


@pytest.mark.skipif(os.geteuid() != 0, reason="a hierarchy has to be given away")
def test_a_plain_user_uses_what_is_delegated(here: cgroups.Cgroups) -> None:
    """A v1 group of each kind that belongs to nobody, and a process of nobody's that was put into it."""
    needs(here, "memory", "pids")
    if here.mechanism("memory") != "cgroup v1":
        pytest.skip("no v1 hierarchy here")
    group = here.create("test-delegated", killable=False)
    program = """
import encodings.ascii, os
from hermes_sandbox import cgroups
input()
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
found = cgroups.probe()
group = found.create("x", killable=False, memory=64 << 20, pids=9)
print(found.mechanism("memory"), found.mechanism("pids"), group.oom_kills(), group.pids_refused(), group.remove())
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    ) as child:
        for folder in [Path(found) for found in folders() if found.endswith("-test-delegated")]:
            os.chown(folder, 65534, 65534)
            (folder / "cgroup.procs").write_text(str(child.pid), encoding="ascii")
        out, _ = child.communicate("\n", timeout=30)
    assert out == "cgroup v1 cgroup v1 0 0 True\n"
    assert group.remove()


# Where a place is, on trees of plain files ----------------------------------------------------------------------------


class Machine:
    """The part of a file system that says where control groups are."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lines: list[str] = []
        self.own: list[str] = []
        (root / "proc/self").mkdir(parents=True)

    def mount(self, point: str, kind: str, options: str, top: str = "/") -> None:
        self.lines.append(f"40 30 0:40 {top} {point} rw,nosuid - {kind} {kind} rw,{options}\n")

    def group(self, path: str, **contents: str) -> Path:
        """A folder with the files given: cgroup_controllers="memory pids" for cgroup.controllers."""
        folder = self.root / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in contents.items():
            (folder / name.replace("_", ".", 1)).write_text(f"{text}\n", encoding="ascii")
        return folder

    def probe(self) -> cgroups.Cgroups:
        (self.root / "proc/self/mountinfo").write_text("".join(self.lines), encoding="utf-8")
        (self.root / "proc/self/cgroup").write_text("".join(self.own), encoding="utf-8")
        return cgroups.probe(self.root)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def where(found: cgroups.Cgroups, controller: str) -> Path:
    place = found._places[controller]
    assert place.folder.name == TOP
    return place.folder.parent


BOTH = "cpu memory pids"  # what we use, and what counts


class TestPlaces:
    def test_v1_is_below_our_own_groups(self, machine: Machine) -> None:
        machine.mount("/sys/fs/cgroup/memory", "cgroup", "memory")
        machine.mount("/sys/fs/cgroup/cpu,cpuacct", "cgroup", "cpu,cpuacct")
        machine.own += ["4:memory:/job/7\n", "3:cpu,cpuacct:/\n", "2:pids:/\n"]
        job = machine.group("/sys/fs/cgroup/memory/job/7")
        machine.group("/sys/fs/cgroup/cpu,cpuacct")
        found = machine.probe()
        assert where(found, "memory") == job
        assert where(found, "cpuacct") == machine.root / "sys/fs/cgroup/cpu,cpuacct"
        assert not found.can("pids")  # not mounted
        assert list(job.iterdir()) == []  # of the trial nothing is left

    def test_a_container_shows_only_its_own_part_of_the_tree(self, machine: Machine) -> None:
        machine.mount("/sys/fs/cgroup/memory", "cgroup", "memory", top="/docker/abc")
        machine.mount("/sys/fs/cgroup/pids", "cgroup", "pids", top="/docker/other")
        machine.own += ["4:memory:/docker/abc/inner\n", "3:pids:/docker/abc\n"]
        inner = machine.group("/sys/fs/cgroup/memory/inner")
        machine.group("/sys/fs/cgroup/pids")
        found = machine.probe()
        assert where(found, "memory") == inner
        assert not found.can("pids")

    def test_a_path_may_have_blanks(self, machine: Machine) -> None:
        machine.mount("/sys/fs/c\\040group", "cgroup", "memory")
        machine.own += ["4:memory:/\n"]
        folder = machine.group("/sys/fs/c group")
        assert where(machine.probe(), "memory") == folder

    def test_v2_where_the_controllers_are_delegated(self, machine: Machine) -> None:
        scope = self.session(machine, "/user.slice/run-1.scope", cgroup_subtree_control=BOTH)
        found = machine.probe()
        assert {where(found, name) for name in ("memory", "pids", "cpu", "cpuacct")} == {scope}
        assert found.mechanism("memory") == "cgroup v2"

    def test_v2_beside_a_leaf_that_we_have_stepped_into(self, machine: Machine) -> None:
        scope = self.session(machine, f"/run-1.scope/{LEAF}")
        (scope.parent / "cgroup.controllers").write_text(BOTH, encoding="ascii")
        (scope.parent / "cgroup.subtree_control").write_text(BOTH, encoding="ascii")
        assert where(machine.probe(), "memory") == scope.parent

    def test_v2_is_not_left_for_the_cpus_alone(self, machine: Machine) -> None:
        """As a session of a plain user's, to which older systemds delegate no more."""
        given = {"cgroup_controllers": "memory pids", "cgroup_subtree_control": "memory pids"}
        scope = self.session(machine, "/user.slice/run-1.scope", **given)
        found = machine.probe()
        assert where(found, "memory") == scope
        assert not found.can("cpus")

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root may go to the top")
    def test_root_in_a_session_with_others_takes_the_top(self, machine: Machine) -> None:
        self.session(machine, "/user.slice/session-1.scope", memory_max="max", cpu_max="max 100000")
        found = machine.probe()
        assert where(found, "memory") == where(found, "pids") == machine.root / "sys/fs/cgroup"

    @pytest.mark.parametrize(
        ("path", "limits"),
        [
            ("/system.slice/job.service", {"memory_max": "1073741824", "cpu_max": "max 100000"}),
            ("/system.slice/job.service", {"memory_max": "max", "cpu_max": "50000 100000"}),
            ("/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", {"memory_max": "max"}),
        ],
    )
    def test_nobody_leaves_a_group_that_limits_or_counts(
        self, machine: Machine, path: str, limits: dict[str, str]
    ) -> None:
        own = self.session(machine, path, **limits)
        found = machine.probe()
        assert not found.can("memory")
        assert not found.can("pids")
        assert where(found, "cpuacct") == own  # counting and killing need no controller

    def test_in_a_cgroup_namespace_there_is_no_top_to_go_to(self, machine: Machine) -> None:
        machine.mount("/sys/fs/cgroup", "cgroup2", "nsdelegate")
        machine.own += ["0::/\n"]
        top = machine.group("/sys/fs/cgroup", cgroup_controllers=BOTH, cgroup_subtree_control="")
        found = machine.probe()
        assert not found.can("memory")
        assert where(found, "cpuacct") == top

    def test_limits_from_v1_and_killing_from_an_empty_v2(self, machine: Machine) -> None:
        machine.mount("/sys/fs/cgroup/unified", "cgroup2", "nsdelegate")
        for name in ("memory", "cpuacct"):
            machine.mount(f"/sys/fs/cgroup/{name}", "cgroup", name)
            machine.group(f"/sys/fs/cgroup/{name}")
        machine.own += ["2:memory:/\n", "1:cpuacct:/\n", "0::/\n"]
        unified = machine.group("/sys/fs/cgroup/unified", cgroup_controllers="hugetlb", cgroup_subtree_control="")
        found = machine.probe()
        assert found.mechanism("memory") == found.mechanism("cpu_time") == "cgroup v1"
        assert found._killer == Place(unified / TOP, 2)

    def test_several_supervisors_of_one_process_look_at_once(self, here: cgroups.Cgroups) -> None:
        if not here._places:
            pytest.skip("no cgroup is writable here")
        with ThreadPoolExecutor(8) as pool:
            found = [each._places for each in pool.map(lambda _: cgroups.probe(), range(64))]
        assert all(places == here._places for places in found)

    def test_no_hierarchy_at_all(self, tmp_path: Path) -> None:
        assert not cgroups.probe(tmp_path).can("memory")
        assert cgroups.sweep(tmp_path) == 0

    @staticmethod
    def session(machine: Machine, path: str, **contents: str) -> Path:
        """A v2 machine with systemd's controllers at the top, and our own group at `path`."""
        machine.mount("/sys/fs/cgroup", "cgroup2", "nsdelegate")
        machine.own += [f"0::{path}\n"]
        machine.group("/sys/fs/cgroup", cgroup_controllers=BOTH, cgroup_subtree_control=BOTH)
        for parent in Path(path.lstrip("/")).parents:
            machine.group(f"/sys/fs/cgroup/{parent}")
        given = {"cgroup_controllers": BOTH, "cgroup_subtree_control": "", "cgroup_procs": "1", **contents}
        return machine.group(f"/sys/fs/cgroup{path}", **given)


class TestFormats:
    """What a v2 group's files say and are told, where this machine has none."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path / TOP / "group"

    @pytest.fixture
    def group(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> cgroups.Group:
        place = Place(folder.parent, 2)
        folder.parent.mkdir()
        (folder.parent / "cgroup.subtree_control").touch()
        group = cgroups.Group("group", dict.fromkeys(("memory", "pids", "cpu", "cpuacct"), place), place)
        group.make()
        for name in (
            "memory.max",
            "memory.swap.max",
            "memory.oom.group",
            "pids.max",
            "cpu.max",
            "cgroup.kill",
            "cgroup.procs",
        ):
            (folder / name).touch()
        return group

    def test_its_children_get_the_controllers(self, group: cgroups.Group, folder: Path) -> None:
        given = (folder.parent / "cgroup.subtree_control").read_text(encoding="ascii")
        assert sorted(given.split()) == ["+cpu", "+memory", "+pids"]

    def test_limits(self, group: cgroups.Group, folder: Path) -> None:
        group.limit("memory", 64 * MIB)
        group.limit("pids", 9)
        group.limit("cpus", 150_000)
        group.kill()
        group.add([os.getpid()])
        told = {path.name: path.read_text(encoding="ascii") for path in folder.iterdir()}
        assert told == {
            "memory.max": "67108864",
            "memory.swap.max": "0",
            "memory.oom.group": "0",
            "pids.max": "9",
            "cpu.max": "150000 100000",
            "cgroup.kill": "1",
            "cgroup.procs": str(os.getpid()),
        }

    def test_a_kernel_that_counts_no_swap(self, group: cgroups.Group, folder: Path) -> None:
        (folder / "memory.swap.max").unlink()
        group.limit("memory", MIB)
        assert not (folder / "memory.swap.max").exists()

    def test_counts(self, group: cgroups.Group, folder: Path) -> None:
        assert group.usage() == (None, None)
        assert group.oom_kills() is group.pids_refused() is group.populated() is None
        for name, text in {
            "cpu.stat": "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n",
            "memory.peak": "4096\n",
            "memory.events": "low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 0\n",
            "pids.events": "max 5\n",
            "cgroup.events": "populated 1\nfrozen 0\n",
        }.items():
            (folder / name).write_text(text, encoding="ascii")
        assert group.usage() == (1.5, 4096)
        assert group.oom_kills() == 2
        assert group.pids_refused() == 5
        assert group.populated() is True


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a group that can be filled")
def test_stepping_aside_moves_only_us(here: cgroups.Cgroups) -> None:
    """On the real v2 tree: from a group that holds only us into a leaf below it; not where a stranger is."""
    if here._killer is None:
        pytest.skip("no v2 tree is writable here")
    group = here.create("test-aside", killable=True)
    folder = next(Path(found) for found in folders() if found.endswith("-test-aside") and is_v2(Path(found)))
    program = f"""
import subprocess
from pathlib import Path
from hermes_sandbox import cgroup_places as places
base = Path({str(folder)!r})
input()
print(places._step_aside(base))
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)  # of ours, and still in the group
(base / "cgroup.procs").write_bytes(b"%d" % child.pid)
print(places._step_aside(base), (base / "cgroup.procs").read_bytes() == b"")
print(places.LEAF.encode() in Path("/proc/self/cgroup").read_bytes())
child.communicate()
"""
    try:
        with subprocess.Popen(["sleep", "60"]) as stranger:
            first = step_aside(program, folder, stranger.pid)
            stranger.kill()
        second = step_aside(program, folder)
    finally:
        with contextlib.suppress(FileNotFoundError):
            (folder / LEAF).rmdir()
        assert group.remove()
    assert first.split()[0] == "False"
    assert second.split() == ["True", "True", "True", "True"]


def step_aside(program: str, folder: Path, *others: int) -> str:
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    ) as child:
        for pid in (child.pid, *others):
            (folder / "cgroup.procs").write_text(str(pid), encoding="ascii")
        out, _ = child.communicate("\n", timeout=30)
    return out


def is_v2(folder: Path) -> bool:
    return (folder / "cgroup.events").exists()


def test_places_cost_little(here: cgroups.Cgroups) -> None:
    """Made and removed for every sandbox that is started."""
    needs(here, "memory", "pids")
    samples = []
    for number in range(20):
        began = time.perf_counter()
        group = here.create(f"test-cost-{number}", killable=True, memory=MIB * 64, pids=9)
        assert group.remove()
        samples.append(time.perf_counter() - began)
    assert min(samples) < 0.02
