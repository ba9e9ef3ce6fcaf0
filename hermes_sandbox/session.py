"""One live worker, without I/O: what its bytes mean, which requests it owes an answer to, and how it may change.

Theory of operation
    A session is born with its worker's process (STARTING), can take requests once the worker said hello (READY), has
    one request at a time (BUSY), is being ended (STOPPING), and ends when its process is gone (ENDED). `driver.Worker`
    owns the pipes and the clock; it hands over bytes and gets events back: the messages of `wire`, and Reply and Failed
    for requests. Bytes come over two pipes: the worker's own, where everything is a claim, and init's report, which a
    tool cannot write. So how a worker ended is only ever taken from the report.

    A message that does not fit raises BadMessage and leaves the session BROKEN: nothing is read from it any more, and
    all that is left to do is to end it.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from hermes_sandbox.protocol import (
    NOTIFICATIONS,
    REPLIES,
    REPORTS,
    REQUESTS,
    BadMessage,
    Lines,
    decode_as,
    decode_frame,
    encode_notification,
    encode_request,
)
from hermes_sandbox.text import clean
from hermes_sandbox.worker import wire

MAX_NOISE = 8 << 10  # bytes of a runner's own complaints that are kept to explain a failed start


MAX_MESSAGE, MAX_TRACE = 2000, 8000  # characters of what a worker says of a failure
BESIDE_RESULT = 1 << 20  # bytes of a frame beside what it is for
ESCAPED = 6  # bytes that one byte of text may take in JSON


class State(enum.Enum):
    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    STOPPING = "stopping"
    BROKEN = "broken"
    ENDED = "ended"


_MOVES: dict[State, frozenset[State]] = {
    State.STARTING: frozenset({State.READY, State.STOPPING, State.BROKEN, State.ENDED}),
    State.READY: frozenset({State.BUSY, State.STOPPING, State.BROKEN, State.ENDED}),
    State.BUSY: frozenset({State.READY, State.STOPPING, State.BROKEN, State.ENDED}),
    State.STOPPING: frozenset({State.BROKEN, State.ENDED}),
    State.BROKEN: frozenset({State.STOPPING, State.ENDED}),
    State.ENDED: frozenset(),
}


class Reply(msgspec.Struct, frozen=True):
    """The answer to a request: `value` is the reply message of its method."""

    id: int
    value: Any


class Failed(msgspec.Struct, frozen=True):
    """The worker's word that a request failed. `code` is one of wire's."""

    id: int
    code: int
    message: str
    trouble: wire.Trouble


class Session:
    def __init__(self, nonce: str) -> None:
        self.state = State.STARTING
        self.hello: wire.Hello | None = None
        self.ended: wire.Ended | None = None
        self.noise = b""
        self._nonce = nonce
        self._prefix = nonce.encode() + b" "
        self._lines = Lines()
        self._report_lines = Lines()
        self._number = 0
        self._pending: tuple[int, str] | None = None  # id and method of the request that is running

    def __repr__(self) -> str:
        return f"<Session {self.state.value}>"

    def _move(self, state: State) -> None:
        if state is not self.state:
            if state not in _MOVES[self.state]:
                raise RuntimeError(f"a session cannot go from {self.state.value} to {state.value}")
            self.state = state

    def request(self, params: Any) -> tuple[int, bytes]:
        """The id of a new request and the bytes to send for it. Only a READY session takes one."""
        if self.state is not State.READY:
            raise RuntimeError(f"a {self.state.value} session takes no request")
        self._number += 1
        data = encode_request(self._number, params)
        self._pending = (self._number, REQUESTS[type(params)])
        self._move(State.BUSY)
        self._lines.limit = _frame_limit(params)
        return self._number, data

    @property
    def unfinished(self) -> bool:
        """Whether the worker has sent half a frame."""
        return self._lines.unfinished

    def notification(self, params: Any) -> bytes:
        return encode_notification(params)

    def feed(self, data: bytes) -> list[Any]:
        """Events out of the worker's own pipe. Raises BadMessage, once; then the session is BROKEN."""
        if self.state in (State.BROKEN, State.ENDED):
            return []
        try:
            return [event for line in self._lines.feed(data) if (event := self._event(line)) is not None]
        except BadMessage:
            self._move(State.BROKEN)
            raise

    def _event(self, line: bytes) -> Any:
        if self.state is State.STARTING and not self._is_hello(line):
            self._keep_noise(line)
            return None
        frame = decode_frame(line)
        if frame.id is not None:
            return self._answer(frame.id, frame.result, frame.error)
        cls = NOTIFICATIONS.get(frame.method or "")
        if cls is None:
            raise BadMessage("the worker sent a message with a method that it may not send")
        message = decode_as(cls, frame.params)
        if isinstance(message, wire.Hello):
            self._greet(message)
        elif isinstance(message, wire.Output | wire.Credit) and not self._is_current(message.id):
            raise BadMessage("the worker sent output of a request that is not running")
        return message

    def _is_hello(self, line: bytes) -> bool:
        """Before hello anything may come: the message of the day of a login shell, a container's banner."""
        return line.startswith(b"{") and self._prefix.strip() in line

    def _greet(self, hello: wire.Hello) -> None:
        if self.state is not State.STARTING:
            raise BadMessage("the worker said hello twice")
        if hello.nonce != self._nonce:
            raise BadMessage("the hello is not this worker's: its nonce is another")
        if hello.wire != wire.VERSION:
            raise BadMessage(f"the worker speaks wire version {hello.wire}, not {wire.VERSION}")
        self.hello = hello
        self._move(State.READY)

    def _is_current(self, number: int) -> bool:
        return self._pending is not None and self._pending[0] == number

    def _answer(self, number: int, result: msgspec.Raw, error: Any) -> Reply | Failed:
        if self._pending is None or not self._is_current(number):
            raise BadMessage("the worker answered a request that nobody made, or answered twice")
        method = self._pending[1]
        answer: Reply | Failed
        if error is not None:
            trouble = decode_as(wire.Trouble, error.data) if bytes(error.data) else wire.Trouble()
            trouble = msgspec.structs.replace(trouble, kind=clean(trouble.kind, 200), trace=trouble.trace[-MAX_TRACE:])
            answer = Failed(number, error.code, clean(error.message, MAX_MESSAGE), trouble)
        else:
            answer = Reply(number, decode_as(REPLIES[method], result))
        self._pending = None
        if self.state is State.BUSY:
            self._move(State.READY)
        return answer

    def feed_report(self, data: bytes) -> list[Any]:
        """Events out of init's report. Lines without the nonce are a runner's own words and kept as noise."""
        events: list[Any] = []
        try:
            for line in self._report_lines.feed(data):
                if not line.startswith(self._prefix):
                    self._keep_noise(line)
                    continue
                frame = decode_frame(line[len(self._prefix) :])
                cls = REPORTS.get(frame.method or "")
                if cls is None:
                    raise BadMessage("init sent a report with a method that it may not send")
                message = decode_as(cls, frame.params)
                if isinstance(message, wire.Ended):
                    self.ended = message
                events.append(message)
        except BadMessage:
            if self.state is not State.ENDED:
                self._move(State.BROKEN)
            raise
        return events

    def _keep_noise(self, line: bytes) -> None:
        self.noise = (self.noise + line + b"\n")[-MAX_NOISE:]

    def stop(self) -> None:
        """No request is taken any more. Safe to call at any time."""
        if self.state is not State.ENDED:
            self._move(State.STOPPING)

    def end(self) -> None:
        """The process is gone."""
        self._pending = None
        self._move(State.ENDED)


def _frame_limit(params: Any) -> int:
    """How long a line may be that a worker sends while this request runs."""
    if isinstance(params, wire.Call):
        return min(wire.MAX_FRAME, ESCAPED * params.result_limit + BESIDE_RESULT)
    return wire.MAX_REPORT if isinstance(params, wire.Describe | wire.Check) else BESIDE_RESULT
