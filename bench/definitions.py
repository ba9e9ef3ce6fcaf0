"""The definitions for a model: of the bundled tools and those of the benchmarks."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Iterator

from measure import CALLS, MS, STARTS, TOOLS, Figure, in_turns, percentile, place, timed

from hermes_sandbox import AsyncSupervisor
from hermes_sandbox.bundled import bundled

FILE_IS = "the same definitions out of a file, json.load"
GOAL_CACHED, GOAL_COLD = 1.0, 400.0  # ms


def definitions() -> Iterator[Figure]:
    yield from asyncio.run(_definitions())


async def _definitions() -> list[Figure]:
    with place() as where:
        where["tool_folders"] = [bundled("tool_modules"), TOOLS]
        copy = where["workspace"] / "definitions.json"
        async with AsyncSupervisor(**where) as opened:
            copy.write_text(json.dumps(await opened.get_definitions()), encoding="utf-8")

            async def known() -> None:
                await opened.get_definitions()

            def from_file() -> None:
                json.loads(copy.read_bytes())

            async def read_again() -> None:
                async with AsyncSupervisor(**where) as fresh:
                    await fresh.get_definitions()

            memory = await in_turns(CALLS, known, from_file)
            disk = await in_turns(CALLS // 2, read_again, from_file)
        cold = []
        for _ in range(STARTS):
            shutil.rmtree(where["home"] / "cache")
            start = time.perf_counter()
            async with AsyncSupervisor(**where) as fresh:
                await fresh.get_definitions()
                cold.append(time.perf_counter() - start)
    return [
        timed("definitions.cached", *memory, FILE_IS, lambda _b: GOAL_CACHED),
        timed("definitions.from_disk", *disk, FILE_IS),
        Figure(
            name="definitions.cold",
            value=percentile(cold, 0.5) * MS,
            unit="ms",
            goal=GOAL_COLD,
            p99=percentile(cold, 0.99) * MS,
            n=len(cold),
        ),
    ]
