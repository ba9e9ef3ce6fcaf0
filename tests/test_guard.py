"""A command that kills or stops the process that watches over it (worker/guard.py): its call, the next one and the
background go on, and nothing that it started is left.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support import Holders, holders_in, wait_until
from tests.terminals import GRACE, Task, holding

PATIENCE = 1.0  # s that a guard may take on top of the grace


@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize("command", ["kill -9 $PPID; sleep 60", "sleep 60 & kill -9 $PPID", "kill -9 $PPID $$"])
def test_it_is_killed(command: str, shell: str, task: Task, folder: Path) -> None:
    """Ten times: the guard may be dead before it could say that it has started anything."""
    task("cd /tmp", shell=shell)
    for _ in range(10):
        for holders in holders_in(folder):
            answer = task(holding(holders, command), shell=shell)
            assert holders.are_gone()
            assert answer["exit_code"] == 137, answer
            assert "killed the process that watched it" in answer["note"]
            assert "error" not in answer
            assert task.output("pwd", shell=shell) == "/tmp\n"


def test_it_is_stopped(task: Task, holders: Holders) -> None:
    task("cd /tmp")
    begun = time.monotonic()
    answer = task(holding(holders, "(sleep 60 & setsid sleep 60 &) ; kill -STOP $PPID"), timeout=0.3)
    assert holders.are_gone()
    assert time.monotonic() - begun < 0.3 + GRACE + PATIENCE + 1
    assert answer["exit_code"] == 124
    assert task.output("pwd") == "/tmp\n"


def test_it_is_stopped_and_the_command_ends(task: Task, holders: Holders) -> None:
    """Nobody says that it has ended: its time must run out, and no later."""
    answer = task(holding(holders, "kill -STOP $PPID; exit 5"), timeout=0.3)
    assert holders.are_gone()
    assert answer["exit_code"] in (5, 124)
    assert task.output("echo well") == "well\n"


def test_the_one_of_another_command_is_killed(task: Task, holders: Holders) -> None:
    """A command in front kills the guard of one in the background: that one ends, and says how."""
    path = task.folder / "guard"
    path.touch()
    name = task.start(holding(holders, "echo $PPID > guard; sleep 60"))
    holders.wait_for(1)
    assert wait_until(lambda: path.read_text(encoding="ascii").endswith("\n"))
    guard = path.read_text(encoding="ascii").strip()
    assert task(f"kill -9 {guard}")["exit_code"] == 0
    assert holders.are_gone(within=5)
    ended = task.process("poll", name)
    assert ended["status"] == "exited"
    assert ended["exit_code"] is None
    assert "was killed or stopped" in ended["note"]


def test_a_background_command_kills_its_own(task: Task, folder: Path) -> None:
    """At once, ten times: it ran, it is over, and nothing of it is left."""
    for _ in range(10):
        for holders in holders_in(folder):
            name = task.start(holding(holders, "(setsid sleep 60 &); kill -9 $PPID; sleep 60"))
            ended = task.process("wait", name, timeout=10)
            assert holders.are_gone()
            assert (ended["status"], ended["exit_code"]) == ("exited", None)
            assert "was killed or stopped" in ended["note"]


def test_wait_is_back_in_time_though_the_one_of_it_is_stopped(task: Task, holders: Holders) -> None:
    name = task.start(holding(holders, "kill -STOP $PPID; sleep 60"))
    begun = time.monotonic()
    assert task.process("wait", name, timeout=1)["timed_out"]
    assert task.process("write", name, data="x")["written"] == 1
    assert time.monotonic() - begun < 3
    task.close()
    assert holders.are_gone()


def test_all_that_it_can_reach_is_killed(task: Task, holders: Holders) -> None:
    """In a sandbox of namespaces that is the worker too: the call ends with that name, and the task goes on."""
    if task.record("terminal", {"command": "true"}).tier == "process":
        pytest.skip("outside of a pid namespace that would reach everybody")
    record = task.record("terminal", {"command": holding(holders, "(setsid sleep 60 &); kill -9 -1; sleep 60")})
    assert holders.are_gone()
    assert (record.outcome, record.signal) == ("crashed", 9)
    assert task.output("echo well") == "well\n"
