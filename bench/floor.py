"""Floors: the least that the job costs on this machine, measured beside it.

For a warm call that is a blocking pipe to a worker of the standard library's json, with msgspec on our side; for a cold
one, bubblewrap with the very options that a sandbox gets, and an interpreter that does nothing. Both ends of every pair
are pinned alike, ours to one core and the worker to another, because where the scheduler puts them makes a factor of
five.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

import msgspec

from hermes_sandbox import bubblewrap
from hermes_sandbox.process import PIPE_SIZE, descendants

PIPE_IS = "blocking pipe, msgspec here, json there"
CORES = sorted(os.sched_getaffinity(0))
BWRAP_IS = "bwrap with the same options, python3 -I -S -c pass"

# Reads a request a line and answers with four keys, as the tools of the benchmarks do.
WORKER = """\
import json, sys
def echo(args):
    return dict(text=args["text"], length=len(args["text"]), task="default", ok=True)
def occasion(args):
    lines = ["%04d %s" % (number, args["text"].ljust(95)) for number in range(40)]
    return dict(text="\\n".join(lines), length=len(lines), task="default", ok=True)
answer = dict(echo=echo, occasion=occasion)[sys.argv[1]]
for line in sys.stdin.buffer:
    request = json.loads(line)
    reply = {"id": request["id"], "result": answer(request["args"])}
    sys.stdout.buffer.write(json.dumps(reply).encode() + b"\\n")
    sys.stdout.buffer.flush()
"""


class Pipe:
    """The worker above, and one round trip to it."""

    def __init__(self, tool: str, arguments: dict[str, Any]) -> None:
        command = [interpreter(), "-I", "-S", "-c", WORKER, tool]
        self._worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pipesize=PIPE_SIZE)
        self._arguments = arguments
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        self._worker.stdin.close()
        self._worker.wait()
        self._worker.stdout.close()

    def __call__(self) -> Any:
        stdin, stdout = self._worker.stdin, self._worker.stdout
        assert stdin is not None
        assert stdout is not None
        self._number += 1
        line = msgspec.json.encode({"id": self._number, "args": self._arguments}) + b"\n"
        writer = None
        if len(line) > PIPE_SIZE // 2:  # more than a pipe holds: the worker could wait for us while we wait for it
            writer = threading.Thread(target=_write, args=(stdin, line))
            writer.start()
        else:
            _write(stdin, line)
        answer = msgspec.json.decode(stdout.readline())
        if writer is not None:
            writer.join()
        return answer


def _write(stream: Any, line: bytes) -> None:
    stream.write(line)
    stream.flush()


class Sandbox:
    """One run of bubblewrap and an interpreter that runs `code`, waited for. The view is that of a sandbox with
    `workspace`."""

    def __init__(self, workspace: Path, code: str = "pass") -> None:
        prefix = Path(sys.base_prefix)
        readable = {} if prefix.is_relative_to("/usr") else {prefix: prefix}
        self._view = bubblewrap.View(
            uid=os.getuid(),
            gid=os.getgid(),
            network=False,
            cwd=workspace,
            readable=readable,
            writable={workspace: workspace},
        )
        self._program = bubblewrap.find()
        self._command = [interpreter(), "-I", "-S", "-c", code]

    def __call__(self) -> None:
        options, fds = bubblewrap.arguments(self._view)
        try:
            argv = [self._program, *options, *self._command]
            subprocess.run(argv, pass_fds=fds, stdin=subprocess.DEVNULL, env={}, check=True)
        finally:
            for fd in fds:
                os.close(fd)


def interpreter() -> str:
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def pin(*, together: bool = False) -> None:
    """Put this process on one core, and all that it has started on another, or on the same if `together`."""
    os.sched_setaffinity(0, {CORES[0]})
    for pid in descendants(os.getpid()):
        os.sched_setaffinity(pid, {CORES[0 if together else -1]})


def unpin() -> None:
    os.sched_setaffinity(0, CORES)
