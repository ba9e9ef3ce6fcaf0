"""News of background programs, from workers to whoever asked for them.

Each subscription has a queue of its own, of a bounded length: who reads too slowly loses the oldest events, and the
next one says how many. What an event says is its worker's word. A worker that ends takes its background programs with
it, and then says nothing any more: what was known to run there is told to have ended here.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal, Protocol, Self

import msgspec

from hermes_sandbox.text import clean
from hermes_sandbox.worker import wire

MAX_QUEUED = 1000  # events of one subscription
MAX_TEXT = 8000  # characters of one event
SHELL_SIGNAL = 128  # as shells count
MAX_EVENTS = 2000  # of one worker in a second, others are dropped; 64 programs make some 200
MAX_OVER = 5  # s in a row that a worker may be over that
_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_KNOWN = 256  # background programs of one worker that are known here

Kind = Literal["started", "output", "match", "exited"]


class ProcessEvent(msgspec.Struct, frozen=True, kw_only=True):
    """`text`: the command (started), new output, or the line that matched; `more`: further lines that matched.
    `exit_code` of an exit, 128 + N for `signal` N, None where it is not known; `timed_out`: its life was over;
    `notify`: whoever started it wants to be told. `at`: seconds since the epoch; `lost`: events before this one that
    were dropped, since nobody read them."""

    task_id: str
    session_id: str
    kind: Kind
    at: float
    text: str = ""
    more: int = 0
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    notify: bool = False
    lost: int = 0


class Running(msgspec.Struct, frozen=True):
    """A background program that is known to run."""

    session_id: str
    command: str
    started: float


class Known:
    """The background programs of one worker. `changed` is called when one starts or ends."""

    def __init__(self, hub: Hub, task_id: str, changed: Callable[[], None] = lambda: None) -> None:
        self._hub = hub
        self._task_id = task_id
        self._changed = changed
        self.running: dict[str, Running] = {}
        self.used = False  # something ran there
        self._second = self._events = self._over = 0

    def _within_budget(self) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            # What honest programs said while we were stopped comes at once, but in one second.
            self._over = self._over + 1 if self._events > MAX_EVENTS and second == self._second + 1 else 0
            self._second, self._events = second, 0
        self._events += 1
        return self._events <= MAX_EVENTS

    def take(self, event: wire.Event) -> bool:
        """False: the worker says more than any honest one would, and goes on with that."""
        if not self._within_budget():
            return self._over < MAX_OVER
        text, name = clean(event.text, MAX_TEXT), event.session_id
        if not _SESSION_ID.fullmatch(name):
            return True  # it would be shown as it is
        self.used = True
        if event.kind == "started" and len(self.running) < MAX_KNOWN:
            self.running[name] = Running(name, text[:200], time.time())
            self._changed()
        elif event.kind == "exited":
            self.running.pop(name, None)
            self._changed()
        self._tell(
            name,
            event.kind,
            text=text,
            more=event.more,
            exit_code=event.code if event.signal is None else SHELL_SIGNAL + event.signal,
            signal=event.signal,
            timed_out=event.timed_out,
            notify=event.notify,
        )
        return True

    def ended(self) -> None:
        """The worker is dead, and with it all that ran there."""
        for name in list(self.running):
            del self.running[name]
            self._tell(name, "exited", text="it ended with its worker")

    def _tell(self, name: str, kind: Kind, **fields: object) -> None:
        event = {"task_id": self._task_id, "session_id": name, "kind": kind, "at": time.time(), **fields}
        self._hub.publish(msgspec.convert(event, ProcessEvent))


class Queue:
    """The events of one subscription that nobody has taken yet."""

    def __init__(self) -> None:
        self._events: deque[ProcessEvent] = deque()
        self._lost = 0

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: ProcessEvent) -> None:
        if len(self._events) >= MAX_QUEUED:
            self._events.popleft()
            self._lost += 1
        self._events.append(event)

    def take(self) -> ProcessEvent:
        event, lost = self._events.popleft(), self._lost
        self._lost = 0
        return msgspec.structs.replace(event, lost=lost) if lost else event


class Subscriber(Protocol):
    def put(self, event: ProcessEvent) -> None: ...
    def close(self) -> None: ...


class Hub:
    """Hands each event to all who subscribed."""

    def __init__(self) -> None:
        self._subscribers: list[Subscriber] = []
        self._closed = False

    def add(self, subscriber: Subscriber) -> None:
        if self._closed:
            subscriber.close()
        else:
            self._subscribers.append(subscriber)

    def drop(self, subscriber: Subscriber) -> None:
        if subscriber in self._subscribers:
            self._subscribers.remove(subscriber)

    def publish(self, event: ProcessEvent) -> None:
        for subscriber in tuple(self._subscribers):  # one may be closed on another thread meanwhile
            subscriber.put(event)

    def close(self) -> None:
        self._closed = True
        while self._subscribers:
            self._subscribers.pop().close()


class Events:
    """One subscription: an asynchronous iterator. It ends when it, or its supervisor, is closed and all is taken."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._queue = Queue()
        self._more = asyncio.Event()
        self._closed = False
        hub.add(self)

    def put(self, event: ProcessEvent) -> None:
        self._queue.put(event)
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
        return self._queue.take()


class SyncEvents:
    """One subscription for a thread that is not the hub's: an iterator with the same end."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._queue = Queue()
        self._changed = threading.Condition()
        self._closed = False
        hub.add(self)

    def put(self, event: ProcessEvent) -> None:
        with self._changed:
            self._queue.put(event)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._hub.drop(self)

    def get(self, timeout: float | None = None) -> ProcessEvent | None:
        """The next event; None if there is none within `timeout` s, or none will come any more."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._queue) or self._closed, timeout)
            return self._queue.take() if self._queue else None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ProcessEvent:
        event = self.get()
        if event is None:
            raise StopIteration
        return event
