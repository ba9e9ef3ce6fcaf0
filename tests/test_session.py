"""The session without I/O: what each message does to it, and that no bytes whatever make it raise anything but
BadMessage."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_sandbox.protocol import NOTIFICATIONS, REPORTS, BadMessage, Lines, encode_notification, encode_request
from hermes_sandbox.session import MAX_NOISE, Failed, Reply, Session, State
from hermes_sandbox.worker import wire

NONCE = "0123456789abcdef" * 2
CALL = wire.Call(module="m", tool="t", args={"a": 1}, context={"task_id": "x"}, result_limit=100, timeout=9, grace=1)
COST = {"cpu_s": 0.5, "peak_bytes": 7}


def frame(**fields: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **fields}).encode() + b"\n"


HELLO = frame(method="hello", params={"wire": 2, "nonce": NONCE, "python": "3.11.7", "uid": 1000})


def ready() -> Session:
    session = Session(NONCE)
    assert session.feed(HELLO) == [wire.Hello(2, NONCE, "3.11.7", 1000)]
    return session


def busy() -> Session:
    session = ready()
    session.request(CALL)
    return session


# Its life ---------------------------------------------------------------------------------------------------------


def test_a_request_and_its_reply() -> None:
    session = ready()
    number, data = session.request(CALL)
    sent = json.loads(data)
    assert (sent["method"], sent["id"], sent["params"]["args"]) == ("call", number, {"a": 1})
    assert session.state is State.BUSY
    [reply] = session.feed(frame(id=number, result={"cost": COST, "text": "fine"}))
    assert reply == Reply(number, wire.CallDone(cost=wire.Cost(0.5, 7), text="fine"))
    assert session.state is State.READY
    assert session.request(CALL)[0] != number


def test_a_failed_request() -> None:
    session = busy()
    data = {"kind": "ValueError", "trace": "..."}
    [failed] = session.feed(frame(id=1, error={"code": -32001, "message": "no", "data": data}))
    assert failed == Failed(1, -32001, "no", wire.Trouble(kind="ValueError", trace="..."))
    assert session.state is State.READY


def test_an_error_without_data() -> None:
    [failed] = busy().feed(frame(id=1, error={"code": -32601, "message": "no"}))
    assert failed.trouble == wire.Trouble()


def test_bytes_may_come_in_any_pieces() -> None:
    stream = b"Welcome!\n" + HELLO
    session = Session(NONCE)
    events = [event for index in range(len(stream)) for event in session.feed(stream[index : index + 1])]
    assert [type(event) for event in events] == [wire.Hello]
    assert session.noise == b"Welcome!\n"


def test_several_messages_in_one_piece() -> None:
    output = frame(method="output", params={"id": 1, "stream": "stdout", "data": "aGk="})
    log = frame(method="log", params={"level": 20, "name": "n", "message": "m"})
    events = busy().feed(output + log + frame(id=1, result={"cost": COST, "text": ""}))
    assert events[:2] == [wire.Output(1, "stdout", b"hi"), wire.Log(20, "n", "m")]
    assert isinstance(events[2], Reply)


def test_noise_is_kept_up_to_its_limit() -> None:
    session = Session(NONCE)
    for number in range(1000):
        session.feed(b"line %d " % number + b"x" * 100 + b"\n")
        session.feed_report(b"report %d\n" % number)
    assert len(session.noise) == MAX_NOISE
    assert session.noise.endswith(b"report 999\n")
    assert session.state is State.STARTING


@pytest.mark.parametrize("make", [ready, busy])
def test_a_broken_session_stays_broken(make: Any) -> None:
    session = make()
    with pytest.raises(BadMessage):
        session.feed(b"garbage\n")
    assert session.state is State.BROKEN
    assert session.feed(b"more garbage\n" + HELLO) == []
    with pytest.raises(RuntimeError):
        session.request(CALL)
    session.stop()
    session.end()
    assert session.state is State.ENDED


def test_the_end_comes_from_the_report_alone() -> None:
    session = busy()
    with pytest.raises(BadMessage):
        session.feed(frame(method="ended", params={"code": 0}))
    assert session.ended is None
    [ended] = session.feed_report(NONCE.encode() + b" " + frame(method="ended", params={"signal": 9, "cpu_s": 1.5}))
    assert session.ended == ended == wire.Ended(signal=9, cpu_s=1.5)


def test_a_report_without_the_nonce_is_noise() -> None:
    session = busy()
    assert session.feed_report(b"f" * 32 + b" " + frame(method="ended", params={"code": 0})) == []
    assert session.ended is None


@pytest.mark.parametrize("state", ["starting", "busy", "stopping", "ended"])
def test_only_a_ready_session_takes_a_request(state: str) -> None:
    session = {"starting": lambda: Session(NONCE), "busy": busy, "stopping": ready, "ended": ready}[state]()
    if state in ("stopping", "ended"):
        session.stop()
    if state == "ended":
        session.end()
    assert session.state.value == state
    with pytest.raises(RuntimeError):
        session.request(CALL)


def test_stop_and_end_may_come_twice_and_in_any_order() -> None:
    session = busy()
    session.stop()
    session.stop()
    session.end()
    session.stop()
    session.end()
    assert session.state is State.ENDED


def test_an_answer_may_come_while_it_is_being_stopped() -> None:
    session = busy()
    session.stop()
    assert len(session.feed(frame(id=1, result={"cost": COST, "text": ""}))) == 1
    assert session.state is State.STOPPING


@pytest.mark.parametrize(
    "data",
    [
        frame(id=2, result={"cost": COST}),
        frame(id=1, result={"registrations": []}),
        frame(id=True, result={"cost": COST}),
        frame(method="output", params={"id": 2, "stream": "stdout", "data": ""}),
        frame(method="printed", params={"stream": "stdout", "data": ""}),
        frame(method="call", params={}),
        frame(),
        HELLO,
        b"\n",
    ],
)
def test_what_breaks_a_busy_session(data: bytes) -> None:
    session = busy()
    with pytest.raises(BadMessage) as raised:
        session.feed(data)
    assert len(raised.value.message) < 400
    assert session.state is State.BROKEN


def test_an_error_never_repeats_what_came_at_length() -> None:
    with pytest.raises(BadMessage) as raised:
        busy().feed(frame(method="x" * 10_000, params={}))
    assert len(raised.value.message) < 400
    with pytest.raises(BadMessage) as raised:
        busy().feed(frame(id=1, result={"cost": "x" * 10_000}))
    assert len(raised.value.message) < 400


# Lines ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=50)))
def test_lines_are_the_same_however_they_are_cut(pieces: list[bytes]) -> None:
    lines = Lines(10_000)
    found = [line for piece in pieces for line in lines.feed(piece)]
    assert found == b"".join(pieces).split(b"\n")[:-1]


@given(st.lists(st.binary(min_size=1, max_size=30)), st.integers(1, 40))
def test_no_more_than_the_limit_is_kept_of_a_line(pieces: list[bytes], limit: int) -> None:
    lines = Lines(limit)
    longest = max(map(len, b"".join(pieces).split(b"\n")))
    refused = ""
    for piece in pieces:
        try:
            lines.feed(piece)
        except BadMessage as error:
            refused = error.message
            break
        assert len(lines._buffer) <= limit
    assert not refused or (longest > limit and str(limit) in refused)


# Any bytes --------------------------------------------------------------------------------------------------------

WORDS = st.sampled_from([*NOTIFICATIONS, *REPORTS, "call", "2.0", "jsonrpc", "id", "method", "params", "result", NONCE])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(max_size=8), inner, max_size=5),
    max_leaves=12,
)
FRAMES = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0")},
    optional={
        "id": st.integers(-1, 3) | JSON,
        "method": st.sampled_from([*NOTIFICATIONS, *REPORTS, "nonsense"]) | JSON,
        "params": JSON,
        "result": st.fixed_dictionaries({"cost": st.just(COST)}, optional={"text": JSON, "multimodal": JSON}) | JSON,
        "error": st.fixed_dictionaries({"code": st.integers(), "message": st.text(max_size=5)}) | JSON,
    },
)
LINES = FRAMES.map(lambda fields: json.dumps(fields).encode()) | JSON.map(lambda any_: json.dumps(any_).encode())
STREAMS = st.lists((LINES.map(lambda line: line + b"\n")) | st.binary(max_size=40) | st.just(HELLO), max_size=8)


@settings(max_examples=400, deadline=None)
@given(STREAMS, st.sampled_from([lambda: Session(NONCE), ready, busy]))
def test_no_bytes_raise_anything_but_bad_message(stream: list[bytes], make: Any) -> None:
    session = make()
    for piece in stream:
        try:
            for event in session.feed(piece):
                msgspec.json.encode(event)  # what comes out is sound: it can be shown
        except BadMessage:
            assert session.state is State.BROKEN
    session.stop()
    session.end()


@settings(max_examples=300, deadline=None)
@given(STREAMS, st.booleans())
def test_no_report_raises_anything_but_bad_message(stream: list[bytes], signed: bool) -> None:
    session = busy()
    for piece in stream:
        data = NONCE.encode() + b" " + piece if signed else piece
        try:
            session.feed_report(data)
        except BadMessage:
            assert session.state is State.BROKEN
    session.end()


@settings(max_examples=200, deadline=None)
@given(JSON)
def test_what_we_send_is_one_line(value: Any) -> None:
    params = wire.Call(module="m", tool="t", args={"value": value}, context={}, result_limit=1, timeout=9, grace=1)
    line = encode_request(1, params)
    assert line.count(b"\n") == 1
    assert encode_notification(wire.Stdin(1, b"\n\0\xff")).count(b"\n") == 1
