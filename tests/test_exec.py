"""Commands through the real supervisor: streams, signals, limits, and their whole tree gone at the end."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hermes_sandbox import AsyncSupervisor, Supervisor, process
from hermes_sandbox.results import CallResult
from tests.support import TIERS, Holders, asked, holders_in, peak_rss

DAEMON = 'trap "" TERM INT HUP; exec 3>held; printf ! >&3; sleep 1000 & wait; sleep 1000'


@pytest.fixture(params=TIERS)
def tier(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def supervisor(tier: str, workspace: Path) -> Iterator[Supervisor]:
    with Supervisor(tool_folders=[], workspace=workspace, policy=asked(tier=tier)) as made:
        yield made


@pytest.fixture
def holders(workspace: Path) -> Iterator[Holders]:
    yield from holders_in(workspace)


def limit_of(result: CallResult) -> str:
    assert result.outcome == "limit", result
    assert result.limit is not None
    return result.limit.name


def test_output_comes_in_order_and_apart(supervisor: Supervisor) -> None:
    got: list[tuple[str, bytes]] = []
    result = supervisor.exec(
        ["sh", "-c", r"printf 'out\377\n'; printf '\303\244' >&2; exit 3"], on_output=lambda *piece: got.append(piece)
    )
    assert (result.outcome, result.exit_code, result.signal) == ("ok", 3, None)
    assert b"".join(data for stream, data in got if stream == "stdout") == b"out\xff\n"
    assert b"".join(data for stream, data in got if stream == "stderr") == b"\xc3\xa4"
    assert (result.stdout_tail, result.stderr_tail) == ("out\ufffd\n", "\u00e4")


def test_a_reader_that_takes_its_time_gets_the_pieces_in_order(supervisor: Supervisor) -> None:
    """One read from the worker may bring several pieces; each is handed over when the one before was taken."""
    parts: list[bytes] = []
    turn = itertools.count()

    async def take(_stream: str, data: bytes) -> None:
        for _ in range(0 if next(turn) % 2 else 20):  # every other one is slower than the next
            await asyncio.sleep(0)
        parts.append(data)

    result = supervisor.exec(["seq", "300000"], on_output=take)
    assert result.outcome == "ok", result
    assert b"".join(parts) == b"".join(b"%d\n" % number for number in range(1, 300001))


def test_a_command_that_is_not_there(supervisor: Supervisor) -> None:
    result = supervisor.exec(["no-such-program"])
    assert (result.outcome, result.exit_code) == ("tool_error", 127)
    assert result.error is not None
    assert "no-such-program" in result.error.message
    assert supervisor.exec(["/etc"]).exit_code == 126


def test_no_command(supervisor: Supervisor) -> None:
    assert supervisor.exec([]).outcome == "invalid_arguments"


def test_environment_and_folder(supervisor: Supervisor, workspace: Path) -> None:
    (workspace / "inner").mkdir()
    result = supervisor.exec(["sh", "-c", 'pwd; echo "$COLOUR"'], cwd="inner", env={"COLOUR": "blue"})
    assert result.stdout_tail == f"{workspace}/inner\nblue\n"
    assert supervisor.exec(["true"], cwd="nowhere").outcome == "tool_error"


def test_a_command_that_dies_of_a_signal(supervisor: Supervisor) -> None:
    result = supervisor.exec(["sh", "-c", "kill -SEGV $$"])
    assert (result.outcome, result.signal) == ("crashed", 11)


def test_stdin_is_empty_unless_given(supervisor: Supervisor) -> None:
    assert supervisor.exec(["cat"], policy=asked(timeout=5)).outcome == "ok"


def test_16_mb_go_through_a_command(supervisor: Supervisor) -> None:
    data = os.urandom(1 << 20) * 16
    digest = hashlib.sha256()
    result = supervisor.exec(["cat"], stdin=data, on_output=lambda _stream, piece: digest.update(piece))
    assert result.outcome == "ok"
    assert digest.digest() == hashlib.sha256(data).digest()


def test_stdin_as_a_stream(supervisor: Supervisor) -> None:
    async def blocks() -> AsyncIterator[bytes]:
        for number in range(100):
            yield b"%d\n" % number
            await asyncio.sleep(0)

    assert supervisor.exec(["wc", "-l"], stdin=blocks()).stdout_tail.strip() == "100"


def test_a_command_that_does_not_read_its_stdin(supervisor: Supervisor) -> None:
    result = supervisor.exec(["sh", "-c", "exec <&-; echo done"], stdin=bytes(4 << 20), policy=asked(timeout=10))
    assert (result.outcome, result.stdout_tail) == ("ok", "done\n")
    result = supervisor.exec(["sleep", "0.1"], stdin=bytes(4 << 20), policy=asked(timeout=10))
    assert result.outcome == "ok"


def test_a_slow_reader_holds_the_command_back(tier: str, workspace: Path) -> None:
    """What it prints is kept nowhere: while the reader sleeps the command must not get more than a few pipes ahead."""
    most_ahead = 0
    taken = 0

    async def scenario() -> CallResult:
        async def slowly(_stream: str, data: bytes) -> None:
            nonlocal most_ahead, taken
            taken += len(data)
            await asyncio.sleep(0.001)
            written = int((workspace / "count").read_text(encoding="ascii") or 0)
            most_ahead = max(most_ahead, written - taken)

        (workspace / "count").write_text("0", encoding="ascii")
        script = "i=0; while [ $i -lt 8 ]; do head -c 1048576 /dev/zero; i=$((i+1)); echo $((i*1048576)) >count; done"
        async with AsyncSupervisor(tool_folders=[], workspace=workspace, policy=asked(tier=tier)) as supervisor:
            return await supervisor.exec(["sh", "-c", script], on_output=slowly)

    assert asyncio.run(scenario()).outcome == "ok"
    assert taken == 8 << 20
    assert most_ahead < 6 << 20


def test_a_reader_that_fails_ends_the_command(supervisor: Supervisor) -> None:
    def closed(_stream: str, _data: bytes) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    result = supervisor.exec(["yes"], on_output=closed, policy=asked(timeout=20, grace=0.2))
    assert result.outcome == "cancelled"
    assert result.error is not None
    assert "Broken pipe" in result.error.message


def test_signals_reach_the_command(supervisor: Supervisor) -> None:
    script = 'trap "echo got; exit 5" USR1; echo ready; while :; do sleep 0.01; done'

    def when_ready(_stream: str, data: bytes) -> None:
        if b"ready" in data:
            supervisor.send_signal(signal.SIGUSR1)

    result = supervisor.exec(["sh", "-c", script], on_output=when_ready, policy=asked(timeout=20))
    assert (result.outcome, result.exit_code, result.stdout_tail) == ("ok", 5, "ready\ngot\n")


# Limits -----------------------------------------------------------------------------------------------------------


def test_timeout_keeps_the_output_so_far(supervisor: Supervisor) -> None:
    result = supervisor.exec(["sh", "-c", "echo so far; sleep 1000"], policy=asked(timeout=0.3, grace=0.1))
    assert (result.outcome, result.stdout_tail) == ("timeout", "so far\n")


def test_grace_lets_a_command_clean_up(supervisor: Supervisor) -> None:
    script = 'trap "echo cleaned; exit" TERM; echo ready; while :; do sleep 0.01; done'
    result = supervisor.exec(["sh", "-c", script], policy=asked(timeout=0.5, grace=5))
    assert (result.outcome, result.stdout_tail) == ("timeout", "ready\ncleaned\n")
    assert result.usage.wall_s < 4


def test_idle_timeout(supervisor: Supervisor) -> None:
    script = "for i in 1 2 3 4 5; do echo $i; sleep 0.15; done; sleep 1000"
    result = supervisor.exec(["sh", "-c", script], policy=asked(idle_timeout=0.4, timeout=30, grace=0.1))
    assert (result.outcome, result.stdout_tail) == ("timeout", "1\n2\n3\n4\n5\n")
    assert result.error is not None
    assert "idle_timeout" in result.error.message
    assert result.usage.wall_s < 10


def test_the_output_limit_ends_a_flood(supervisor: Supervisor) -> None:
    result = supervisor.exec(["yes"], policy=asked(output="1M", timeout=20, grace=0.1))
    assert limit_of(result) == "output"


def test_memory(supervisor: Supervisor) -> None:
    script = 'x = []\nwhile True: x.append(b"1" * (1 << 24))'
    python = os.path.realpath(sys.executable)
    result = supervisor.exec([python, "-I", "-c", script], policy=asked(memory="128M", timeout=30))
    assert limit_of(result) == "memory"


def test_pids(supervisor: Supervisor) -> None:
    script = "i=0; while [ $i -lt 200 ]; do sleep 1000 & i=$((i+1)); done"
    assert limit_of(supervisor.exec(["sh", "-c", script], policy=asked(pids=20, timeout=20))) == "pids"


def test_file_size(supervisor: Supervisor, workspace: Path) -> None:
    result = supervisor.exec(["head", "-c", "8388608", "/dev/zero"], policy=asked(file_size="1M"))
    assert result.outcome == "ok"  # a pipe is no file
    argv = ["sh", "-c", "exec head -c 8388608 /dev/zero >much"]
    assert limit_of(supervisor.exec(argv, policy=asked(file_size="1M"))) == "file_size"
    assert (workspace / "much").stat().st_size == 1 << 20


@pytest.mark.parametrize("script", ["while :; do :; done", "(while :; do :; done) & (while :; do :; done) & wait"])
def test_cpu_time_of_one_process_and_of_a_tree(supervisor: Supervisor, script: str) -> None:
    result = supervisor.exec(["sh", "-c", script], policy=asked(cpu_time=0.5, timeout=30, grace=0.1))
    assert limit_of(result) == "cpu_time"
    assert result.usage.wall_s < 6


def test_the_operator_may_go_beyond_a_ceiling(supervisor: Supervisor) -> None:
    assert supervisor.exec(["true"], policy=asked(timeout=10**6)).outcome == "ok"


def test_300_mb_of_output_are_not_kept(supervisor: Supervisor) -> None:
    before = peak_rss()
    result = supervisor.exec(["head", "-c", str(300 << 20), "/dev/zero"])
    assert (result.outcome, result.truncated) == ("ok", True)
    assert peak_rss() - before < 20 << 20


# Ends -------------------------------------------------------------------------------------------------------------


def test_what_a_command_left_running_is_ended(supervisor: Supervisor, holders: Holders) -> None:
    script = f"setsid sh -c '{DAEMON}' >/dev/null 2>&1 </dev/null & while [ ! -e up ]; do sleep 0.01; done"
    script = script.replace("printf ! >&3", "printf ! >&3; touch up")
    result = supervisor.exec(["sh", "-c", script], policy=asked(timeout=20))
    assert result.outcome == "ok"
    assert holders.are_gone()
    assert any("left running" in note for note in result.notes)


def test_a_deaf_command_with_a_daemon_is_dead_at_the_end(supervisor: Supervisor, holders: Holders) -> None:
    script = f"setsid sh -c '{DAEMON}' & {DAEMON}"
    result = supervisor.exec(["sh", "-c", script], policy=asked(timeout=0.5, grace=0.1))
    assert result.outcome == "timeout"
    assert holders.are_gone()


def test_cancel_from_another_thread(supervisor: Supervisor, holders: Holders) -> None:
    def cancel() -> None:
        holders.wait_for(1)
        supervisor.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    result = supervisor.exec(["sh", "-c", DAEMON], policy=asked(grace=0.1))
    thread.join()
    assert result.outcome == "cancelled"
    assert holders.are_gone()


@pytest.mark.parametrize("times", [1, 2])
def test_cancelling_the_coroutine_ends_the_command(tier: str, workspace: Path, times: int) -> None:
    """However often: the second cancellation must not leave the ladder half climbed."""
    holders = Holders(workspace)
    children = process.children(os.getpid())

    async def scenario() -> None:
        async with AsyncSupervisor(tool_folders=[], workspace=workspace, policy=asked(tier=tier)) as supervisor:
            work = asyncio.ensure_future(supervisor.exec(["sh", "-c", DAEMON], policy=asked(grace=0.3)))
            await asyncio.to_thread(holders.wait_for, 1)
            for _ in range(times):
                work.cancel()
                await asyncio.sleep(0.01)
            with pytest.raises(asyncio.CancelledError):
                await work
            assert holders.are_gone(), "its coroutine ended before it"

    asyncio.run(scenario())
    assert process.children(os.getpid()) == children
    holders.close()


def test_cancelling_at_any_moment_of_the_start_leaves_nothing(tier: str, workspace: Path) -> None:
    holders = Holders(workspace)
    script = "exec 3>held; printf ! >&3; sleep 1000"

    async def scenario() -> None:
        async with AsyncSupervisor(tool_folders=[], workspace=workspace, policy=asked(tier=tier)) as supervisor:
            for step in range(25):
                work = asyncio.ensure_future(supervisor.exec(["sh", "-c", script], policy=asked(grace=0.1)))
                await asyncio.sleep(step * 0.002)
                work.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await work

    before = len(os.listdir("/proc/self/fd")), process.children(os.getpid())
    asyncio.run(scenario())
    assert (len(os.listdir("/proc/self/fd")), process.children(os.getpid())) == before
    assert holders.are_gone() or not holders.seen
    holders.close()
