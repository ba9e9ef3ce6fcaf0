"""The zoo: a worker in many bad ways, each a named mode. `python bad_worker.py MODE`, with a supervisor at its pipes.

It reads the bootstrap like a real one, but runs nothing of it: each mode is a function here, which speaks the wire or
mis-speaks it. It plays init too, whose reports go to fd 2. Standard library only, and no file of the package: what is
tested must not come from what tests it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

CHUNK = b"x" * (1 << 20)
COST = {"cpu_s": 0.0, "peak_bytes": 0}
MODES: dict[str, Callable[[Peer], object]] = {}


def mode(function: Callable[[Peer], object]) -> Callable[[Peer], object]:
    MODES[function.__name__] = function
    return function


class Peer:
    """The supervisor, as a worker sees it."""

    def __init__(self) -> None:
        size, rest = int(read(10)), int(read(10))
        read(size)
        self.nonce = json.loads(read(rest))["nonce"]
        self.buffer = b""

    def raw(self, data: bytes, fd: int = 1) -> None:
        while data:
            data = data[os.write(fd, data) :]

    def send(self, **frame: Any) -> None:
        self.raw(json.dumps({"jsonrpc": "2.0", **frame}).encode() + b"\n")

    def hello(self, **changes: Any) -> None:
        params = {"wire": 2, "nonce": self.nonce, "python": "3.11.0", "uid": 0, **changes}
        self.send(method="hello", params=params)

    def request(self) -> int:
        """The id of the next request; waits for it."""
        while True:
            while b"\n" not in self.buffer:
                self.buffer += os.read(0, 1 << 16) or leave()
            line, _, self.buffer = self.buffer.partition(b"\n")
            frame = json.loads(line)
            if frame["method"] == "bye":
                leave()
            if "id" in frame:
                number: int = frame["id"]
                return number

    def answer(self, number: int, text: object = "fine", **more: Any) -> None:
        self.send(id=number, result={"cost": COST, "text": text, **more})

    def report(self, method: str, **params: Any) -> None:
        line = json.dumps({"jsonrpc": "2.0", "method": method, "params": params})
        self.raw(f"{self.nonce} {line}\n".encode(), 2)

    def stay(self) -> NoReturn:
        """Until the supervisor hangs up."""
        while os.read(0, 1 << 16):
            pass
        leave()


def read(size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += os.read(0, size - len(data)) or leave()
    return data


def leave() -> NoReturn:
    os._exit(0)


# Before hello -----------------------------------------------------------------------------------------------------


@mode
def silent(peer: Peer) -> None:
    peer.stay()


@mode
def exits(peer: Peer) -> None:
    os._exit(3)


@mode
def complains_and_exits(peer: Peer) -> None:
    peer.raw(b"bwrap: setting up uid map: Permission denied\n", 2)
    os._exit(1)


@mode
def other_version(peer: Peer) -> None:
    peer.hello(wire=99)
    peer.stay()


@mode
def other_nonce(peer: Peer) -> None:
    peer.hello(nonce="0" * 32)
    peer.stay()


@mode
def other_nonce_but_knows_ours(peer: Peer) -> None:
    peer.hello(nonce="0" * 32, python=peer.nonce + " ")
    peer.stay()


@mode
def reply_before_hello(peer: Peer) -> None:
    peer.send(id=1, result={"nonce": peer.nonce + " "})
    peer.stay()


@mode
def noise_before_hello(peer: Peer) -> None:
    peer.raw(bytes(range(256)) * 100 + b"\nLast login: today\n{not json\n\xff\xfe\n")
    peer.raw(b"Warning: Permanently added a host\n\x00\x01\x02\n", 2)
    obedient(peer)


@mode
def endless_line_before_hello(peer: Peer) -> None:
    for _ in range(1024):
        peer.raw(CHUNK)
    peer.stay()


@mode
def endless_lines_before_hello(peer: Peer) -> None:
    while True:
        peer.raw(CHUNK + b"\n")


@mode
def endless_stderr_before_hello(peer: Peer) -> None:
    while True:
        peer.raw(CHUNK + b"\n", 2)


# It keeps to the wire, only just ----------------------------------------------------------------------------------


@mode
def obedient(peer: Peer) -> None:
    peer.hello()
    while True:
        peer.answer(peer.request())


@mode
def byte_by_byte(peer: Peer) -> None:
    peer.hello()
    data = json.dumps({"jsonrpc": "2.0", "id": peer.request(), "result": {"cost": COST, "text": "fine"}}).encode()
    for byte in data + b"\n":
        peer.raw(bytes([byte]))
    peer.stay()


@mode
def unknown_fields(peer: Peer) -> None:
    """A later version may say more."""
    peer.hello(colour="blue")
    peer.answer(peer.request(), colour="blue")
    peer.stay()


@mode
def carriage_returns(peer: Peer) -> None:
    peer.hello()
    data = json.dumps({"jsonrpc": "2.0", "id": peer.request(), "result": {"cost": COST, "text": "fine"}})
    peer.raw(data.encode() + b"\r\n")
    peer.stay()


@mode
def mark_never_drained(peer: Peer) -> None:
    peer.hello()
    peer.answer(peer.request(), mark=7)
    peer.stay()


@mode
def answers_after_the_deadline(peer: Peer) -> None:
    peer.hello()
    number = peer.request()
    os.read(0, 1 << 16)  # the cancel
    peer.answer(number)
    peer.stay()


# What no worker may say -------------------------------------------------------------------------------------------


@mode
def foreign_id(peer: Peer) -> None:
    peer.hello()
    peer.answer(peer.request() + 1)
    peer.stay()


@mode
def answers_twice(peer: Peer) -> None:
    peer.hello()
    number = peer.request()
    peer.answer(number)
    peer.answer(number)
    peer.stay()


def says(name: str, data: bytes) -> None:
    """A mode that says hello, waits for a request, writes `data` with the request's id in it, and stays."""

    def speak(peer: Peer) -> None:
        peer.hello()
        number = peer.request()
        peer.raw(data.replace(b"$ID", b"%d" % number).replace(b"$NONCE", peer.nonce.encode()))
        peer.stay()

    MODES[name] = speak


_RESULT = b'{"jsonrpc":"2.0","id":$ID,"result":{"cost":{"cpu_s":0,"peak_bytes":0},'
says("nan", _RESULT + b'"text":NaN}}\n')
says("nan_cost", b'{"jsonrpc":"2.0","id":$ID,"result":{"cost":{"cpu_s":NaN,"peak_bytes":0}}}\n')
says("infinity", b'{"jsonrpc":"2.0","id":Infinity,"result":{}}\n')
says("lone_surrogate", _RESULT + b'"text":"\\ud800"}}\n')
says("raw_surrogate", _RESULT + b'"text":"\xed\xa0\x80"}}\n')
says("surrogate_key", _RESULT + b'"multimodal":{"\\udfff":1}}}\n')
says("bad_utf8", _RESULT + b'"text":"\xff"}}\n')
says("brackets", b"[" * 5000 + b"\n")
says("nested_result", _RESULT + b'"multimodal":{"a":' + b"[" * 5000 + b"]" * 5000 + b"}}}\n")
says("nested_objects", b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"\n")
says("huge_id", b'{"jsonrpc":"2.0","id":' + b"9" * 100_000 + b',"result":{}}\n')
says("huge_number", _RESULT + b'"mark":' + b"9" * 100_000 + b"}}\n")
says("float_id", b'{"jsonrpc":"2.0","id":1.5,"result":{}}\n')
says("text_id", b'{"jsonrpc":"2.0","id":"$ID","result":{}}\n')
says("other_jsonrpc", b'{"jsonrpc":"1.0","id":$ID,"result":{}}\n')
says("no_result", b'{"jsonrpc":"2.0","id":$ID}\n')
says("no_cost", b'{"jsonrpc":"2.0","id":$ID,"result":{"text":"x"}}\n')
says("text_is_number", _RESULT + b'"text":7}}\n')
says("answer_to_another_method", b'{"jsonrpc":"2.0","id":$ID,"result":{"registrations":[]}}\n')
says("array", b'[{"jsonrpc":"2.0"}]\n')
says("empty_line", b"\n")
says("zeros", bytes(1000) + b"\n")
says("words", b"Traceback (most recent call last):\n")
says("half_a_character", _RESULT + b'"text":"\xe4\xb8"}}\n')
says("unknown_method", b'{"jsonrpc":"2.0","method":"elevate","params":{}}\n')
says("request_to_us", b'{"jsonrpc":"2.0","id":$ID,"method":"call","params":{}}\n')
says("hello_again", b'{"jsonrpc":"2.0","method":"hello","params":{"wire":2,"nonce":"$NONCE","python":"3","uid":0}}\n')
says("reports_on_stdout", b'{"jsonrpc":"2.0","method":"ended","params":{"code":0}}\n')
says("output_of_another", b'{"jsonrpc":"2.0","method":"output","params":{"id":999,"stream":"stdout","data":""}}\n')
says("credit_of_another", b'{"jsonrpc":"2.0","method":"credit","params":{"id":999,"bytes":1}}\n')
says("bad_base64", b'{"jsonrpc":"2.0","method":"output","params":{"id":$ID,"stream":"stdout","data":"%%%"}}\n')
says("unknown_error", b'{"jsonrpc":"2.0","id":$ID,"error":{"code":-1,"message":"?"}}\n')
says("error_without_code", b'{"jsonrpc":"2.0","id":$ID,"error":{"message":"?"}}\n')
says("half_a_frame", b'{"jsonrpc":"2.0","id":$ID,"resu')


@mode
def half_a_frame_and_exit(peer: Peer) -> None:
    peer.hello()
    peer.raw(b'{"jsonrpc":"2.0","id":%d,"resu' % peer.request())
    os._exit(0)


@mode
def garbage_report(peer: Peer) -> None:
    peer.hello()
    peer.request()
    peer.raw(peer.nonce.encode() + b" {]\n", 2)
    peer.stay()


@mode
def unknown_report(peer: Peer) -> None:
    peer.hello()
    peer.request()
    peer.report("hello", wire=2, nonce=peer.nonce, python="3", uid=0)
    peer.stay()


# How it ends ------------------------------------------------------------------------------------------------------


@mode
def closes_its_pipe(peer: Peer) -> None:
    peer.hello()
    peer.request()
    os.close(1)
    peer.stay()


@mode
def dies_after_hello(peer: Peer) -> None:
    peer.hello()
    os._exit(0)


@mode
def is_killed(peer: Peer) -> None:
    peer.hello()
    peer.request()
    os.kill(os.getpid(), signal.SIGKILL)


@mode
def tells_of_a_segfault(peer: Peer) -> None:
    peer.hello()
    peer.request()
    peer.report("ended", code=None, signal=11)
    os._exit(0)


@mode
def deaf(peer: Peer) -> None:
    """To cancel, to TERM and to a hang-up; with a child that is as deaf."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    peer.hello()
    peer.request()
    os.fork()
    while True:
        time.sleep(1000)


# How it fills memory ----------------------------------------------------------------------------------------------


@mode
def gigabyte_frame(peer: Peer) -> None:
    peer.hello()
    peer.raw(b'{"jsonrpc":"2.0","id":%d,"result":{"text":"' % peer.request())
    for _ in range(1024):
        peer.raw(CHUNK)
    peer.raw(b'"}}\n')
    peer.stay()


@mode
def gigabyte_of_newlines(peer: Peer) -> None:
    peer.hello()
    peer.request()
    for _ in range(1024):
        peer.raw(b"\n" * (1 << 20))
    peer.stay()


@mode
def endless_stderr(peer: Peer) -> None:
    peer.hello()
    peer.request()
    while True:
        peer.raw(CHUNK + b"\n", 2)


@mode
def endless_prints(peer: Peer) -> None:
    peer.hello()
    peer.request()
    while True:
        peer.report("printed", stream="stdout", data="eHh4" * 4096)


@mode
def endless_marks(peer: Peer) -> None:
    """A tool can have any mark confirmed: it is in the process that asks for them."""
    peer.hello()
    peer.request()
    number = 0
    while True:
        lines = [
            b'%s {"jsonrpc":"2.0","method":"drained","params":{"mark":%d}}\n' % (peer.nonce.encode(), number + step)
            for step in range(1000)
        ]
        number += 1000
        peer.raw(b"".join(lines), 2)


@mode
def endless_logs(peer: Peer) -> None:
    """With a logger of its own for each."""
    peer.hello()
    peer.request()
    number = 0
    while True:
        number += 1
        peer.send(method="log", params={"level": 10, "name": f"{number}.{number % 10}", "message": "x"})


@mode
def endless_output(peer: Peer) -> None:
    peer.hello()
    number = peer.request()
    while True:
        peer.send(method="output", params={"id": number, "stream": f"{time.time()}", "data": "eHh4" * 4096})


@mode
def endless_credit(peer: Peer) -> None:
    """It asks for all of stdin at once and takes none of it."""
    peer.hello()
    peer.send(method="credit", params={"id": peer.request(), "bytes": 1 << 60})
    while True:
        time.sleep(1000)


if __name__ == "__main__":
    MODES[sys.argv[1]](Peer())
