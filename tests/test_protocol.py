"""Parity of the two ends of the wire: what the worker builds as plain dicts, the supervisor reads as messages."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hermes_sandbox import protocol
from hermes_sandbox.protocol import BadMessage, decode_as, decode_frame
from hermes_sandbox.worker import wire

COST = wire.Cost(cpu_s=0.25, peak_bytes=1 << 40)
# One message of each class, with every field set to something that is not its default.
SAMPLES: list[Any] = [
    wire.Boot(
        nonce="n", pid_namespace=True, seccomp=True, cwd="/w", env={"A": "\u00e4"}, packages=["/p"], memory=1,
        memory_data=2, cpu_watch=True, tmpfs=["/tmp"], pids=3, file_size=4, open_files=5,
    ),
    wire.Describe(module="m"),
    wire.Check(module="m"),
    wire.Call(module="m", tool="t", args={"a": [None, 1.5]}, context={"task_id": "x"}, result_limit=9, timeout=5.0,
        grace=1.0, stays=True, children="keep", cpu_time=0.5),
    wire.Exec(argv=["sh", "-c", "true"], cwd="/w", env={"A": "b"}, cpu_time=2.0),
    wire.Stdin(id=1, data=b"\0\xff\n", eof=True),
    wire.Signal(id=1, signal=2),
    wire.Cancel(id=1, grace=0.5),
    wire.Bye(),
    wire.Hello(wire=1, nonce="n", python="3.9.18", uid=1000),
    wire.Output(id=1, stream="stderr", data=b"\0\xff\n", skipped=3),
    wire.Event(session_id="p", kind="exited", text="t", more=2, code=3, signal=9, timed_out=True, notify=True),
    wire.Credit(id=1, bytes=65536),
    wire.Log(level=30, name="n", message="\U0001f600"),
    COST,
    wire.CallDone(cost=COST, text="t", multimodal=msgspec.Raw(b'{"_multimodal":true}'), mark=3, leftovers=1,
        code=1, signal=9),
    wire.ExecDone(cost=COST, code=1, signal=9, leftovers=2),
    wire.DescribeDone(registrations=[{"name": "t"}], problem="p"),
    wire.ToolState(name="t", available=True, reason="r", overrides={"description": "d"}),
    wire.CheckDone(tools=[wire.ToolState(name="t", available=False)], problem="p"),
    wire.Trouble(kind="OSError", errno=2, trace="...", size=7, cost=COST, mark=1, leftovers=1),
    wire.Printed(stream="stdout", data=b"\0\xff"),
    wire.Drained(mark=4),
    wire.Spent(cpu_s=0.1, bytes=5, pids=6),
    wire.Ended(code=3, signal=11, cpu_s=1.0, peak_bytes=8, killed=2, limit="memory", observed=9),
]  # fmt: skip
MESSAGES = {c for c in vars(wire).values() if isinstance(c, type) and issubclass(c, wire.Message)} - {wire.Message}


def test_every_message_has_a_sample() -> None:
    missing = MESSAGES - {type(sample) for sample in SAMPLES}
    assert not missing, f"give SAMPLES one of each of {missing}"
    assert len(MESSAGES) == len(SAMPLES)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_a_sample_sets_every_field(sample: Any) -> None:
    for field in msgspec.structs.fields(sample):
        if field.default is not msgspec.NODEFAULT:
            assert getattr(sample, field.name) != field.default, f"{field.name} is at its default"


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_a_sample_survives_the_way(sample: Any) -> None:
    assert decode_as(type(sample), msgspec.Raw(msgspec.json.encode(sample))) == sample


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_what_the_worker_builds_is_what_we_read(sample: Any) -> None:
    """The worker's way: a dict by `wire.message`, encoded by the standard library."""
    fields = json.loads(msgspec.json.encode(sample))
    built = wire.message(type(sample), **fields)
    text = json.dumps(built, separators=(",", ":"))  # as the worker writes it: Raw compares to the letter
    assert decode_as(type(sample), msgspec.Raw(text.encode())) == sample


def test_the_worker_cannot_build_a_field_that_is_not_declared() -> None:
    with pytest.raises(TypeError, match="colour"):
        wire.message(wire.Drained, mark=1, colour="blue")


def test_every_method_has_its_message() -> None:
    known = {*protocol.REPLIES, *protocol.NOTIFICATIONS, *protocol.REPORTS, *protocol.REQUESTS.values()}
    names = {value for name, value in vars(wire).items() if name.isupper() and isinstance(value, str)}
    assert known == names


def test_the_wire_is_pinned() -> None:
    """A change of a name or code needs a new wire.VERSION, and this list."""
    assert wire.VERSION == 2
    constants = {name: value for name, value in vars(wire).items() if name.isupper() and name != "TYPE_CHECKING"}
    assert constants == {
        "VERSION": 2, "MAX_FRAME": 128 << 20, "MAX_REPORT": 8 << 20, "CHUNK": 64 << 10, "STDIN_WINDOW": 256 << 10,
        "DESCRIBE": "describe", "CHECK": "check", "CALL": "call", "EXEC": "exec",
        "STDIN": "stdin", "SIGNAL": "signal", "CANCEL": "cancel", "BYE": "bye",
        "HELLO": "hello", "OUTPUT": "output", "CREDIT": "credit", "LOG": "log", "EVENT": "event",
        "PRINTED": "printed", "DRAINED": "drained", "SPENT": "spent", "ENDED": "ended",
        "TOOL_RAISED": -32001, "BAD_RESULT": -32002, "RESULT_TOO_LARGE": -32003, "WAS_CANCELLED": -32004,
        "LOAD_FAILED": -32005, "NOT_STARTED": -32006, "METHOD_NOT_FOUND": -32601,
    }  # fmt: skip


def test_the_worker_sees_the_same_names_without_msgspec() -> None:
    """In the worker the file is `hermes_worker.wire`, where a message is only its annotations."""
    source = Path(wire.__file__).read_text(encoding="utf-8")
    space: dict[str, Any] = {"__name__": "hermes_worker.wire"}
    exec(compile(ast.parse(source), "wire.py", "exec"), space)
    for cls in MESSAGES:
        assert list(space[cls.__name__].__annotations__) == list(cls.__struct_fields__)


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b"[]", b'{"jsonrpc":"2"}', b'{"jsonrpc":"2.0","id":"1"}', b'{"jsonrpc":"2.0","method":1}', b"\xff"],
)
def test_what_is_no_envelope(line: bytes) -> None:
    with pytest.raises(BadMessage):
        decode_frame(line)
