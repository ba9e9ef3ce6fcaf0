"""The command line's own stdin and stdout for `exec`, without ever blocking the loop that watches the deadlines.

A read or a write that waits is done on a daemon thread of its own: whoever is on the other side may never come back,
and neither the deadline nor our own end may wait for them.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

T = TypeVar("T")
BLOCK = 64 << 10  # bytes


async def on_daemon_thread(function: Callable[..., T], *arguments: Any) -> T:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_it: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            set_it(value)

    def run() -> None:
        try:
            outcome, value = future.set_result, function(*arguments)
        except BaseException as error:
            outcome, value = future.set_exception, error  # type: ignore[assignment]
        try:
            loop.call_soon_threadsafe(settle, outcome, value)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    threading.Thread(target=run, daemon=True).start()
    return await future


async def write_out(stream: str, data: bytes) -> None:
    """Pass a piece of the command's output on to our own stdout or stderr."""
    await on_daemon_thread(_write_all, 1 if stream == "stdout" else 2, data)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


async def read_in() -> AsyncIterator[bytes]:
    """Our own stdin in blocks, to its end. A stdin that is closed is empty."""
    while True:
        try:
            block = await on_daemon_thread(os.read, 0, BLOCK)
        except OSError:
            return
        if not block:
            return
        yield block
