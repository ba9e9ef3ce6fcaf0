"""The supervisor's side of the wire: the only file that decodes what came from a worker.

Every byte is hostile. Whatever does not fit ends in `BadMessage`, whatever the bytes are: no other exception leaves
this file, and no more is kept of an unfinished line than the frame limit.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

from hermes_sandbox.errors import ProtocolError
from hermes_sandbox.worker import wire

T = TypeVar("T")

# What a reply to each request holds, and what each notification carries.
REPLIES: dict[str, type[Any]] = {
    wire.DESCRIBE: wire.DescribeDone,
    wire.CHECK: wire.CheckDone,
    wire.CALL: wire.CallDone,
    wire.EXEC: wire.ExecDone,
}
NOTIFICATIONS: dict[str, type[Any]] = {
    wire.HELLO: wire.Hello,
    wire.OUTPUT: wire.Output,
    wire.CREDIT: wire.Credit,
    wire.LOG: wire.Log,
    wire.EVENT: wire.Event,
}
REPORTS: dict[str, type[Any]] = {
    wire.PRINTED: wire.Printed,
    wire.DRAINED: wire.Drained,
    wire.SPENT: wire.Spent,
    wire.ENDED: wire.Ended,
}
REQUESTS: dict[type[Any], str] = {
    wire.Describe: wire.DESCRIBE,
    wire.Check: wire.CHECK,
    wire.Call: wire.CALL,
    wire.Exec: wire.EXEC,
    wire.Stdin: wire.STDIN,
    wire.Signal: wire.SIGNAL,
    wire.Cancel: wire.CANCEL,
    wire.Bye: wire.BYE,
}


# Messages in which a worker may put any JSON: its parts take many times their bytes once they are decoded.
FREE_FORM = (wire.DescribeDone, wire.CheckDone)
MAX_PARTS = 500_000


class BadMessage(ProtocolError):
    """The worker's bytes are not the protocol. Its message is safe to show: it never repeats what came at length."""


class Error(msgspec.Struct, frozen=True):
    code: int
    message: str
    data: msgspec.Raw = msgspec.Raw()


class Frame(msgspec.Struct, frozen=True):
    """The JSON-RPC envelope. `params`, `result` and `data` stay undecoded until the method is known."""

    jsonrpc: Literal["2.0"]
    id: int | None = None
    method: str | None = None
    params: msgspec.Raw = msgspec.Raw()
    result: msgspec.Raw = msgspec.Raw()
    error: Error | None = None


_frame_decoder = msgspec.json.Decoder(Frame)
_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}
_any_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


def decode_frame(line: bytes) -> Frame:
    """One line as an envelope. Raises BadMessage."""
    return _decode(_frame_decoder, line)


def decode_as(cls: type[T], raw: msgspec.Raw) -> T:
    """The params, result or data of a frame as the message `cls`. Raises BadMessage."""
    if cls in FREE_FORM:
        check_parts(raw)
    decoder = _decoders.get(cls)
    if decoder is None:
        decoder = _decoders[cls] = msgspec.json.Decoder(cls)
    decoded: T = _decode(decoder, raw)
    return decoded


def check_parts(raw: msgspec.Raw) -> None:
    """Refuse JSON of more than MAX_PARTS parts, before it is decoded. Raises BadMessage."""
    data = bytes(raw)
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MAX_PARTS:
        raise BadMessage(f"the worker sent a frame of more than {MAX_PARTS} parts")


def decode_json(raw: msgspec.Raw) -> Any:
    """Any JSON. Raises BadMessage."""
    check_parts(raw)
    return _decode(_any_decoder, raw)


def _decode(decoder: msgspec.json.Decoder[T], data: bytes | msgspec.Raw) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError) as error:
        reason = str(error)[:200] or type(error).__name__
        raise BadMessage(f"the worker sent a frame that does not fit: {reason}") from None


def encode_request(number: int, params: Any) -> bytes:
    """A request of `params`' method, as one line. Raises msgspec's errors for params that have no JSON."""
    frame = {"jsonrpc": "2.0", "id": number, "method": REQUESTS[type(params)], "params": params}
    return _encoder.encode(frame) + b"\n"


def encode_notification(params: Any) -> bytes:
    return _encoder.encode({"jsonrpc": "2.0", "method": REQUESTS[type(params)], "params": params}) + b"\n"


class Lines:
    """Splits a stream into lines. Keeps at most `limit` bytes of a line that has no end yet; then BadMessage."""

    def __init__(self, limit: int = wire.MAX_FRAME) -> None:
        self.limit = limit
        self._buffer = bytearray()

    @property
    def unfinished(self) -> bool:
        """Whether a line has begun and not ended."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their newlines."""
        if not self._buffer and data.endswith(b"\n") and len(data) <= self.limit:
            return data[:-1].split(b"\n")
        first, newline, rest = data.partition(b"\n")
        self._grow(first)
        if not newline:
            return []
        lines = [bytes(self._buffer)]
        self._buffer = bytearray()
        *whole, unfinished = rest.split(b"\n")
        lines += whole
        self._grow(unfinished)
        return lines

    def _grow(self, data: bytes) -> None:
        if len(self._buffer) + len(data) > self.limit:
            self._buffer = bytearray()
            raise BadMessage(f"the worker sent a line of more than {self.limit} bytes")
        self._buffer += data
