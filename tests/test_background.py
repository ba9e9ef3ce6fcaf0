"""Background commands: terminal with background=true, and every action of the tool process. What is dead is proved by
the kernel (support.Holders) at the moment the call that says so has returned.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes_sandbox import Supervisor
from tests.support import Holders, holders_in, wait_until
from tests.terminals import Task, holding, opened

FIELDS = {"session_id", "command", "pid", "status", "uptime_s"}
KEPT_TAIL = 200_000  # bytes of output that are kept at least
DAEMON = "import os, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); time.sleep(60)"


@pytest.fixture(scope="module")
def shared(supervisor: Supervisor, folder: Path) -> Iterator[Task]:
    """For tests that start nothing that they do not end."""
    yield from opened(supervisor, folder)


def polled(task: Task, name: str, text: str) -> str:
    """What polls of it show, until `text` is among it."""
    seen = ""

    def shows() -> bool:
        nonlocal seen
        seen += task.process("poll", name)["output"]
        return text in seen

    assert wait_until(shows), seen
    return seen


# Start, end, list -------------------------------------------------------------------------------------------------


def test_it_goes_on_when_its_call_is_over(task: Task, holders: Holders) -> None:
    answer = task(holding(holders, "echo started; sleep 60"), background=True)
    assert set(answer) == {"session_id", "pid", "status", "cwd"}
    name = answer["session_id"]
    polled(task, name, "started\n")
    assert not holders.are_gone()
    [listed] = task.process("list")["processes"]
    assert set(listed) == FIELDS
    assert (listed["session_id"], listed["status"], listed["pid"]) == (name, "running", answer["pid"])
    assert task.process("kill", name)["killed"]
    assert holders.are_gone()


def test_an_end_is_told_once_and_kept(task: Task) -> None:
    name = task.start("echo out; echo err >&2; exit 3")
    ended = task.process("wait", name)
    assert set(ended) == {*FIELDS, "exit_code", "output"}
    assert (ended["status"], ended["exit_code"], ended["output"]) == ("exited", 3, "out\nerr\n")
    for action in ("poll", "log", "wait", "kill", "close"):
        again = task.process(action, name)
        assert (again["status"], again["exit_code"]) == ("exited", 3)
    [listed] = task.process("list")["processes"]
    assert (listed["status"], listed["exit_code"], listed["uptime_s"]) == ("exited", 3, ended["uptime_s"])


def test_an_end_by_a_signal(shared: Task) -> None:
    name = shared.start("kill -TERM $$")
    ended = shared.process("wait", name)
    assert (ended["exit_code"], ended["signal"]) == (143, 15)


def test_a_command_that_cannot_be_started(task: Task) -> None:
    assert "no folder" in task("true", background=True, workdir="/not/there")["error"]
    assert task.process("list")["processes"] == []


def test_what_it_leaves_is_ended_and_named(shared: Task, holders: Holders) -> None:
    name = shared.start(
        holding(
            holders, f"python3 -c '{DAEMON}'; sleep 60 &\nuntil grep -q ^sleep /proc/$!/cmdline; do :; done; echo done"
        )
    )
    ended = shared.process("wait", name)
    assert holders.are_gone()
    assert ended["output"] == "done\n"
    assert len(ended["ended"]) == 2
    assert any("sleep 60" in each for each in ended["ended"])


def test_its_life_may_be_bounded(shared: Task, holders: Holders) -> None:
    name = shared.start(holding(holders, "echo alive; sleep 60"), timeout=0.3)
    ended = shared.process("wait", name, timeout=10)
    assert holders.are_gone()
    assert (ended["status"], ended["timed_out"], ended["exit_code"]) == ("exited", True, 143)


def test_a_life_that_is_over_ends_what_is_deaf(task: Task, holders: Holders) -> None:
    name = task.start(holding(holders, "trap '' TERM; sleep 60; sleep 60"), timeout=0.3)
    ended = task.process("wait", name, timeout=10)
    assert holders.are_gone()
    assert (ended["timed_out"], ended["signal"]) == (True, 9)
    assert 0.5 <= ended["uptime_s"] < 3


def test_folder_terminal_and_shell_are_as_in_front(shared: Task) -> None:
    name = shared.start("pwd; stty size; test -t 0 && tty >/dev/null && echo yes", pty=True, workdir="/usr", shell="sh")
    assert shared.process("wait", name)["output"] == "/usr\n40 120\nyes\n"


def test_each_task_has_its_own(supervisor: Supervisor, folder: Path, task: Task) -> None:
    other = Task(supervisor, folder)
    name = task.start("sleep 60")
    assert other.process("list")["processes"] == []
    assert "no background command" in other.process("kill", name)["error"]
    assert task.process("poll", name)["status"] == "running"
    other.close()


# The other actions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["poll", "log", "wait", "kill", "write", "submit", "close"])
def test_which_one_must_be_said_and_known(shared: Task, action: str) -> None:
    assert shared.process(action)["error"] == f"{action} needs session_id"
    answer = shared.process(action, "proc_0", data="x")
    assert "proc_0" in answer["error"]
    assert "list" in answer["hint"]


@pytest.mark.parametrize(
    ("args", "name"),
    [
        ({}, "action"),
        ({"action": "stop"}, "action"),
        ({"action": "wait", "session_id": "x", "timeout": -1}, "timeout"),
        ({"action": "log", "session_id": "x", "offset": -1}, "offset"),
        ({"action": "log", "session_id": "x", "limit": 0}, "limit"),
    ],
)
def test_arguments_that_do_not_fit_are_named(shared: Task, args: dict[str, Any], name: str) -> None:
    record = shared.record("process", args)
    assert record.outcome == "invalid_arguments"
    assert record.error is not None
    assert name in record.error.message


def test_input_without_a_terminal(shared: Task) -> None:
    name = shared.start('while read -r line; do echo "got $line"; done; echo end $?')
    assert shared.process("write", name, data="one\ntw")["written"] == 6
    assert shared.process("submit", name, data="o")["written"] == 2
    assert shared.process("submit", name)["written"] == 1
    polled(shared, name, "got one\ngot two\ngot \n")
    assert shared.process("close", name)["input"] == "closed"
    ended = shared.process("wait", name)
    assert ended["output"] == "got one\ngot two\ngot \nend 0\n"
    assert ended["exit_code"] == 0


def test_input_is_whatever_bytes(shared: Task) -> None:
    name = shared.start("cat | od -An -c")
    shared.process("write", name, data="ä\0\n")
    shared.process("close", name)
    assert shared.process("wait", name)["output"].split() == ["303", "244", r"\0", r"\n"]


def test_input_on_a_terminal(shared: Task) -> None:
    name = shared.start("read -rp 'name? ' name; echo \"hello $name\"; cat; echo end", pty=True)
    polled(shared, name, "name? ")
    shared.process("submit", name, data="you")
    polled(shared, name, "hello you\n")
    shared.process("submit", name, data="more")
    shared.process("close", name)
    assert shared.process("wait", name)["output"].endswith("more\nend\n")


def test_a_program_that_does_not_read_is_told_of(task: Task) -> None:
    name = task.start("sleep 60")
    begun = time.monotonic()
    answer = task.process("write", name, data="x" * 1_000_000)
    assert time.monotonic() - begun < 4
    assert "took only" in answer["error"]
    assert 0 < answer["taken"] < 1_000_000
    assert task.process("poll", name)["status"] == "running"


def test_a_megabyte_of_input(shared: Task) -> None:
    name = shared.start("wc -c")
    assert shared.process("write", name, data="x" * 1_000_000)["written"] == 1_000_000
    shared.process("close", name)
    assert shared.process("wait", name)["output"] == "1000000\n"


def test_wait_is_back_in_time(task: Task) -> None:
    name = task.start("echo first; sleep 60")
    begun = time.monotonic()
    answer = task.process("wait", name, timeout=1)
    assert 0.9 < time.monotonic() - begun < 1.8
    assert (answer["status"], answer["timed_out"], answer["output"]) == ("running", True, "first\n")


def test_wait_is_back_before_its_calls_deadline(task: Task) -> None:
    name = task.start("sleep 60")
    answer = task.answer("process", {"action": "wait", "session_id": name}, timeout=1.5)
    assert (answer["status"], answer["timed_out"]) == ("running", True)


def test_wait_may_take_longer_than_a_call_has(task: Task) -> None:
    """An argument that asks for time gets it, up to the ceiling."""
    name = task.start("sleep 60")
    record = task.record("process", {"action": "wait", "session_id": name, "timeout": 3601})
    assert record.outcome == "invalid_arguments"


def test_wait_does_not_wait_for_who_holds_the_pipe(task: Task, holders: Holders) -> None:
    name = task.start(holding(holders, f"(python3 -c '{DAEMON}' &) ; sleep 60 & exit 4"))
    begun = time.monotonic()
    ended = task.process("wait", name)
    assert time.monotonic() - begun < 3
    assert holders.are_gone()
    assert (ended["status"], ended["exit_code"]) == ("exited", 4)


def test_poll_shows_what_is_new(shared: Task) -> None:
    name = shared.start("for i in 1 2 3; do read line; echo $i $line; done")
    for number in ("1", "2", "3"):
        shared.process("submit", name, data="go")
        assert polled(shared, name, "go\n") == f"{number} go\n"
    assert shared.process("wait", name)["output"] == "1 go\n2 go\n3 go\n"
    assert shared.process("poll", name)["output"] == ""


def test_poll_never_blocks(task: Task, holders: Holders) -> None:
    """Not even if its command stops the process that watches it."""
    name = task.start(holding(holders, "echo first; sleep 0.2; kill -STOP $PPID; echo second; sleep 60"))
    holders.wait_for(1)
    begun = time.monotonic()
    while time.monotonic() - begun < 1:
        one = time.monotonic()
        assert task.process("poll", name)["status"] == "running"
        assert task.process("list")["processes"][0]["status"] == "running"
        task.process("log", name)
        assert time.monotonic() - one < 1
    begun = time.monotonic()
    assert task.process("kill", name)["status"] == "exited"
    assert holders.are_gone()
    assert time.monotonic() - begun < 5


def test_log_is_lines(shared: Task) -> None:
    name = shared.start("seq 1000")
    shared.process("wait", name)
    log = shared.process("log", name)
    assert (log["first_line"], log["total_lines"], len(log["lines"])) == (800, 1000, 200)
    assert (log["lines"][0], log["lines"][-1]) == ("801", "1000")
    log = shared.process("log", name, offset=10, limit=3)
    assert (log["first_line"], log["lines"]) == (10, ["11", "12", "13"])
    assert shared.process("log", name, offset=999)["lines"] == ["1000"]
    assert shared.process("log", name, offset=1000)["lines"] == []
    assert shared.process("log", name, limit=2)["lines"] == ["999", "1000"]


def test_output_is_kept_in_bounds(shared: Task) -> None:
    """The newest is kept, and how much was dropped is told to the byte."""
    name = shared.start("seq 1000000 1099999")  # 800,000 bytes
    assert shared.process("wait", name)["status"] == "exited"
    log = shared.process("log", name, limit=1_000_000)
    assert log["lines"][-1] == "1099999"
    assert log["omitted_bytes"] + sum(len(line) + 1 for line in log["lines"]) == 800_000
    assert 800_000 - log["omitted_bytes"] >= KEPT_TAIL
    numbers = [int(line) for line in log["lines"][1:]]
    assert numbers == list(range(numbers[0], 1_100_000))
    poll = shared.process("poll", name)
    assert poll["output"].endswith("1099998\n1099999\n")
    assert poll["omitted_bytes"] + len(poll["output"]) == 800_000
    waited = shared.process("wait", name)["output"]
    assert waited.startswith("1000000\n1000001\n")
    assert waited.endswith("\n1099999\n")


def test_kill_asks_first(shared: Task, holders: Holders) -> None:
    name = shared.start(holding(holders, "trap 'echo cleaned; exit 5' TERM; echo ready; sleep 60 & wait"))
    polled(shared, name, "ready")
    killed = shared.process("kill", name)
    assert holders.are_gone()
    assert (killed["killed"], killed["exit_code"]) == (True, 5)
    assert shared.process("poll", name)["output"] == "cleaned\n"


def test_kill_does_not_take_no(shared: Task, holders: Holders) -> None:
    script = "import os, signal, time\nsignal.signal(15, signal.SIG_IGN)\nos.fork() or os.setsid()\ntime.sleep(60)"
    name = shared.start(holding(holders, f"trap '' TERM; python3 -c '{script}' & echo ready; wait; sleep 60"))
    polled(shared, name, "ready")
    begun = time.monotonic()
    killed = shared.process("kill", name)
    assert holders.are_gone()
    assert time.monotonic() - begun < 4
    assert (killed["status"], killed["signal"]) == ("exited", 9)


def test_kill_right_after_the_start(shared: Task, folder: Path) -> None:
    for number in range(20):
        for holders in holders_in(folder):
            name = shared.start(f"exec 9>{holders.path}; printf x >&9; (setsid sleep 60 &); sleep 60 & wait")
            if number % 2:
                holders.wait_for(1)
            assert shared.process("kill", name)["status"] == "exited"
            assert not holders.seen or holders.are_gone()
            assert shared.process("poll", name)["status"] == "exited"
