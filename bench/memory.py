"""The supervisor's memory, each figure in a process of its own: with all tools described, and after 300 MB of print.

What the process had before it made a supervisor, an interpreter with msgspec, is the floor of the first.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from measure import TOOLS, Figure, must, place

from hermes_sandbox import AsyncSupervisor
from hermes_sandbox.bundled import bundled

MB = 1_000_000
KIB = 1024
MEGABYTES = 300
GOAL_RSS, GOAL_GROWTH = 45.0, 20.0  # MB
BARE = "import msgspec; print(open('/proc/self/status').read())"


def memory() -> Iterator[Figure]:
    bare = _field(
        subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, check=True).stdout, "VmRSS"
    )
    (full,) = _in_a_process("described")
    yield Figure(
        name="memory.all_described",
        value=full,
        unit="MB",
        floor=bare,
        floor_is="python3 -c 'import msgspec'",
        ratio=full / bare,
        goal=GOAL_RSS,
    )
    before, peak = _in_a_process("flooded")
    yield Figure(
        name=f"memory.growth_{MEGABYTES}_mb_printed",
        value=peak - before,
        unit="MB",
        floor=before,
        floor_is="the supervisor after its first call; ratio is peak/floor",
        ratio=peak / before,
        goal=GOAL_GROWTH,
    )


def _in_a_process(name: str) -> list[float]:
    """What the coroutine below of this name returns, in MB."""
    done = subprocess.run([sys.executable, __file__, name], stdout=subprocess.PIPE, text=True, check=True)
    found: list[float] = json.loads(done.stdout)
    return found


async def described() -> list[float]:
    with place() as where:
        where["tool_folders"] = [bundled("tool_modules"), TOOLS]
        async with AsyncSupervisor(**where) as opened:
            await opened.get_definitions()
            return [_own("VmRSS")]


async def flooded() -> list[float]:
    with place() as where:
        async with AsyncSupervisor(**where) as opened:
            must(await opened.call("bench_touch"))
            before = _own("VmRSS")
            _forget_peak()
            must(await opened.call("bench_flood", {"megabytes": MEGABYTES}))
            return [before, _own("VmHWM")]


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # see proc(5): VmHWM counts from here


def _own(field: str) -> float:
    return _field(Path("/proc/self/status").read_text(encoding="utf-8"), field)


def _field(status: str, field: str) -> float:
    """A size out of the text of /proc/PID/status, in MB."""
    line = next(line for line in status.splitlines() if line.startswith(field))
    return int(line.split()[1]) * KIB / MB


if __name__ == "__main__":
    print(json.dumps(asyncio.run({"described": described, "flooded": flooded}[sys.argv[1]]())))
