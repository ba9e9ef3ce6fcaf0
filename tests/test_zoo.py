"""Bad workers against the real driver, session and process: each is named, none costs more memory than a frame may."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from hermes_sandbox import driver
from hermes_sandbox.errors import ProtocolError, RunnerFailed, SandboxError
from hermes_sandbox.exchange import Watch
from hermes_sandbox.outcomes import Case, judge
from hermes_sandbox.policy import Policy
from hermes_sandbox.worker import wire
from tests import bad_worker, zoo

MUCH_AT_ONCE = 24 << 20  # bytes that a supervisor may need for a worker that sends without an end

AT_THE_START = {
    "silent": RunnerFailed,
    "exits": RunnerFailed,
    "complains_and_exits": RunnerFailed,
    "other_version": ProtocolError,
    "other_nonce": RunnerFailed,
    "other_nonce_but_knows_ours": ProtocolError,
    "reply_before_hello": ProtocolError,
    "endless_lines_before_hello": RunnerFailed,
    "endless_stderr_before_hello": RunnerFailed,
    "endless_line_before_hello": ProtocolError,
}
FINE = ["obedient", "noise_before_hello", "byte_by_byte", "unknown_fields", "carriage_returns", "mark_never_drained"]
PROTOCOL = [
    *("foreign_id nan nan_cost infinity lone_surrogate raw_surrogate surrogate_key bad_utf8").split(),
    *("brackets nested_result nested_objects huge_id huge_number float_id text_id other_jsonrpc no_result").split(),
    *("no_cost text_is_number answer_to_another_method array empty_line zeros words half_a_character").split(),
    *("unknown_method request_to_us hello_again reports_on_stdout output_of_another credit_of_another").split(),
    *("bad_base64 unknown_error error_without_code garbage_report unknown_report gigabyte_of_newlines").split(),
]
OTHER = {
    "half_a_frame": "protocol",
    "deaf": "timeout",
    "answers_after_the_deadline": "timeout",
    "half_a_frame_and_exit": "protocol",
    "closes_its_pipe": "runner_failed",
    "dies_after_hello": "runner_failed",
    "is_killed": "runner_failed",
    "tells_of_a_segfault": "crashed",
}
# Mode -> how it ends and how much the supervisor may grow.
HUNGRY = {
    "gigabyte_frame": ("protocol", int(1.6 * wire.MAX_FRAME)),
    "endless_line_before_hello": ("protocol", int(1.6 * wire.MAX_FRAME)),
    "gigabyte_of_newlines": ("protocol", MUCH_AT_ONCE),
    "endless_lines_before_hello": ("runner_failed", MUCH_AT_ONCE),
    "endless_stderr_before_hello": ("runner_failed", MUCH_AT_ONCE),
    "endless_stderr": ("timeout", MUCH_AT_ONCE),
    "endless_prints": ("timeout", MUCH_AT_ONCE),
    "endless_output": ("timeout", MUCH_AT_ONCE),
    "endless_credit": ("protocol", MUCH_AT_ONCE),
    "endless_logs": ("timeout", MUCH_AT_ONCE),
    "endless_marks": ("timeout", MUCH_AT_ONCE),
}


def outcome(mode: str, timeout: float = 5.0) -> str:
    """How a request to a worker of this mode ends, by the words that a CallResult would have."""
    try:
        exchange = asyncio.run(zoo.ask(mode, timeout))
    except SandboxError as error:  # what it said came with its hello
        return error.outcome
    ended: wire.Ended | None = wire.Ended(signal=11) if mode == "tells_of_a_segfault" else None
    return judge(Case(exchange=exchange, policy=Policy(), mechanisms={}, ended=ended)).outcome


@pytest.mark.parametrize("mode", AT_THE_START)
def test_a_worker_that_does_not_start(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "START_PATIENCE", 1.0)
    with pytest.raises((RunnerFailed, ProtocolError)) as raised:
        asyncio.run(zoo.start(mode))
    assert issubclass(raised.type, AT_THE_START[mode])


@pytest.mark.parametrize("mode", FINE)
def test_a_worker_that_keeps_to_the_wire_only_just(mode: str) -> None:
    assert outcome(mode) == "ok"


@pytest.mark.parametrize("mode", PROTOCOL)
def test_a_worker_that_breaks_the_protocol(mode: str) -> None:
    assert outcome(mode) == "protocol"


@pytest.mark.parametrize("mode", OTHER)
def test_a_worker_that_ends_or_hangs(mode: str) -> None:
    assert outcome(mode, timeout=0.5) == OTHER[mode]


def test_a_second_answer_spoils_the_worker() -> None:
    """The first one stands, unless both came in one piece."""

    async def scenario() -> None:
        async with zoo.started("answers_twice") as worker:
            exchange = await worker.request(zoo.CALL, Watch(timeout=5, grace=0.1))
            assert exchange.cause == "protocol" or exchange.reply.text == "fine"
            async with asyncio.timeout(5):
                while worker.usable:  # noqa: ASYNC110 - the second answer is on its way
                    await asyncio.sleep(0.005)

    asyncio.run(scenario())


def test_what_a_runner_says_is_kept_for_the_diagnosis() -> None:
    async def scenario() -> str:
        bad = zoo.ZooProcess("complains_and_exits")
        worker = driver.Worker(bad, driver.Session(bad.boot.nonce))
        with pytest.raises(RunnerFailed):
            await worker.start(zoo.bootstrap.payload(bad.boot, {}, same_python=True))
        assert bad.released
        return worker.noise

    assert asyncio.run(scenario()) == "bwrap: setting up uid map: Permission denied"


@pytest.mark.parametrize("mode", HUNGRY)
def test_memory_stays_bounded(mode: str) -> None:
    end, most = HUNGRY[mode]
    command = [sys.executable, "-m", "tests.zoo", mode, "2"]
    done = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, timeout=50, check=True)
    told = json.loads(done.stdout)
    assert told["cause"] == end, told
    assert told["grown"] <= most, f"grew by {told['grown'] >> 20} MB, {most >> 20} MB are allowed"


def test_each_bad_worker_is_in_a_table() -> None:
    assert set(bad_worker.MODES) == {*AT_THE_START, *FINE, *PROTOCOL, *OTHER, *HUNGRY, "answers_twice"}
