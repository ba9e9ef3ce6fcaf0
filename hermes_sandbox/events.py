"""News of background programs, from workers to whoever asked for them.

Each subscription has a queue of its own, of a bounded length: who reads too slowly loses the oldest events, and the
next one says how many. What an event says is its worker's word. A worker that ends takes its background programs with
it, and then says nothing any more: what was known to run there is told to have ended here.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Literal, Self

import msgspec

from hermes_sandbox.text import clean
from hermes_sandbox.worker import wire

MAX_QUEUED = 1000  # events of one subscription
MAX_TEXT = 8000  # characters of one event
MAX_KNOWN = 256  # background programs of one worker that are known here

Kind = Literal["started", "output", "match", "exited"]


class ProcessEvent(msgspec.Struct, frozen=True, kw_only=True):
    """`text`: the command (started), new output, or the line that matched; `more`: further lines that matched.
    `exit_code` or `signal` of an exit, neither where it is not known; `notify`: whoever started it wants to be told.
    `at`: seconds since the epoch; `lost`: events before this one that were dropped, since nobody read them."""

    task_id: str
    session_id: str
    kind: Kind
    at: float
    text: str = ""
    more: int = 0
    exit_code: int | None = None
    signal: int | None = None
    notify: bool = False
    lost: int = 0


class Running(msgspec.Struct, frozen=True):
    """A background program that is known to run."""

    session_id: str
    command: str
    started: float


class Known:
    """The background programs of one worker."""

    def __init__(self, hub: Hub, task_id: str) -> None:
        self._hub = hub
        self._task_id = task_id
        self.running: dict[str, Running] = {}

    def take(self, event: wire.Event) -> None:
        text = clean(event.text, MAX_TEXT)
        name = clean(event.session_id, 64)
        if event.kind == "started" and len(self.running) < MAX_KNOWN:
            self.running[name] = Running(name, text[:200], time.time())
        elif event.kind == "exited":
            self.running.pop(name, None)
        self._tell(
            name,
            event.kind,
            text=text,
            more=event.more,
            exit_code=event.code,
            signal=event.signal,
            notify=event.notify,
        )

    def ended(self) -> None:
        """The worker is dead, and with it all that ran there."""
        for name in list(self.running):
            del self.running[name]
            self._tell(name, "exited", text="it ended with its worker")

    def _tell(self, name: str, kind: Kind, **fields: object) -> None:
        event = {"task_id": self._task_id, "session_id": name, "kind": kind, "at": time.time(), **fields}
        self._hub.publish(msgspec.convert(event, ProcessEvent))


class Hub:
    def __init__(self) -> None:
        self._subscriptions: list[Events] = []

    def subscribe(self) -> Events:
        events = Events(self)
        self._subscriptions.append(events)
        return events

    def drop(self, events: Events) -> None:
        if events in self._subscriptions:
            self._subscriptions.remove(events)

    def publish(self, event: ProcessEvent) -> None:
        for events in self._subscriptions:
            events.put(event)

    def close(self) -> None:
        for events in list(self._subscriptions):
            events.close()


class Events:
    """One subscription: an asynchronous iterator that ends when it, or its supervisor, is closed."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._queue: deque[ProcessEvent] = deque()
        self._lost = 0
        self._more = asyncio.Event()
        self._closed = False

    def put(self, event: ProcessEvent) -> None:
        if len(self._queue) >= MAX_QUEUED:
            self._queue.popleft()
            self._lost += 1
        self._queue.append(event)
        self._more.set()

    def close(self) -> None:
        self._closed = True
        self._hub.drop(self)
        self._more.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ProcessEvent:
        while not self._queue:
            if self._closed:
                raise StopAsyncIteration
            self._more.clear()
            await self._more.wait()
        event, lost = self._queue.popleft(), self._lost
        self._lost = 0
        return msgspec.structs.replace(event, lost=lost) if lost else event
