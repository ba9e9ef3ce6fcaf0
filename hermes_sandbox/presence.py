"""Who is at work on this machine: each supervisor of ours says so in a file of the runtime folder, and `ps` reads them.

A file is named after its supervisor's process, so that a later one can tell whether that still lives, and sweep it away
if not. It is written shortly after something changed, not at each change, and never by a call itself; what it says of
background programs is their workers' word. A file that cannot be written, or read, is left out: it is for information.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from hermes_sandbox.errors import Refused
from hermes_sandbox.events import Running
from hermes_sandbox.files import read_whole, write_whole
from hermes_sandbox.home import runtime_dir
from hermes_sandbox.process import is_orphaned, owner_prefix

KIND = "supervisor"
PAUSE = 0.2  # s from a change to the file
MAX_FILE = 4 << 20  # bytes


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that is alive. `pid` is its first process on this machine; `started` in s since the epoch."""

    pid: int
    runner: str
    tier: str
    task_id: str
    tools: str
    started: float
    background: list[Running] = []


class SupervisorRow(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    workers: list[WorkerRow]


class Presence:
    """Keeps one supervisor's file. Belongs to its event loop."""

    def __init__(self, rows: Callable[[], list[WorkerRow]]) -> None:
        self._rows = rows
        self._path: Path | None = None
        self._timer: asyncio.TimerHandle | None = None

    def changed(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PAUSE, self._write)

    def _write(self) -> None:
        self._timer = None
        with contextlib.suppress(OSError, Refused):
            if self._path is None:
                self._path = runtime_dir() / f"{owner_prefix(KIND)}{os.urandom(4).hex()}.json"
            write_whole(self._path, msgspec.json.encode(SupervisorRow(pid=os.getpid(), workers=self._rows())))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()


def supervisors() -> list[SupervisorRow]:
    """Those that live and have a worker. Raises Refused where there is no runtime folder of ours."""
    found = []
    for path in sorted(runtime_dir().glob(f"{KIND}-*.json")):
        if not is_orphaned(path.stem):
            with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeError):
                found.append(msgspec.json.decode(read_whole(path, MAX_FILE), type=SupervisorRow))
    return found
