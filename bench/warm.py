"""A call on a worker that is there already, from both faces of the supervisor, and 1 MiB each way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import floor
from measure import ARGUMENTS, CALLS, WARM_UP, Figure, in_turns, must, place, supervisor, timed

from hermes_sandbox import Supervisor

MIB = 1 << 20
SYNC_EXTRA = 0.2  # ms that the thread of the synchronous face may add


def _goal(base: float) -> float:
    return max(3 * base, 0.2)


def warm_async() -> Iterator[Figure]:
    for tool, arguments in ARGUMENTS.items():
        samples, base = asyncio.run(_through_async(tool, arguments, CALLS))
        yield timed(f"warm_call.async.{tool}", samples, base, floor.PIPE_IS, _goal)
        samples, base = asyncio.run(_through_async(tool, arguments, CALLS, together=True))
        yield timed(f"warm_call.async.{tool}.one_core", samples, base, floor.PIPE_IS, _goal)


async def _through_async(
    tool: str, arguments: dict[str, Any], count: int, *, together: bool = False
) -> tuple[list[float], list[float]]:
    async with supervisor() as opened:
        with floor.Pipe(tool, arguments) as pipe:

            async def ours() -> None:
                must(await opened.call(f"bench_{tool}", arguments))

            await in_turns(1, ours, pipe)
            floor.pin(together=together)
            await in_turns(WARM_UP, ours, pipe)
            try:
                return await in_turns(count, ours, pipe)
            finally:
                floor.unpin()


def warm_sync() -> Iterator[Figure]:
    for tool, arguments in ARGUMENTS.items():
        with place() as where, floor.Pipe(tool, arguments) as pipe:
            floor.pin()  # first: the supervisor's threads have to be on our core too
            with Supervisor(**where) as opened:

                async def ours(tool: str = tool, opened: Supervisor = opened) -> None:
                    must(opened.call(f"bench_{tool}", ARGUMENTS[tool]))

                asyncio.run(in_turns(1, ours, pipe))
                floor.pin()
                asyncio.run(in_turns(WARM_UP, ours, pipe))
                samples, base = asyncio.run(in_turns(CALLS, ours, pipe))
            floor.unpin()
        yield timed(f"warm_call.sync.{tool}", samples, base, floor.PIPE_IS, lambda b: _goal(b) + SYNC_EXTRA)


def transfer() -> Iterator[Figure]:
    """1 MiB as an argument, and back in the answer; the goal is 70 % of the floor's throughput."""
    samples, base = asyncio.run(_through_async("echo", {"text": "x" * MIB}, CALLS // 2))
    yield timed("transfer.1_mib_each_way", samples, base, floor.PIPE_IS, lambda b: b / 0.7)
