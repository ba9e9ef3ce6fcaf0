"""Drives a bad worker (bad_worker.py) with the real driver; `python -m tests.zoo MODE SECONDS` measures it.

The module's own command runs one mode in a process of its own, and prints as JSON how that went and by how many bytes
this process grew at most: there is no other way to know what a supervisor needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from hermes_sandbox import bootstrap, driver, process
from hermes_sandbox.driver import Worker
from hermes_sandbox.errors import SandboxError
from hermes_sandbox.exchange import Exchange, Watch
from hermes_sandbox.runners import Evidence
from hermes_sandbox.session import Session
from hermes_sandbox.worker import wire
from tests.support import forget_peak, peak_rss, rss

SCRIPT = Path(__file__).with_name("bad_worker.py")
CALL = wire.Call(module="m", tool="t", args={}, context={}, result_limit=1 << 20, timeout=9, grace=1)
EXEC = wire.Exec(argv=["true"], cwd="/", env={})


class ZooProcess(process.LocalProcess):
    """A bad worker on this machine; a whole runner's process, without limits or isolation."""

    tier, notes, same_python = "process", (), True
    mechanisms: dict[str, str] = {}

    def __init__(self, mode: str) -> None:
        argv = [sys.executable, "-I", "-S", str(SCRIPT), mode]
        super().__init__(process.start(argv), has_inner=False)
        self.boot = wire.Boot(nonce="0123456789abcdef" * 2)
        self.released = False

    async def confine(self) -> None:
        pass

    def evidence(self) -> Evidence:
        return Evidence()

    async def release(self) -> None:
        self.close_all()
        self.released = True


async def start(mode: str) -> Worker:
    """Raises what Worker.start raises."""
    bad = ZooProcess(mode)
    worker = Worker(bad, Session(bad.boot.nonce))
    await worker.start(bootstrap.payload(bad.boot, {}, same_python=True))
    return worker


@contextlib.asynccontextmanager
async def started(mode: str) -> AsyncIterator[Worker]:
    worker = await start(mode)
    try:
        yield worker
    finally:
        assert await worker.close(), "nothing confirmed that the worker is dead"


async def endless_input() -> AsyncIterator[bytes]:
    """1 GB of it."""
    for _ in range(1024):
        yield bytes(1 << 20)


async def ask(mode: str, timeout: float = 20.0) -> Exchange:
    """One request to a worker of this mode."""
    params = EXEC if mode in ("endless_output", "endless_credit") else CALL
    stdin = endless_input() if mode == "endless_credit" else None
    async with started(mode) as worker:
        return await worker.request(params, Watch(timeout=timeout, grace=0.1), stdin=stdin)


async def measure(mode: str, timeout: float) -> dict[str, object]:
    async with started("obedient") as worker:  # what any worker costs is there before
        await worker.request(CALL, Watch(timeout=5, grace=0.1))
    forget_peak()
    before = rss()
    told: dict[str, object] = {}
    try:
        exchange = await ask(mode, timeout)
        told.update(cause=exchange.cause, detail=exchange.detail, wall_s=exchange.wall_s)
    except SandboxError as error:
        told.update(cause=error.outcome, detail=error.message)
    return {**told, "grown": peak_rss() - before}


if __name__ == "__main__":
    driver.START_PATIENCE = 3.0
    print(json.dumps(asyncio.run(measure(sys.argv[1], float(sys.argv[2])))))
