"""The table of ends: from what is known of an exchange to its one outcome, without any process."""

from __future__ import annotations

import asyncio
import errno
import signal
from typing import Any

import msgspec
import pytest

from hermes_sandbox.exchange import Cause, Exchange, Watch
from hermes_sandbox.outcomes import Case, Verdict, has_error, judge, signal_name, usage
from hermes_sandbox.policy import Policy
from hermes_sandbox.results import Usage
from hermes_sandbox.runners import Evidence
from hermes_sandbox.session import Failed
from hermes_sandbox.worker import wire

COST = wire.Cost(cpu_s=0.5, peak_bytes=100)
POLICY = Policy(memory=1000, pids=10, file_size=500, open_files=20, cpu_time=2.0, output=300, result=50)
CGROUP = {"memory": "cgroup v2", "pids": "cgroup v2", "cpu_time": "cgroup v2", "file_size": "rlimit"}
WATCHDOG = {**CGROUP, "memory": "watchdog", "cpu_time": "watchdog"}


def exchange(**fields: Any) -> Exchange:
    async def make() -> Exchange:
        return Exchange(1, Watch(timeout=3.0, grace=1.0, idle_timeout=0.5, output=300), "t")

    made = asyncio.run(make())
    for name, value in fields.items():
        assert hasattr(made, name)
        setattr(made, name, value)
    return made


def verdict(cause: Cause = "answered", *, case: dict[str, Any] | None = None, **fields: Any) -> Verdict:
    known = {"policy": POLICY, "mechanisms": CGROUP, **(case or {})}
    return judge(Case(exchange=exchange(cause=cause, **fields), **known))


def failed(code: int, message: str = "no", **trouble: Any) -> Failed:
    return Failed(1, code, message, wire.Trouble(**trouble))


def answered(text: str) -> wire.CallDone:
    return wire.CallDone(cost=COST, text=text)


OOM = {"before": Evidence(oom_kills=1), "after": Evidence(oom_kills=2, peak_bytes=999)}
CALM = {"before": Evidence(oom_kills=2), "after": Evidence(oom_kills=2, peak_bytes=999)}
FORKS = {"before": Evidence(pids_refused=0), "after": Evidence(pids_refused=3)}


def died(**ended: Any) -> dict[str, Any]:
    return {"ended": wire.Ended(**ended)}


ENDS: dict[str, tuple[Verdict | Any, str]] = {
    # what we did ourselves
    "timeout": ({"cause": "timeout"}, "timeout"),
    "idle": ({"cause": "idle_timeout"}, "timeout"),
    "cancelled": ({"cause": "cancelled"}, "cancelled"),
    "protocol": ({"cause": "protocol", "detail": "bad"}, "protocol"),
    "output": ({"cause": "output"}, "limit output"),
    "cpu_time": ({"cause": "cpu_time"}, "limit cpu_time"),
    # a kill that nobody confirmed comes first
    "unconfirmed timeout": ({"cause": "timeout", "confirmed": False}, "runner_failed"),
    "unconfirmed answer": ({"reply": answered("x"), "confirmed": False}, "runner_failed"),
    # the worker's death
    "no report": ({"cause": "died"}, "runner_failed"),
    "exit 3": ({"cause": "died", "case": died(code=3)}, "crashed"),
    "exit 0": ({"cause": "died", "case": died(code=0)}, "crashed"),
    "segfault": ({"cause": "died", "case": died(signal=11)}, "crashed"),
    "a signal without a name": ({"cause": "died", "case": died(signal=99)}, "crashed"),
    "killed": ({"cause": "died", "case": died(signal=9)}, "crashed"),
    "killed, no new oom": ({"cause": "died", "case": {**died(signal=9), **CALM}}, "crashed"),
    "killed for memory": ({"cause": "died", "case": {**died(signal=9), **OOM}}, "limit memory"),
    "ended by the watch": ({"cause": "died", "case": died(signal=9, limit="memory", observed=2000)}, "limit memory"),
    "SIGXCPU": ({"cause": "died", "case": died(signal=24)}, "limit cpu_time"),
    "SIGXFSZ": ({"cause": "died", "case": died(signal=25)}, "limit file_size"),
    "abort near the data limit": (
        {"cause": "died", "case": {**died(signal=6, peak_bytes=950), "mechanisms": WATCHDOG}},
        "limit memory",
    ),
    "abort far from it": (
        {"cause": "died", "case": {**died(signal=6, peak_bytes=100), "mechanisms": WATCHDOG}},
        "crashed",
    ),
    "abort, memory in a cgroup": ({"cause": "died", "case": died(signal=6, peak_bytes=950)}, "crashed"),
    # the worker's word
    "text": ({"reply": answered("plain")}, "ok"),
    "empty": ({"reply": answered("")}, "ok"),
    "error": ({"reply": answered('{"error": "x"}')}, "tool_error"),
    "falsy error": ({"reply": answered('{"error": ""}')}, "ok"),
    "multimodal": ({"reply": wire.CallDone(cost=COST, multimodal=msgspec.Raw(b'{"_multimodal":true}'))}, "ok"),
    "multimodal error": ({"reply": wire.CallDone(cost=COST, multimodal=msgspec.Raw(b'{"error":"x"}'))}, "tool_error"),
    "too large after all": ({"reply": answered("x" * 51)}, "limit result"),
    "too large": ({"failed": failed(wire.RESULT_TOO_LARGE, size=60)}, "limit result"),
    "bad result": ({"failed": failed(wire.BAD_RESULT, kind="dict")}, "bad_result"),
    "raised": ({"failed": failed(wire.TOOL_RAISED, kind="ValueError")}, "tool_error"),
    "did not load": ({"failed": failed(wire.LOAD_FAILED, kind="ImportError")}, "unavailable"),
    "unknown code": ({"failed": failed(-1)}, "protocol"),
    "unasked cancel": ({"failed": failed(wire.WAS_CANCELLED)}, "protocol"),
    "MemoryError": ({"failed": failed(wire.TOOL_RAISED, kind="MemoryError")}, "limit memory"),
    "MemoryError at import": ({"failed": failed(wire.LOAD_FAILED, kind="MemoryError")}, "limit memory"),
    "MemoryError, no limit": (
        {"failed": failed(wire.TOOL_RAISED, kind="MemoryError"), "case": {"policy": Policy(memory=None)}},
        "tool_error",
    ),
    "a child was killed": ({"failed": failed(wire.TOOL_RAISED, kind="RuntimeError"), "case": OOM}, "limit memory"),
    "EFBIG": ({"failed": failed(wire.TOOL_RAISED, kind="OSError", errno=errno.EFBIG)}, "limit file_size"),
    "EMFILE": ({"failed": failed(wire.TOOL_RAISED, kind="OSError", errno=errno.EMFILE)}, "limit open_files"),
    "EAGAIN": ({"failed": failed(wire.TOOL_RAISED, kind="BlockingIOError", errno=errno.EAGAIN)}, "limit pids"),
    "thread": ({"failed": failed(wire.TOOL_RAISED, "can't start new thread", kind="RuntimeError")}, "limit pids"),
    "ENOENT": ({"failed": failed(wire.TOOL_RAISED, kind="FileNotFoundError", errno=errno.ENOENT)}, "tool_error"),
    # a command's end
    "not found": ({"failed": failed(wire.NOT_STARTED, errno=errno.ENOENT)}, "tool_error"),
    "exit code": ({"reply": wire.ExecDone(cost=COST, code=7)}, "ok"),
    "signalled": ({"reply": wire.ExecDone(cost=COST, signal=15)}, "crashed"),
    "command killed for memory": ({"reply": wire.ExecDone(cost=COST, signal=9), "case": OOM}, "limit memory"),
    "a child of it was": ({"reply": wire.ExecDone(cost=COST, code=1), "case": OOM}, "limit memory"),
    "it coped": ({"reply": wire.ExecDone(cost=COST, code=0), "case": OOM}, "ok"),
    "command SIGXFSZ": ({"reply": wire.ExecDone(cost=COST, signal=25)}, "limit file_size"),
    "command SIGXCPU": ({"reply": wire.ExecDone(cost=COST, signal=24)}, "limit cpu_time"),
    "command could not fork": ({"reply": wire.ExecDone(cost=COST, code=2), "case": FORKS}, "limit pids"),
}


@pytest.mark.parametrize("name", ENDS)
def test_how_it_ended(name: str) -> None:
    given, expected = ENDS[name]
    found = verdict(**given)
    said = found.outcome if found.limit is None else f"{found.outcome} {found.limit.name}"
    assert said == expected
    assert (found.error is None) == (found.outcome == "ok")
    assert (found.limit is not None) == (found.outcome == "limit")
    if found.limit is not None and name != "MemoryError, no limit":
        assert found.limit.value == getattr(POLICY, found.limit.name)
        assert found.limit.mechanism or found.limit.name == "open_files"
        assert found.error is not None
        assert f"{found.limit.name} = " in found.error.message


def test_a_result_is_only_the_handlers_own() -> None:
    for name, (given, expected) in ENDS.items():
        found = verdict(**given)
        assert found.result is None or expected in ("ok", "tool_error"), name


@pytest.mark.parametrize(("number", "code"), [(errno.ENOENT, 127), (errno.EACCES, 126), (errno.ENOEXEC, 126)])
def test_the_exit_codes_of_shells(number: int, code: int) -> None:
    assert verdict(failed=failed(wire.NOT_STARTED, errno=number)).exit_code == code


def test_codes_and_signals_are_told() -> None:
    assert verdict("died", case=died(code=3)).exit_code == 3
    assert verdict("died", case=died(signal=11)).signal == 11
    assert verdict(reply=wire.ExecDone(cost=COST, code=7)).exit_code == 7
    assert verdict(reply=wire.ExecDone(cost=COST, signal=15)).signal == 15


def test_a_timeout_says_which() -> None:
    for cause, words in (("timeout", "3 s (timeout)"), ("idle_timeout", "0.5 s (idle_timeout)")):
        error = verdict(cause).error  # type: ignore[arg-type]
        assert error is not None
        assert words in error.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"error": "x"}', True),
        (' \n{"a": [1, {"error": 0}], "error": {"x": 1}}', True),
        ('{"error": null}', False),
        ('{"error": false}', False),
        ('{"error": 0}', False),
        ('{"error": []}', False),
        ('{"a": {"error": "x"}}', False),
        ('["error"]', False),
        ('"error"', False),
        ('{"error": "x"', False),
        ("{" * 5000, False),
        ('{"error":' + "[" * 100_000, False),
        ("", False),
    ],
)
def test_what_counts_as_an_error(text: str, expected: bool) -> None:
    assert has_error(text) is expected


def test_cost_comes_from_the_best_counter() -> None:
    def cost(case: dict[str, Any], **fields: Any) -> Usage:
        known = {"policy": POLICY, "mechanisms": CGROUP, **case}
        return usage(Case(exchange=exchange(wall_s=1.5, **fields), **known))

    group = {"before": Evidence(cpu_s=1.0), "after": Evidence(cpu_s=3.0, peak_bytes=900)}
    assert cost(group, reply=answered("x")) == Usage(1.5, 2.0, 900, "cgroup")
    assert cost({}, reply=answered("x")) == Usage(1.5, 0.5, 100, "worker")
    assert cost(died(cpu_s=4.0, peak_bytes=8), cause="died", lost=True) == Usage(1.5, 4.0, 8, "tree")
    assert cost({}, failed=failed(wire.TOOL_RAISED, cost=COST)) == Usage(1.5, 0.5, 100, "worker")
    assert cost({}, cause="died") == Usage(1.5)


def test_signal_names() -> None:
    assert signal_name(signal.SIGSEGV) == "signal 11 (SIGSEGV)"
    assert signal_name(99) == "signal 99"


def test_a_verdict_is_plain_data() -> None:
    assert msgspec.json.encode(verdict("timeout"))
