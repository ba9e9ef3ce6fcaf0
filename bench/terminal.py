"""A warm `terminal` call, and one in the background with its end."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator

import msgspec
from measure import CALLS, WARM_UP, Figure, in_turns, must, place, timed

from hermes_sandbox import AsyncSupervisor

BASH_IS = "subprocess.run: bash -c true"


def terminal() -> Iterator[Figure]:
    """The goal is two shells and 5 ms: the state comes back before the command, and is written down after it."""
    for shell in ("bash", "sh"):
        samples, base = asyncio.run(_warm({"command": "true", "shell": shell}))
        goal = (lambda bash: 2 * bash + 5) if shell == "bash" else (lambda _bash: None)
        yield timed(f"terminal.true.{shell}", samples, base, BASH_IS, goal)
    samples, base = asyncio.run(_killed())
    yield timed("terminal.background.start_and_kill", samples, base, BASH_IS)


def bash() -> None:
    subprocess.run(["bash", "-c", "true"], check=True)


async def _warm(arguments: dict[str, object]) -> tuple[list[float], list[float]]:
    with place() as where:
        async with AsyncSupervisor(home=where["home"], workspace=where["workspace"]) as opened:

            async def ours() -> None:
                must(await opened.call("terminal", arguments))

            must(await opened.call("terminal", {"command": "cd /tmp; f() { :; }; alias a=b; export X=1"}))
            await in_turns(WARM_UP, ours, bash)
            return await in_turns(CALLS, ours, bash)


async def _killed() -> tuple[list[float], list[float]]:
    with place() as where:
        async with AsyncSupervisor(home=where["home"], workspace=where["workspace"]) as opened:

            async def ours() -> None:
                started = must(await opened.call("terminal", {"command": "sleep 1000", "background": True}))
                name = msgspec.json.decode(started.result)["session_id"]
                must(await opened.call("process", {"action": "kill", "session_id": name}))

            await in_turns(3, ours, bash)
            return await in_turns(CALLS // 4, ours, bash)
