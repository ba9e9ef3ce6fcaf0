"""Nothing is left: 1,000 calls and 50 kills cost no descriptor, process, control group, mount or file; and nothing that
a tool prints reaches the supervisor's own streams."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

import pytest

from hermes_sandbox import Supervisor, process
from tests.support import HOSTILE_TOOLS, TIERS, asked, rss, wait_until

ROOT = Path(__file__).parent.parent


def control_groups() -> set[str]:
    """Ours, in whatever hierarchy: they are named after the supervisor's pid."""
    prefix = f"{os.getpid()}-"
    found = set()
    for folder, names, _files in os.walk("/sys/fs/cgroup"):
        found |= {f"{folder}/{name}" for name in names if name.startswith(prefix)}
    return found


def mounts() -> list[str]:
    return Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()


def descriptors() -> Counter[str]:
    """How many there are of each kind, `pipe` or `socket` say, and of each file."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            found.append(re.sub(r":\[\d+\]$", "", os.readlink(f"/proc/self/fd/{fd}")))
    return Counter(found)


def what_there_is(temporary: Path) -> dict[str, object]:
    gc.collect()
    return {
        "descriptors": descriptors(),
        "children": process.children(os.getpid()),
        # Those of an event loop's executor stay, and are as many as were needed at once.
        "threads": sorted(each.name for each in threading.enumerate() if not each.name.startswith("asyncio_")),
        "groups": control_groups(),
        "mounts": mounts(),
        "files": sorted(str(path) for path in temporary.rglob("*") if path.name != f"hermes-sandbox-{os.getuid()}"),
    }


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of this test's own, for the supervisor too."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return tmp_path


def work(supervisor: Supervisor, calls: int, kills: int) -> None:
    quick = asked(timeout=0.05, grace=0.01)
    for number in range(calls):
        assert supervisor.call("echo", {"n": number}, task_id=f"task-{number % 4}").ok
    for number in range(kills):
        name = ("exit_3", "segfault", "burn", "refuse_to_stop")[number % 4]
        assert not supervisor.call(name, {}, task_id=f"task-{number % 4}", policy=quick).ok
    for _ in range(kills // 5):
        assert supervisor.exec(["true"]).ok


@pytest.mark.parametrize("tier", TIERS)
def test_nothing_is_left_of_1000_calls_and_50_kills(tier: str, temporary: Path) -> None:
    def session(calls: int, kills: int) -> None:
        with Supervisor(tool_folders=[HOSTILE_TOOLS], policy=asked(tier=tier)) as supervisor:
            work(supervisor, calls, kills)

    session(4, 4)  # what is made once in a process stays
    before, memory = what_there_is(temporary), rss()
    session(1000, 50)
    wait_until(lambda: what_there_is(temporary) == before, within=2)  # a thread that is told to end does so soon
    assert what_there_is(temporary) == before
    assert rss() - memory < max(memory // 20, 4 << 20)


@pytest.mark.parametrize("tier", TIERS)
def test_a_living_supervisor_keeps_only_its_workers(tier: str, temporary: Path) -> None:
    with Supervisor(tool_folders=[HOSTILE_TOOLS], policy=asked(tier=tier)) as supervisor:
        work(supervisor, 8, 5)
        for number in range(4):
            supervisor.close_task(f"task-{number}")
        before = what_there_is(temporary)
        work(supervisor, 40, 20)
        for number in range(4):
            supervisor.close_task(f"task-{number}")
        wait_until(lambda: what_there_is(temporary) == before, within=2)  # the file for `ps` may be being written
        assert what_there_is(temporary) == before


def printed(program: str) -> bytes:
    """What a supervisor's own process prints; nothing may come on its stderr."""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=50, check=False)
    assert (done.stderr, done.returncode) == (b"", 0)
    return done.stdout


@pytest.mark.parametrize("tier", TIERS)
def test_nothing_of_a_tool_reaches_the_supervisors_streams(tier: str, workspace: Path) -> None:
    program = f"""
from pathlib import Path
from hermes_sandbox import Supervisor
from hermes_sandbox.policy import layer
policy = layer({{"tier": {tier!r}}}, "test")
with Supervisor(tool_folders=[Path({str(HOSTILE_TOOLS)!r})], workspace={str(workspace)!r}, policy=policy) as supervisor:
    for name in ("print_to_fd_1", "segfault", "sys_exit_7", "raise_value_error", "close_fd_1", "exit_3"):
        supervisor.call(name, {{}})
    supervisor.call("print_much", {{"size": 1 << 20}})
    supervisor.exec(["sh", "-c", "echo out; echo err >&2"])
print("only this")
"""
    assert printed(program) == b"only this\n"


@pytest.mark.parametrize("tier", TIERS)
def test_100_mb_that_a_tool_prints_are_not_kept(tier: str, workspace: Path) -> None:
    program = f"""
from pathlib import Path
from hermes_sandbox import Supervisor
from hermes_sandbox.policy import layer
from tests.support import forget_peak, peak_rss, rss
policy = layer({{"tier": {tier!r}}}, "test")
with Supervisor(tool_folders=[Path({str(HOSTILE_TOOLS)!r})], workspace={str(workspace)!r}, policy=policy) as supervisor:
    supervisor.call("print_much", {{"size": 1 << 20}})
    forget_peak()
    before = rss()
    result = supervisor.call("print_much", {{"size": 100 << 20}})
    assert result.ok and result.truncated, result
    print(peak_rss() - before)
"""
    assert int(printed(program)) < 20 << 20
