"""The driver: the ladder, cancellation, and what stays usable after it; with bad workers, and with real ones."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hermes_sandbox import AsyncSupervisor
from hermes_sandbox.exchange import Exchange, Tail, Watch
from hermes_sandbox.session import State
from hermes_sandbox.worker import wire
from tests import zoo
from tests.support import HOSTILE_TOOLS, TIERS, asked

PROMPT = Watch(timeout=0.2, grace=0.1)


@pytest.fixture(params=TIERS)
def tier(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def with_supervisor(tier: str, workspace: Path, scenario: Callable[[AsyncSupervisor], Awaitable[None]]) -> None:
    async def run() -> None:
        policy = asked(tier=tier, grace=0.3)
        async with AsyncSupervisor(tool_folders=[HOSTILE_TOOLS], workspace=workspace, policy=policy) as supervisor:
            await supervisor.tools()
            await scenario(supervisor)

    asyncio.run(run())


# The ladder -------------------------------------------------------------------------------------------------------


def test_an_answer_after_the_deadline_keeps_the_worker() -> None:
    async def scenario() -> None:
        async with zoo.started("answers_after_the_deadline") as worker:
            exchange = await worker.request(zoo.CALL, PROMPT)
            assert (exchange.cause, exchange.lost, exchange.confirmed) == ("timeout", False, True)
            assert worker.usable

    asyncio.run(scenario())


@pytest.mark.parametrize("mode", ["half_a_frame", "deaf", "closes_its_pipe", "endless_prints"])
def test_a_worker_that_does_not_obey_is_dead_when_the_request_returns(mode: str) -> None:
    async def scenario() -> None:
        async with zoo.started(mode) as worker:
            exchange = await worker.request(zoo.CALL, PROMPT)
            assert (exchange.lost, exchange.confirmed) == (True, True)
            assert worker.session.state is State.ENDED
            assert isinstance(worker.process, zoo.ZooProcess)
            assert worker.process.returncode is not None
            assert worker.process.released
            assert await worker.stop(), "a second stop says what the first one said"

    asyncio.run(scenario())


def test_a_deadline_is_kept_to() -> None:
    exchange = asyncio.run(zoo.ask("half_a_frame", 0.3))
    assert 0.3 <= exchange.wall_s < 0.3 + 0.1 + 0.4  # timeout, grace, and what the kernel needs


def test_close_is_gentle_and_safe_to_repeat() -> None:
    async def scenario() -> None:
        async with zoo.started("obedient") as worker:
            await worker.request(zoo.CALL, PROMPT)
            assert await worker.close()
            assert await worker.close()
            assert isinstance(worker.process, zoo.ZooProcess)
            assert worker.process.returncode == 0

    asyncio.run(scenario())


def test_many_requests_one_after_the_other() -> None:
    async def scenario() -> None:
        async with zoo.started("obedient") as worker:
            for _ in range(50):
                assert (await worker.request(zoo.CALL, PROMPT)).reply.text == "fine"

    asyncio.run(scenario())


def test_a_log_record_of_a_tool_is_ours_to_filter(caplog: pytest.LogCaptureFixture, tier: str, workspace: Path) -> None:
    async def scenario(supervisor: AsyncSupervisor) -> None:
        await supervisor.call("log_much", {"count": 2})

    with caplog.at_level(logging.WARNING, logger="hermes_sandbox"):
        with_supervisor(tier, workspace, scenario)
    assert [record.getMessage() for record in caplog.records if "line" in record.getMessage()]


# Cancelling -------------------------------------------------------------------------------------------------------


async def busy(supervisor: AsyncSupervisor, task_id: str = "default") -> asyncio.Task[object]:
    """A call of the task that has begun to sleep."""
    sleeping = asyncio.ensure_future(supervisor.call("sleep_for_ever", {}, task_id=task_id))
    async with asyncio.timeout(10):
        while not supervisor._pool.running(task_id):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)
    return sleeping


def test_cancelling_the_coroutine_keeps_the_tasks_state(tier: str, workspace: Path) -> None:
    async def scenario(supervisor: AsyncSupervisor) -> None:
        await supervisor.call("remember", {"word": "before"})
        sleeping = await busy(supervisor)
        sleeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sleeping
        after = await supervisor.call("remember", {"word": "after"})
        assert json.loads(str(after.result)) == ["before", "after"]

    with_supervisor(tier, workspace, scenario)


def test_cancel_by_name_returns_the_outcome(tier: str, workspace: Path) -> None:
    async def scenario(supervisor: AsyncSupervisor) -> None:
        sleeping, other = await busy(supervisor, "one"), await busy(supervisor, "two")
        supervisor.cancel("one")
        assert (await sleeping).outcome == "cancelled"  # type: ignore[attr-defined]
        assert not other.done()
        supervisor.cancel("two")
        assert (await other).outcome == "cancelled"  # type: ignore[attr-defined]
        supervisor.cancel("one")
        supervisor.cancel("nobody")
        assert (await supervisor.call("echo", {}, task_id="one")).ok

    with_supervisor(tier, workspace, scenario)


def test_a_call_that_waits_in_line_can_be_cancelled(tier: str, workspace: Path) -> None:
    async def scenario(supervisor: AsyncSupervisor) -> None:
        sleeping = await busy(supervisor)
        waiting = asyncio.ensure_future(supervisor.call("echo", {}))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        supervisor.cancel()
        await sleeping
        assert (await supervisor.call("echo", {})).ok

    with_supervisor(tier, workspace, scenario)


def test_waiting_in_line_has_the_calls_deadline(tier: str, workspace: Path) -> None:
    async def scenario(supervisor: AsyncSupervisor) -> None:
        sleeping = await busy(supervisor)
        result = await supervisor.call("echo", {}, policy=asked(timeout=0.2))
        assert result.outcome == "timeout"
        assert result.error is not None
        assert "earlier calls" in result.error.message
        supervisor.cancel()
        await sleeping

    with_supervisor(tier, workspace, scenario)


def test_tasks_run_side_by_side(tier: str, workspace: Path) -> None:
    async def scenario(supervisor: AsyncSupervisor) -> None:
        sleeping = await busy(supervisor, "slow")
        assert (await supervisor.call("echo", {}, task_id="quick")).ok
        assert not sleeping.done()
        supervisor.cancel("slow")
        await sleeping

    with_supervisor(tier, workspace, scenario)


def test_closing_ends_what_runs(tier: str, workspace: Path) -> None:
    outcomes: list[object] = []

    async def scenario(supervisor: AsyncSupervisor) -> None:
        sleeping = await busy(supervisor)
        await supervisor.close()
        outcomes.append((await sleeping).outcome)  # type: ignore[attr-defined]
        await supervisor.close()
        with pytest.raises(RuntimeError):
            await supervisor.call("echo", {})

    with_supervisor(tier, workspace, scenario)
    assert outcomes == ["cancelled"]


def test_closing_a_task_ends_what_runs_in_it(tier: str, workspace: Path) -> None:
    async def scenario(supervisor: AsyncSupervisor) -> None:
        sleeping = await busy(supervisor, "one")
        await supervisor.close_task("one")
        assert (await sleeping).outcome == "cancelled"  # type: ignore[attr-defined]
        assert (await supervisor.call("echo", {}, task_id="one")).ok

    with_supervisor(tier, workspace, scenario)


# An exchange ------------------------------------------------------------------------------------------------------


def exchange(watch: Watch) -> Exchange:
    async def make() -> Exchange:
        return Exchange(1, watch, "t")

    return asyncio.run(make())


def test_the_first_end_stays() -> None:
    made = exchange(PROMPT)
    made.end("timeout")
    made.end("cancelled")
    made.end("died")
    assert made.cause == "timeout"


def test_output_counts_over_both_streams() -> None:
    made = exchange(Watch(timeout=1, grace=1, output=10))
    made.take("stdout", b"x" * 6)
    assert not made.over.done()
    made.take("stderr", b"x" * 5)
    assert (made.cause, made.over.done()) == ("output", True)


def test_a_tail_keeps_the_last_bytes() -> None:
    tail = Tail()
    for number in range(100):
        tail.add(b"%03d" % number * 1000)
    assert tail.total == 300_000
    assert tail.truncated
    assert tail.text.endswith("099")
    assert len(tail.kept) == 16 << 10
    tail.add(b"\xff")
    assert tail.text.endswith("\ufffd")


def test_a_pump_sends_no_more_than_the_window() -> None:
    """A command that takes nothing gets STDIN_WINDOW bytes, however much there is."""
    sent = 0

    async def scenario() -> None:
        async with zoo.started("half_a_frame") as worker:
            write = worker.process.send

            def counted(data: bytes) -> None:
                nonlocal sent
                if b'"stdin"' in data:
                    sent += 1
                write(data)

            worker.process.send = counted  # type: ignore[method-assign]
            await worker.request(zoo.EXEC, PROMPT, stdin=zoo.endless_input())

    asyncio.run(scenario())
    assert sent * wire.CHUNK == wire.STDIN_WINDOW
