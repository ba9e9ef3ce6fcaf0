"""What every figure shares: samples, percentiles, the line that is printed, and where supervisors of a benchmark live.

A figure is a coroutine or function that yields `Figure`s. Its samples and its floor's are taken in turns, call by call,
so that what else the machine does falls on both; hence the ratio is what to compare, not the milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import platform
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hermes_sandbox import AsyncSupervisor
from hermes_sandbox.policy import layer

TOOLS = Path(__file__).parent / "tools"
CALLS, STARTS = 400, 30  # samples of a figure: of warm calls, of cold starts
WARM_UP = 20
MS = 1000.0

# name of a tool -> its arguments in the figures that are taken for both kinds of tool
ARGUMENTS = {"echo": {"text": "a line of text"}, "occasion": {"text": "a line of text"}}


class Figure(msgspec.Struct, kw_only=True):
    """One line of the output. `value`, `floor` and `p99` in `unit`, the first two as medians; `ratio` is value/floor.
    `goal` is the most that `value` may be, None where there is no goal."""

    name: str
    value: float
    unit: str
    floor: float | None = None
    floor_is: str = ""
    ratio: float | None = None
    goal: float | None = None
    p99: float | None = None
    n: int = 1


def percentile(samples: Sequence[float], part: float) -> float:
    return sorted(samples)[min(len(samples) - 1, int(len(samples) * part))]


def timed(
    name: str,
    samples: Sequence[float],
    floor: Sequence[float],
    floor_is: str,
    goal: Callable[[float], float | None] = lambda _floor: None,
) -> Figure:
    """A figure in ms out of samples in s. `goal` gives the goal from the floor, both in ms."""
    value, base = (percentile(each, 0.5) * MS for each in (samples, floor))
    return Figure(
        name=name,
        value=value,
        unit="ms",
        floor=base,
        floor_is=floor_is,
        ratio=value / base,
        goal=goal(base),
        p99=percentile(samples, 0.99) * MS,
        n=len(samples),
    )


async def in_turns(
    count: int, ours: Callable[[], Awaitable[Any]], floor: Callable[[], Any], rest: float = 0.0
) -> tuple[list[float], list[float]]:
    """Seconds of `count` runs of each, one after the other by turns. `rest`: s before each, in which what the other
    has left to do after its end is done."""
    samples: list[float] = []
    base: list[float] = []
    for _ in range(count):
        if rest:
            await asyncio.sleep(rest)
        start = time.perf_counter()
        await ours()
        samples.append(time.perf_counter() - start)
        if rest:
            await asyncio.sleep(rest)
        start = time.perf_counter()
        floor()
        base.append(time.perf_counter() - start)
    return samples, base


def emit(figure: Figure) -> None:
    """Print the figure as a line of JSON, with the date and what is known of the machine."""
    line = {name: _short(value) for name, value in msgspec.structs.asdict(figure).items()}
    line["met"] = None if figure.goal is None else figure.value <= figure.goal
    line["date"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    line["machine"] = machine()
    print(msgspec.json.encode(line).decode(), flush=True)


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def machine() -> Mapping[str, Any]:
    """What the figures depend on."""
    model = ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cpu": model or platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "uid": os.getuid(),
    }


@contextlib.contextmanager
def place() -> Iterator[dict[str, Any]]:
    """A home and a workspace for one supervisor, as its arguments: gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="hermes-bench-") as folder:
        home, workspace = Path(folder) / "home", Path(folder) / "work"
        home.mkdir()
        workspace.mkdir()
        yield {"home": home, "workspace": workspace, "tool_folders": [TOOLS]}


@contextlib.asynccontextmanager
async def supervisor(**policy: Any) -> Any:
    """An AsyncSupervisor with the tools of the benchmarks, all described."""
    with place() as where:
        async with AsyncSupervisor(**where, policy=layer(policy, "bench")) as opened:
            await opened.tools()
            yield opened


def must(result: Any) -> Any:
    """The result, if it is a good one: a figure of calls that failed would be a lie."""
    if result.outcome != "ok":
        sys.exit(f"a call ended {result.outcome}: {result.error}")
    return result
