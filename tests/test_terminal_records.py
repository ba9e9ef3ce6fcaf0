"""The record of a terminal call, field by field, for each way in which a command or its call can end."""

from __future__ import annotations

import json
import threading
from typing import Any

import msgspec
import pytest

from hermes_sandbox import Supervisor
from hermes_sandbox.results import CallResult, Failure, LimitHit
from tests.support import Holders
from tests.terminals import Task, holding

FRESH = "this call asked for limits of its own, so it ran in a fresh worker without the task's state"
LOST = "its worker ended with it: the task's state there is lost"
LOST_BEFORE = "an earlier call ended the task's worker, and the state it had there is lost"
NO_SANDBOX = "tier process contains crashes; it is no sandbox"
WORKER = "kill -9 $(awk '{print $4}' /proc/$PPID/stat)"  # the parent of the guard


@pytest.fixture
def notes(tier: str) -> list[str]:
    """What every record of this tier says."""
    return [NO_SANDBOX] if tier == "process" else []


def fields(record: CallResult) -> dict[str, Any]:
    """What a record says, without what is its own each time, and checked: who, where, and how long it took."""
    values = msgspec.structs.asdict(record)
    assert values.pop("v") == 1
    assert len(values.pop("call_id")) == 16
    assert values.pop("tool") == "terminal"
    assert values.pop("task_id").startswith("task-")
    assert values.pop("usage").wall_s > 0
    return {name: value for name, value in values.items() if value not in ("", None, [], False)}


def ran(notes: list[str], **more: Any) -> dict[str, Any]:
    """The fields of a record of a call that reached a worker."""
    notes = [*more.pop("before", []), *notes, *more.pop("after", [])]
    return {
        "runner": "local",
        "tier": "process" if NO_SANDBOX in notes else "namespaces",
        **({"notes": notes} if notes else {}),
        **more,
    }


def without_leftovers(found: dict[str, Any]) -> dict[str, Any]:
    """Whether something was left to be ended, and how much, is the machine's own."""
    kept = [note for note in found.get("notes", ()) if "left running were ended" not in note]
    return {**found, "notes": kept} if kept else {name: value for name, value in found.items() if name != "notes"}


def limit(record: CallResult) -> LimitHit:
    """The limit that it hit, with the words that every such record has."""
    assert record.outcome == "limit"
    assert record.limit is not None
    assert record.error is not None
    assert record.error.message.startswith(f"hit the limit {record.limit.name} = ")
    assert f"({record.limit.mechanism})" in record.error.message
    assert f"--{record.limit.name.replace('_', '-')}" in record.error.hint
    return record.limit


# The command's own ends -------------------------------------------------------------------------------------------


def test_a_command_that_fails_is_ok(supervisor: Supervisor, task: Task, notes: list[str]) -> None:
    found = fields(task.record("terminal", {"command": "echo out; sleep 0.05; echo err >&2; exit 3"}))
    answer = json.loads(found.pop("result"))
    assert answer["duration_s"] > 0.04
    assert {**answer, "duration_s": 0} == {
        "output": "out\nerr\n",
        "exit_code": 3,
        "stdout": "out\n",
        "stderr": "err\n",
        "duration_s": 0,
        "cwd": str(task.folder),
    }
    assert found == ran(notes, outcome="ok", exit_code=3, stdout_tail="out\n", stderr_tail="err\n")


def test_a_command_that_is_killed_is_ok(supervisor: Supervisor, task: Task, notes: list[str]) -> None:
    found = fields(task.record("terminal", {"command": "kill -9 $$"}))
    assert json.loads(found.pop("result"))["exit_code"] == 137
    assert found == ran(notes, outcome="ok", signal=9)


def test_a_command_over_its_time(supervisor: Supervisor, task: Task, notes: list[str], holders: Holders) -> None:
    command = holding(holders, "echo begun; (setsid sleep 60 &); sleep 60")
    found = fields(task.record("terminal", {"command": command, "timeout": 0.3}))
    assert holders.are_gone()
    answer = json.loads(found.pop("result"))
    assert (answer["exit_code"], answer["output"]) == (124, "begun\n")
    error = Failure("the tool answered with an error")
    assert found == ran(notes, outcome="tool_error", error=error, signal=15, stdout_tail="begun\n")


def test_long_output_is_cut_in_the_record_too(task: Task) -> None:
    record = task.record("terminal", {"command": "seq 100000; echo oops >&2"})
    assert record.truncated
    assert record.stdout_tail.endswith("\n100000\n")
    assert record.stderr_tail == "oops\n"
    assert not task.record("terminal", {"command": "seq 10"}).truncated


def test_what_a_command_cost(task: Task) -> None:
    """Also of one that ends well, which asks no counter of the kernel's."""
    command = "python3 -c 'kept = bytearray(100 << 20); sum(range(8_000_000))'"
    for _ in range(2):
        usage = task.record("terminal", {"command": command}).usage
        assert usage.cpu_s is not None
        assert usage.peak_bytes is not None
        assert 0.03 < usage.cpu_s < 5
        assert usage.peak_bytes >= 100 << 20
    cheap = task.record("terminal", {"command": "true"}).usage
    assert cheap.cpu_s is not None
    assert cheap.cpu_s < 0.03


# Refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"memory": "32G"}, "memory = 32G (call) is beyond the ceiling 16G, set by toolsets.terminal"),
        ({"network": "host"}, "network = host (call) is beyond the ceiling none, set by built-in"),
    ],
)
def test_refused(task: Task, asked: dict[str, object], message: str) -> None:
    (task.folder / "ran").unlink(missing_ok=True)
    record = task.record("terminal", {"command": "touch ran"}, **asked)
    assert record.error is not None
    assert record.error.message == message
    assert f"ceiling.{next(iter(asked))}" in record.error.hint
    assert fields(record) == {"outcome": "refused", "error": record.error}
    assert record.usage.cpu_s is None
    assert not (task.folder / "ran").exists()


# Limits -----------------------------------------------------------------------------------------------------------


def test_memory(supervisor: Supervisor, task: Task, notes: list[str]) -> None:
    """Of the tree: each of the two alone would be allowed."""
    half = "python3 -c 'kept = bytearray(90 << 20); import time; time.sleep(5)'"
    command = f"{half} & {half} & wait -n && wait -n"
    record = task.record("terminal", {"command": command}, memory="128M")
    hit = limit(record)
    assert (hit.name, hit.value) == ("memory", 128 << 20)
    assert hit.observed is not None
    assert hit.observed >= 0.9 * (128 << 20)
    assert record.exit_code in (137, None)
    assert record.usage.peak_bytes is not None
    assert record.usage.peak_bytes >= 0.9 * (128 << 20)
    assert record.notes[: 1 + len(notes)] == [FRESH, *notes]


def test_file_size(supervisor: Supervisor, task: Task, notes: list[str]) -> None:
    record = task.record("terminal", {"command": "dd if=/dev/zero of=big bs=1M count=3 2>/dev/null"}, file_size="1M")
    assert limit(record) == LimitHit("file_size", 1 << 20, None, "rlimit")
    found = fields(record)
    assert json.loads(found.pop("result"))["exit_code"] == 153  # the command has ended, and this is its answer
    assert "File size limit exceeded" in found.pop("stderr_tail")
    wanted = ran(notes, before=[FRESH], outcome="limit", exit_code=153)
    assert found == {**wanted, "error": record.error, "limit": record.limit}
    assert (task.folder / "big").stat().st_size == 1 << 20
    (task.folder / "big").unlink()


def test_processes(supervisor: Supervisor, task: Task, holders: Holders) -> None:
    script = "import os, time\nwhile True:\n  if not os.fork(): time.sleep(60)"
    record = task.record("terminal", {"command": holding(holders, f"python3 -c '{script}' 2>/dev/null")}, pids=20)
    assert holders.are_gone()
    hit = limit(record)
    assert (hit.name, hit.value) == ("pids", 20)
    assert hit.mechanism


def test_output(supervisor: Supervisor, task: Task, notes: list[str], holders: Holders) -> None:
    record = task.record("terminal", {"command": holding(holders, "echo first >&2; yes")}, output="1M")
    assert holders.are_gone()
    hit = limit(record)
    assert (hit.name, hit.value, hit.mechanism) == ("output", 1 << 20, "supervisor")
    assert hit.observed is not None
    assert hit.observed > 1 << 20
    found = without_leftovers(fields(record))
    assert found.pop("stdout_tail").endswith("y\ny\n")
    wanted = ran(notes, outcome="limit", truncated=True, stderr_tail="first\n")
    assert found == {**wanted, "error": record.error, "limit": record.limit}


def test_cpu_time(supervisor: Supervisor, task: Task, notes: list[str], holders: Holders) -> None:
    """Of the whole tree, and the next call of the task has its own."""
    command = holding(holders, "(while :; do :; done) & wait")
    record = task.record("terminal", {"command": command}, cpu_time="0.4s")
    assert holders.are_gone()
    hit = limit(record)
    assert (hit.name, hit.value) == ("cpu_time", 0.4)
    assert hit.observed is not None
    assert 0.4 <= hit.observed < 2
    if record.usage.scope == "cgroup":
        assert record.usage.cpu_s is not None
        assert record.usage.cpu_s >= 0.4
    assert record.signal is None
    assert record.exit_code is None


def test_a_result_that_is_too_large(task: Task) -> None:
    record = task.record("terminal", {"command": "seq 10000"}, result="10K")
    hit = limit(record)
    assert (hit.name, hit.value, hit.mechanism) == ("result", 10 << 10, "worker")
    assert hit.observed is not None
    assert hit.observed > 40_000


# Clocks -----------------------------------------------------------------------------------------------------------


def test_idle(supervisor: Supervisor, task: Task, notes: list[str], holders: Holders) -> None:
    command = holding(holders, "echo begun; sleep 60")
    found = fields(task.record("terminal", {"command": command}, idle_timeout="0.5s"))
    assert holders.are_gone()
    error = Failure(
        "gave no sign for 0.5 s (idle_timeout)", "raise idle_timeout in the policy, or make the work smaller"
    )
    wanted = ran(notes, outcome="timeout", error=error, stdout_tail="begun\n")
    assert without_leftovers(found) == wanted
    assert task.output("echo well") == "well\n"


@pytest.mark.parametrize("stream", [1, 2])
def test_who_prints_now_and_then_is_not_idle(task: Task, stream: int) -> None:
    command = f"for i in 1 2 3 4 5; do echo $i >&{stream}; sleep 0.2; done"
    record = task.record("terminal", {"command": command}, idle_timeout="0.6s")
    assert record.outcome == "ok"
    assert record.usage.wall_s > 0.9


def test_a_calls_deadline_that_no_command_can_keep(task: Task, notes: list[str], holders: Holders) -> None:
    """Its guard is stopped: nobody ends the command in time, so the call's own clock does."""
    record = task.record("terminal", {"command": holding(holders, "echo x; kill -STOP $PPID; sleep 60")}, timeout="1s")
    assert holders.are_gone()
    assert record.outcome in ("timeout", "tool_error")
    assert record.usage.wall_s < 3


# Cancelled and crashed --------------------------------------------------------------------------------------------


def test_cancelled(supervisor: Supervisor, task: Task, notes: list[str], holders: Holders) -> None:
    def cancel() -> None:
        holders.wait_for(1)
        supervisor.cancel(task.name)

    task("kept=1")
    thread = threading.Thread(target=cancel)
    thread.start()
    record = task.record("terminal", {"command": holding(holders, "kept=2; (setsid sleep 60 &); sleep 60")})
    thread.join()
    assert holders.are_gone()
    wanted = ran(notes, outcome="cancelled", error=Failure("the caller cancelled the call"))
    assert without_leftovers(fields(record)) == wanted
    assert task.output("echo $kept") == "1\n"


def test_crashed(supervisor: Supervisor, task: Task, notes: list[str], holders: Holders) -> None:
    command = holding(holders, f"echo dying; (setsid sleep 60 &); sleep 0.2; {WORKER}; sleep 60")
    found = fields(task.record("terminal", {"command": command}))
    assert holders.are_gone()
    found["notes"] = [note for note in found["notes"] if "left running" not in note]
    error = Failure("the worker was ended by signal 9 (SIGKILL)", "the stack is in stderr_tail, where there was one")
    assert found == ran(notes, after=[LOST], outcome="crashed", error=error, signal=9, stdout_tail="dying\n")
    again = task.record("terminal", {"command": "echo well"})
    assert again.outcome == "ok"
    assert again.notes == [LOST_BEFORE, *notes]
