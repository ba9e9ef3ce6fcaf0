"""From a deadline to a dead tree and an answer: what it takes on top of the time and the grace that were granted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from measure import MS, STARTS, Figure, percentile, supervisor

TIMEOUT, GRACE = 0.3, 0.3  # s
GOAL, GOAL_STORM = 150.0, 1000.0  # ms
FORKS = 100
STORMS = 5


def deadline() -> Iterator[Figure]:
    yield asyncio.run(_late("deadline.obeys", "bench_obey", {}, STARTS, TIMEOUT, GOAL))
    yield asyncio.run(_late("deadline.resists", "bench_resist", {}, STARTS, TIMEOUT + GRACE, GOAL))
    yield asyncio.run(_late("deadline.storm", "bench_storm", {"forks": FORKS}, STORMS, TIMEOUT + GRACE, GOAL_STORM))


async def _late(name: str, tool: str, arguments: dict[str, Any], count: int, granted: float, goal: float) -> Figure:
    """`granted`: s that the tool may take: a tool that obeys has no use for the grace."""
    late = []
    async with supervisor(timeout=TIMEOUT, grace=GRACE) as opened:
        for _ in range(count):
            await opened.call("bench_touch")  # the worker is there: its start is another figure
            start = time.perf_counter()
            result = await opened.call(tool, arguments)
            late.append(time.perf_counter() - start - granted)
            if result.outcome != "timeout":
                raise SystemExit(f"{tool} ended {result.outcome}: {result.error}")
    return Figure(
        name=name,
        value=percentile(late, 0.5) * MS,
        unit="ms",
        goal=goal,
        p99=percentile(late, 0.99) * MS,
        n=count,
    )
