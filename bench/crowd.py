"""Many warm workers at once, each of a task of its own: no call is lost, and none waits much longer than the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from measure import ARGUMENTS, MS, Figure, must, percentile, supervisor

CALLS_EACH = 50
TAIL = 20  # times the median that the p99 may be


def crowd() -> Iterator[Figure]:
    for workers, tool in ((8, "echo"), (8, "occasion"), (64, "echo")):
        samples = asyncio.run(_crowd(workers, tool))
        middle, tail = (percentile(samples, part) * MS for part in (0.5, 0.99))
        yield Figure(
            name=f"crowd.{workers}_workers.{tool}.p99",
            value=tail,
            unit="ms",
            floor=middle,
            floor_is="the median of the same calls",
            ratio=tail / middle,
            goal=TAIL * middle,
            p99=tail,
            n=len(samples),
        )


async def _crowd(workers: int, tool: str) -> list[float]:
    """Seconds of each call of all workers."""
    async with supervisor() as opened:

        async def one(task: str, count: int) -> list[float]:
            samples = []
            for _ in range(count):
                start = time.perf_counter()
                must(await opened.call(f"bench_{tool}", ARGUMENTS[tool], task_id=task))
                samples.append(time.perf_counter() - start)
            return samples

        tasks = [f"task{number}" for number in range(workers)]
        for task in tasks:
            await one(task, 1)
        return [
            seconds for each in await asyncio.gather(*(one(task, CALLS_EACH) for task in tasks)) for seconds in each
        ]
