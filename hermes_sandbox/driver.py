"""Drives one worker: its pipes, its clock, and the ladder that ends what does not end by itself.

Theory of operation
    A `Worker` joins a `Session` (what bytes mean) with a runner's process (where bytes go). `request` sends one request
    and returns its Exchange: what the worker said, or why it did not. Whatever the tool does, it returns by the
    deadline plus the grace plus what the kernel needs to kill:

        cancel   the worker is asked to stop the request itself: TERM, then KILL for what the call started; it answers
        hang up  its stdin is closed: init kills everything inside, waits until nothing is left, and reports the end
        kill     the runner kills it from outside
        verify   `process.wait`: the kernel says that it is gone; else the exchange is not `confirmed`

    After `cancel` was answered the worker is as good as before and keeps its state. After any later step it is gone.
    The ladder is bounded, runs as a task of its own so that no cancellation can cut it short, and is safe to climb
    twice.

    Prints reach us over another pipe than the answer. A worker that printed says so with a mark; then the answer waits,
    for a bounded time, until init reports the same mark.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from hermes_sandbox.errors import RunnerFailed
from hermes_sandbox.events import Hub, Known
from hermes_sandbox.exchange import Exchange, OutputHandler, Watch
from hermes_sandbox.protocol import BadMessage
from hermes_sandbox.runners import Evidence, Process
from hermes_sandbox.session import Failed, Reply, Session, State
from hermes_sandbox.text import clean
from hermes_sandbox.worker import wire

START_PATIENCE = 30.0  # s from the start of a process to its hello; a broken sandbox says why much earlier
ANSWER_MARGIN = 0.1  # s on top of the grace in which a worker that obeyed can still say so
HANG_UP_PATIENCE = 1.0  # s for init to kill all inside and report; a storm of forks took up to 0.7
BYE_PATIENCE = 0.5  # s for a worker to leave by itself when its session is closed
DRAIN_PATIENCE = 1.0  # s for what is left in the pipes of a dead worker, and for the last prints of an answer
MAX_LOG_NAME, MAX_LOG = 200, 8000  # characters
STALLED = 0.2  # s without a byte after which half a frame counts as the worker's last word

log = logging.getLogger("hermes_sandbox.driver")


class Worker:
    def __init__(self, process: Process, session: Session, task_id: str = "", background: Known | None = None) -> None:
        self.process = process
        self.session = session
        self.background = background or Known(Hub(), task_id)
        self.task_id = task_id
        self.exchange: Exchange | None = None
        self.counted = Evidence()  # the kernel's counts at the last look; at the end, what they ended at
        self.cpu_seen = 0.0
        self._last_bytes = 0.0
        self._drained = 0  # the greatest mark that init has reported
        self._drained_more = asyncio.Event()
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stopping: asyncio.Task[bool] | None = None
        self._open_pipes = 2
        self._pipes_ended = asyncio.Event()

    @property
    def usable(self) -> bool:
        return self.session.state is State.READY

    async def start(self, payload: bytes) -> None:
        """Send the bootstrap and wait for hello. All or nothing: a failure ends the process before it leaves.

        Raises RunnerFailed; what the runner's program said is then in `noise`."""
        try:
            self.process.attach(self._on_stdout, self._on_report)
            self.process.send(payload)
            async with asyncio.timeout(START_PATIENCE):
                await self._started
            await self.process.confine()
            if not self.usable:
                raise RunnerFailed("the worker ended while it was started")
        except TimeoutError:
            await self.stop()
            raise RunnerFailed(f"the worker did not say hello within {START_PATIENCE:g} s") from None
        except BaseException:
            await self.stop()
            raise

    @property
    def noise(self) -> str:
        return self.session.noise.decode("utf-8", "replace").strip()

    # What comes ---------------------------------------------------------------------------------------------------

    def _on_stdout(self, data: bytes) -> None:
        self._last_bytes = time.monotonic()
        try:
            for event in self.session.feed(data) if data else ():
                self._handle(event)
        except BadMessage as error:
            self._broken(error)
        if not data:
            self._pipe_ended()

    def _on_report(self, data: bytes) -> None:
        try:
            for event in self.session.feed_report(data) if data else ():
                self._handle_report(event)
        except BadMessage as error:
            self._broken(error)
        if not data:
            self._pipe_ended()

    def _broken(self, error: BadMessage) -> None:
        if self.exchange is not None:
            self.exchange.end("protocol", error.message)
        if not self._started.done():
            self._started.set_exception(error)
        elif self.exchange is None:
            self._stop_idle()

    def _pipe_ended(self) -> None:
        self._open_pipes -= 1
        if self._open_pipes == 0:
            self._pipes_ended.set()
        if not self._started.done():
            self._started.set_exception(RunnerFailed("the worker ended before it said hello"))
        if self.exchange is not None:
            self.exchange.end("died")  # or a tool closed its end of the pipe and lives on: the ladder finds out
        else:
            self._stop_idle()

    def _stop_idle(self) -> None:
        """It died or broke while nobody used it: end it now, so that the task's next call starts another."""
        if self._stopping is None and self.session.state is not State.STARTING:
            self._stopping = asyncio.ensure_future(self._stop())

    def _handle(self, event: Any) -> None:
        exchange = self.exchange
        if isinstance(event, Reply | Failed):
            if exchange is not None and event.id == exchange.number:
                exchange.reply = event.value if isinstance(event, Reply) else None
                exchange.failed = event if isinstance(event, Failed) else None
                exchange.finish()
        elif isinstance(event, wire.Hello):
            if not self._started.done():
                self._started.set_result(None)
        elif isinstance(event, wire.Output) and exchange is not None:
            exchange.take(event.stream, event.data, event.skipped)
            self._forward(exchange, event)
        elif isinstance(event, wire.Event):
            if not self.background.take(event):
                raise BadMessage("the worker floods its supervisor with events")
        elif isinstance(event, wire.Credit) and exchange is not None:
            exchange.give_credit(event.bytes)
        elif isinstance(event, wire.Log) and exchange is not None:
            if not exchange.take_log(len(event.message)):
                return
            # Named after our tool, not after the record: a logger lives for ever, and the tool picks that name.
            logger = logging.getLogger(f"hermes_sandbox.tool.{exchange.tool}")
            level = min(
                max(event.level // 10 * 10, logging.DEBUG), logging.CRITICAL
            )  # a logger keeps each level it saw
            logger.log(level, "%s: %s", clean(event.name, MAX_LOG_NAME), clean(event.message, MAX_LOG))

    def _handle_report(self, event: Any) -> None:
        if isinstance(event, wire.Printed) and self.exchange is not None:
            self.exchange.take(event.stream, event.data)
        elif isinstance(event, wire.Drained):
            self._drained = max(self._drained, event.mark)
            self._drained_more.set()
        elif isinstance(event, wire.Spent):
            self.cpu_seen = max(event.cpu_s, self.cpu_seen)
            if self.exchange is not None:
                self.exchange.spent(self.cpu_seen)

    def _forward(self, exchange: Exchange, event: wire.Output) -> None:
        """Hand output to whoever asked for it, one piece after the other. While a slow reader is busy nothing more is
        read from this worker: its pipe fills, and its command waits."""
        if exchange.on_output is not None:
            exchange.unread.append(event)
            if exchange.reader is None:
                self._hand_over(exchange, exchange.on_output)

    def _hand_over(self, exchange: Exchange, on_output: OutputHandler) -> None:
        while exchange.unread:
            event = exchange.unread.popleft()
            try:
                waiting = on_output(event.stream, event.data)
            except Exception as error:  # the caller's own: it ends this call, and must not reach the loop
                exchange.unread.clear()
                exchange.end("cancelled", f"its output cannot be passed on: {error}")
                return
            if inspect.isawaitable(waiting):
                self.process.pause()
                exchange.reader = asyncio.ensure_future(waiting)
                exchange.reader.add_done_callback(lambda done: self._read_on(exchange, on_output, done))
                return

    def _read_on(self, exchange: Exchange, on_output: OutputHandler, task: asyncio.Future[None]) -> None:
        exchange.reader = None
        if exchange is not self.exchange:  # it is over: nobody wants the rest
            exchange.unread.clear()
        if not task.cancelled() and (error := task.exception()) is not None:
            exchange.unread.clear()
            exchange.end("cancelled", f"its output cannot be passed on: {error}")
        self._hand_over(exchange, on_output)
        if exchange.reader is None:
            self.process.resume()

    # What goes ----------------------------------------------------------------------------------------------------

    async def request(
        self,
        params: Any,
        watch: Watch,
        *,
        on_output: OutputHandler | None = None,
        stdin: AsyncIterator[bytes] | None = None,
    ) -> Exchange:
        """Send a request and see it to its end. Never raises for what the worker does; CancelledError passes through
        when the ladder has been climbed."""
        number, data = self.session.request(params)
        exchange = self.exchange = Exchange(number, watch, getattr(params, "tool", ""), on_output, self.cpu_seen)
        loop = asyncio.get_running_loop()
        deadline = loop.call_later(watch.timeout, exchange.end, "timeout")
        helpers: list[asyncio.Task[None]] = []
        if watch.idle_timeout is not None:
            helpers.append(loop.create_task(self._watch_idle(exchange, watch.idle_timeout)))
        if watch.cpu_time is not None:
            helpers.append(loop.create_task(self._watch_cpu(exchange)))
        if stdin is not None:
            helpers.append(loop.create_task(self._pump(exchange, stdin)))
        self.process.send(data)
        try:
            await asyncio.shield(exchange.over)
        except asyncio.CancelledError:
            exchange.end("cancelled")
            await self._finish(exchange)
            self.exchange = None
            raise
        finally:
            deadline.cancel()
            for helper in helpers:
                helper.cancel()
        if exchange.cause != "answered" or _has_mark(exchange) or exchange.reader is not None:
            await self._finish(exchange)
        exchange.wall_s = time.monotonic() - exchange.begun
        self.exchange = None
        return exchange

    def cancel(self) -> None:
        """The caller wants the running request to end; `request` then returns with cause "cancelled". A second time: at
        once, without the grace."""
        if self.exchange is not None and self.exchange.cause == "answered":
            self.exchange.end("cancelled")
        elif self.exchange is not None:
            self.exchange.finish()

    def send_signal(self, number: int) -> None:
        """Pass a signal to the command of a running `exec`."""
        if self.exchange is not None:
            self.process.send(self.session.notification(wire.Signal(self.exchange.number, number)))

    async def _pump(self, exchange: Exchange, stdin: AsyncIterator[bytes]) -> None:
        """Pass stdin on, never more than the window ahead of what the command took."""
        try:
            async for block in stdin:
                for start in range(0, len(block), wire.CHUNK):
                    piece = block[start : start + wire.CHUNK]
                    while exchange.credit < len(piece):
                        exchange.credit_came.clear()
                        await exchange.credit_came.wait()
                    exchange.credit -= len(piece)
                    self.process.send(self.session.notification(wire.Stdin(exchange.number, piece)))
        except Exception as error:  # the caller's own
            exchange.end("cancelled", f"its stdin cannot be read: {error}")
            return
        self.process.send(self.session.notification(wire.Stdin(exchange.number, eof=True)))

    async def _watch_idle(self, exchange: Exchange, seconds: float) -> None:
        while (left := exchange.last_sign + seconds - time.monotonic()) > 0:  # noqa: ASYNC110 - waits for the clock
            await asyncio.sleep(left)
        exchange.end("idle_timeout")

    async def _watch_cpu(self, exchange: Exchange) -> None:
        """Where a cgroup counts the tree's CPU time nobody reports it: look, now and then."""
        if self.process.mechanisms.get("cpu_time", "").startswith("cgroup"):
            exchange.cpu_before = self.process.evidence().cpu_s or 0.0
            while True:
                await asyncio.sleep(0.05)
                exchange.spent(self.process.evidence().cpu_s or 0.0)

    # How it ends --------------------------------------------------------------------------------------------------

    async def _finish(self, exchange: Exchange) -> None:
        """Climb to the end, however often the caller is cancelled meanwhile; the ladder is bounded."""
        climb = asyncio.ensure_future(self._climb(exchange))
        cancelled = False
        while not climb.done():
            try:
                await asyncio.shield(climb)
            except asyncio.CancelledError:
                cancelled = True
        climb.result()
        if cancelled:
            raise asyncio.CancelledError

    async def _climb(self, exchange: Exchange) -> None:
        stalled = time.monotonic() - self._last_bytes > STALLED and exchange.reader is None
        exchange.half_a_frame = self.session.unfinished and (stalled or exchange.cause == "died")
        if exchange.cause not in ("answered", "died", "protocol") and not exchange.answered():
            over = exchange.again()
            grace = exchange.watch.grace
            self.process.send(self.session.notification(wire.Cancel(exchange.number, grace)))
            await asyncio.wait([over], timeout=grace + ANSWER_MARGIN)
        if exchange.answered():
            await self._last_prints(exchange)
        else:
            exchange.lost = True
            exchange.confirmed = await self.stop()

    async def _last_prints(self, exchange: Exchange) -> None:
        """Wait for what the request printed, which comes over another pipe, and for a reader that is still busy."""
        if mark := _has_mark(exchange):
            try:
                async with asyncio.timeout(DRAIN_PATIENCE if exchange.cause == "answered" else ANSWER_MARGIN):
                    while self._drained < mark:
                        self._drained_more.clear()
                        await self._drained_more.wait()
            except TimeoutError:
                log.info("a worker did not confirm its prints within %g s", DRAIN_PATIENCE)
        until = exchange.begun + exchange.watch.timeout
        while exchange.reader is not None and exchange.cause == "answered" and time.monotonic() < until:
            await asyncio.wait([exchange.reader], timeout=until - time.monotonic())

    async def stop(self) -> bool:
        """End the worker by the last steps of the ladder. True when the kernel confirmed it."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        return await asyncio.shield(self._stopping)

    async def close(self) -> bool:
        """Let the worker leave by itself, and end it if it does not. True when the kernel confirmed it. A request that
        runs on it ends `cancelled`."""
        if self.exchange is not None:
            self.exchange.end("cancelled", "its task was closed")
        if self._stopping is None and self.usable:
            self.process.send(self.session.notification(wire.Bye()))
            self.session.stop()
            await self.process.wait(BYE_PATIENCE)
        return await self.stop()

    async def _stop(self) -> bool:
        self.session.stop()
        self.process.close_stdin()
        self.process.resume()
        gone = await self.process.wait(HANG_UP_PATIENCE) or await self.process.kill()
        try:
            async with asyncio.timeout(DRAIN_PATIENCE):
                await self._pipes_ended.wait()
        except TimeoutError:
            log.info("a worker's pipes did not end within %g s of its death", DRAIN_PATIENCE)
        self.counted = self.process.evidence()
        self.session.end()
        self.background.ended()
        if gone:
            await self.process.release()
        return gone


def _has_mark(exchange: Exchange) -> int:
    if exchange.failed is not None:
        return exchange.failed.trouble.mark
    return getattr(exchange.reply, "mark", 0)
