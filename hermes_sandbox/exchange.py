"""One request to a worker: its limits, what came of it so far, and how it went."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec

from hermes_sandbox.session import Failed
from hermes_sandbox.worker import wire

MAX_RECORDS = 1000  # log records of one request that are passed on
TAIL = 16 << 10  # bytes of each stream that a result keeps

Cause = Literal["answered", "timeout", "idle_timeout", "cancelled", "output", "cpu_time", "died", "protocol"]
# Gets the stream's name and the bytes. What it returns is awaited, and until then nothing more is read.
OutputHandler = Callable[[str, bytes], Awaitable[None] | None]


class Tail:
    """The last bytes of a stream, and how many there were."""

    def __init__(self) -> None:
        self.kept = b""
        self.total = 0

    def add(self, data: bytes, skipped: int = 0) -> None:
        """`skipped` bytes came before `data` and are not here."""
        self.total += len(data) + skipped
        self.kept = (self.kept + data[-TAIL:])[-TAIL:]

    @property
    def text(self) -> str:
        return self.kept.decode("utf-8", "replace")

    @property
    def truncated(self) -> bool:
        return self.total > len(self.kept)


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one request. Times in s, `output` in bytes over both streams; None is no limit."""

    timeout: float
    grace: float
    idle_timeout: float | None = None
    cpu_time: float | None = None
    output: int | None = None


class Exchange:
    """`cause` says why it is over; "answered" means `reply` or `failed` is the worker's word. `lost`: the worker went
    with it. `confirmed`: the kernel confirmed that worker's end."""

    def __init__(
        self, number: int, watch: Watch, tool: str, on_output: OutputHandler | None = None, cpu_before: float = 0.0
    ) -> None:
        self.number = number
        self.tool = tool
        self.watch = watch
        self.on_output = on_output
        self.cpu_before = cpu_before
        self.cpu_s = 0.0
        self.stdout, self.stderr = Tail(), Tail()
        self.logged = self.records = 0
        self.reply: Any = None
        self.failed: Failed | None = None
        self.cause: Cause = "answered"
        self.detail = ""
        self.lost = False
        self.confirmed = True
        self.half_a_frame = False  # the worker's last word, when it was lost
        self.begun = time.monotonic()
        self.last_sign = self.begun
        self.wall_s = 0.0
        self.credit = wire.STDIN_WINDOW
        self.credit_came = asyncio.Event()
        self.unread: deque[wire.Output] = deque()  # pieces that `on_output` has yet to get
        self.reader: asyncio.Future[None] | None = None  # that it is busy with the last one
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def finish(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def end(self, cause: Cause, detail: str = "") -> None:
        """It is over for a reason other than an answer. The first reason stays; an answer that is there wins. While the
        ladder is climbed only the worker's own end matters: then no answer to the cancel will come."""
        if self.cause == "answered" and not self.over.done():
            self.cause, self.detail = cause, detail
            self.finish()
        elif cause in ("died", "protocol"):
            self.finish()

    def answered(self) -> bool:
        return self.reply is not None or self.failed is not None

    def again(self) -> asyncio.Future[None]:
        """A new future for what comes after the first end: the answer to a cancel."""
        self.over = asyncio.get_running_loop().create_future()
        return self.over

    def give_credit(self, count: int) -> None:
        """The command took `count` bytes of its stdin. More than were sent is a lie that would fill our memory."""
        if count < 0 or self.credit + count > wire.STDIN_WINDOW:
            self.end("protocol", "the worker took more of its stdin than it was sent")
            return
        self.credit += count
        self.credit_came.set()

    def tail(self, stream: str) -> Tail:
        return self.stdout if stream == "stdout" else self.stderr

    def take(self, stream: str, data: bytes, skipped: int = 0) -> None:
        """Account for output: its tail, the idle clock, the limit."""
        self.last_sign = time.monotonic()
        self.tail(stream).add(data, skipped)
        self._check_output()

    def take_log(self, size: int) -> bool:
        """Account for a log record, which is output too. False: drop it, there were too many."""
        self.logged += size
        self.records += 1
        self._check_output()
        return self.records <= MAX_RECORDS

    def _check_output(self) -> None:
        limit = self.watch.output
        if limit is not None and self.output_bytes > limit:
            self.end("output")

    @property
    def output_bytes(self) -> int:
        """All that was printed and logged."""
        return self.stdout.total + self.stderr.total + self.logged

    def spent(self, cpu_s: float) -> None:
        """The tree has used `cpu_s` seconds of CPU since the worker's start."""
        self.cpu_s = cpu_s - self.cpu_before
        if self.watch.cpu_time is not None and self.cpu_s > self.watch.cpu_time:
            self.end("cpu_time")
