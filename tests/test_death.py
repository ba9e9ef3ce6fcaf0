"""The supervisor is killed, and nothing that it started outlives it by more than 2 s: not a worker, not a daemon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hermes_sandbox import process
from tests.support import HOSTILE_TOOLS, TIERS, Holders, wait_until

ROOT = Path(__file__).parent.parent
PATIENCE = 2.0  # s

BUSY = """
import sys, threading
from pathlib import Path
from hermes_sandbox import Supervisor
from hermes_sandbox.policy import layer

tier, tools, workspace, *jobs = sys.argv[1:]
with Supervisor(tool_folders=[Path(tools)], workspace=workspace, policy=layer({"tier": tier}, "test")) as supervisor:
    def run(number, job):
        supervisor.call(job, {"hold": "held"}, task_id=f"t{number}")
    threads = [threading.Thread(target=run, args=each) for each in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


@pytest.fixture
def holders(workspace: Path) -> Holders:
    return Holders(workspace)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_killed_supervisor_leaves_no_process(tier: str, number: int, workspace: Path, holders: Holders) -> None:
    jobs = ["daemonise_and_sleep", "refuse_to_stop", "daemonise_and_sleep"]
    if tier == "namespaces":  # elsewhere nothing limits a plain user's processes
        jobs.append("fork_bomb")
    argv = [sys.executable, "-c", BUSY, tier, str(HOSTILE_TOOLS), str(workspace), *jobs]
    supervisor = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        holders.wait_for(len(jobs))
        pidfds = [fd for pid in process.descendants(supervisor.pid) if (fd := pidfd_of(pid)) is not None]
        assert len(pidfds) >= 5
    finally:
        supervisor.send_signal(number)
        supervisor.wait()
    assert holders.are_gone(within=PATIENCE)
    assert wait_until(lambda: all(map(is_dead, pidfds)), within=PATIENCE), "a process outlived its supervisor"
    for fd in pidfds:
        os.close(fd)
    holders.close()


def pidfd_of(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:  # it ended while we looked
        return None


def is_dead(pidfd: int) -> bool:
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return True
    return is_zombie(pidfd)


def is_zombie(pidfd: int) -> bool:
    """Dead, but not reaped yet by a first process of this machine that takes its time."""
    info = Path(f"/proc/self/fdinfo/{pidfd}").read_text(encoding="ascii")
    pid = next(int(line.split()[1]) for line in info.splitlines() if line.startswith("Pid:"))
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("tier", TIERS)
def test_what_a_killed_supervisor_left_is_swept(tier: str, workspace: Path, holders: Holders, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", BUSY, tier, str(HOSTILE_TOOLS), str(workspace), "daemonise_and_sleep"]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    env.pop("XDG_RUNTIME_DIR", None)
    supervisor = subprocess.Popen(argv, cwd=ROOT, env=env)
    holders.wait_for(1)
    supervisor.kill()
    supervisor.wait()
    assert holders.are_gone(within=PATIENCE)
    left = f"{supervisor.pid}-"
    sweep = "from hermes_sandbox import runners\nprint(runners.load('local')().sweep())"

    def swept() -> bool:
        subprocess.run([sys.executable, "-c", sweep], cwd=ROOT, env=env, check=True, capture_output=True)
        groups = [name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names if name.startswith(left)]
        return not groups and not list(tmp_path.glob("hermes-sandbox-*/worker-*"))

    assert wait_until(swept, within=5)
    holders.close()
