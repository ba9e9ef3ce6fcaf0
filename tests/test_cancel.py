"""A cancel may come at any moment: between a fork and its note, in the middle of a frame, before there is a worker."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hermes_sandbox import AsyncSupervisor
from tests.support import TIERS, asked

ROUNDS = 40
STEP = 0.0003  # s: the moments of the cancels cover the first 12 ms of a call

NOISY = """
import logging, time
from tools.registry import registry

def noisy(args, **kw):
    end = time.monotonic() + 20
    while time.monotonic() < end:
        logging.getLogger("x").warning("\u00e9" * 5000)
    return "done"

registry.register(name="noisy", toolset="noisy", schema={"description": "x"}, handler=noisy)
"""


@contextmanager
def fifo(folder: Path, number: int) -> Iterator[tuple[Path, int]]:
    """A FIFO and our reading end of it."""
    path = folder / f"held{number}"
    os.mkfifo(path, 0o600)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield path, fd
    finally:
        os.close(fd)


def is_held(fd: int) -> bool:
    """Whether a process has the FIFO open for writing."""
    try:
        while os.read(fd, 100):
            pass
    except BlockingIOError:
        return True
    return False


@pytest.mark.parametrize("tier", TIERS)
def test_a_command_is_dead_when_its_cancelled_call_is_over(tier: str, workspace: Path) -> None:
    async def scenario() -> list[str]:
        outcomes = []
        async with AsyncSupervisor(workspace=workspace, policy=asked(tier=tier, grace=0.5)) as supervisor:
            assert (await supervisor.call("terminal", {"command": "v=kept"})).outcome == "ok"
            for number in range(ROUNDS):
                with fifo(workspace, number) as (path, fd):
                    command = f"exec 9>{path}; sleep 60"
                    call = asyncio.ensure_future(supervisor.call("terminal", {"command": command}))
                    await asyncio.sleep(number * STEP)  # what is tried is the moment
                    supervisor.cancel()
                    outcomes.append((await call).outcome)
                    assert not is_held(fd), f"alive after a cancel {number * STEP * 1000:.1f} ms after the start"
            last = await supervisor.call("terminal", {"command": "echo $v"})
            assert "kept" in str(last.result), last
        return outcomes

    assert set(asyncio.run(scenario())) == {"cancelled"}


def test_a_cancel_tears_no_frame(workspace: Path, tmp_path: Path) -> None:
    """The supervisor is busy, so the pipe is full, and the worker is in the middle of a frame."""
    (tmp_path / "noisy.py").write_text(NOISY, encoding="utf-8")

    async def scenario() -> None:
        async with AsyncSupervisor(workspace=workspace, tool_folders=[tmp_path]) as supervisor:
            for _ in range(4):
                call = asyncio.ensure_future(supervisor.call("noisy", {}))
                await asyncio.sleep(0.1)
                time.sleep(0.2)  # noqa: ASYNC251 - nothing is to be read meanwhile
                supervisor.cancel()
                result = await call
                assert (result.outcome, result.notes) == ("cancelled", [])  # no worker was lost with it

    asyncio.run(scenario())


def test_a_cancel_before_there_is_a_worker(workspace: Path) -> None:
    async def scenario() -> None:
        async with AsyncSupervisor(workspace=workspace) as supervisor:
            call = asyncio.ensure_future(supervisor.call("terminal", {"command": "touch ran"}))
            await asyncio.sleep(0)  # it has begun, and waits for its tool to be described
            supervisor.cancel()
            assert (await call).outcome == "cancelled"
            assert (await supervisor.call("terminal", {"command": "ls"})).outcome == "ok"
        assert not (workspace / "ran").exists()

    asyncio.run(scenario())


def test_a_storm_of_the_cancels_signal_is_no_cancel(workspace: Path) -> None:
    """A command may send it to its worker."""
    storm = "worker=$(awk '{print $4}' /proc/$PPID/stat); for n in $(seq 3000); do kill -IO $worker; done; echo done"

    async def scenario() -> None:
        async with AsyncSupervisor(workspace=workspace) as supervisor:
            for _ in range(3):
                result = await supervisor.call("terminal", {"command": storm, "timeout": 20})
                assert result.outcome == "ok", result
                assert "done" in str(result.result)
            assert (await supervisor.call("terminal", {"command": "true"})).notes == []

    asyncio.run(scenario())
