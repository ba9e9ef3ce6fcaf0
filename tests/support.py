"""What the tests of hostile behaviour share: supervisors over the hostile tools, and proofs by the kernel.

A `Holders` is a FIFO that processes inside a sandbox hold open. Its reader sees the end of file when the last of them
is dead, and not a moment before: a proof without a pid, without a sleep and across every namespace.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hermes_sandbox.policy import PolicyLayer, layer

HERE = Path(__file__).parent
HOSTILE_TOOLS = HERE / "hostile_tools"
TIERS = ("namespaces", "process")


def asked(**values: object) -> PolicyLayer:
    """A layer of policy as a caller would write it."""
    return layer(values, "test")


class Holders:
    """The processes that hold a FIFO of `folder`. `name` is what a tool is told."""

    def __init__(self, folder: Path, name: str = "held") -> None:
        self.name = name
        self.path = folder / name
        os.mkfifo(self.path, 0o600)
        owner = folder.stat()
        if os.geteuid() == 0:
            os.chown(self.path, owner.st_uid, owner.st_gid)
        self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        self.seen = b""

    def are_gone(self, within: float = 0.0) -> bool:
        """Whether somebody held it, and nobody does any more, now or after at most `within` s."""
        until = time.monotonic() + within
        while True:
            try:
                data = os.read(self._fd, 4096)
            except BlockingIOError:  # somebody still holds it
                left = until - time.monotonic()
                if left <= 0:
                    return False
                select.select([self._fd], [], [], left)
                continue
            self.seen += data
            if not data:
                return bool(self.seen)

    def wait_for(self, count: int, within: float = 20.0) -> None:
        """Until `count` processes said that they hold it."""
        until = time.monotonic() + within
        while len(self.seen) < count:
            assert time.monotonic() < until, f"{len(self.seen)} of {count} processes came"
            ready, _, _ = select.select([self._fd], [], [], 0.05)
            if ready:
                try:
                    data = os.read(self._fd, 4096)
                except BlockingIOError:
                    continue
                self.seen += data
                if not data:
                    time.sleep(0.005)  # no writer yet: an end of file is always "ready"

    def close(self) -> None:
        os.close(self._fd)
        self.path.unlink(missing_ok=True)


def holders_in(folder: Path) -> Iterator[Holders]:
    """For a fixture: holders that are closed when the test is over."""
    holders = Holders(folder)
    try:
        yield holders
    finally:
        holders.close()


def wait_until(holds: Callable[[], bool], within: float = 10.0) -> bool:
    """Whether `holds` becomes true in time, for what nothing can wake us for."""
    until = time.monotonic() + within
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


def rss(pid: int | str = "self") -> int:
    """Resident memory in bytes."""
    return _memory("VmRSS", pid)


def peak_rss(pid: int | str = "self") -> int:
    """The most resident memory since the process's start, or since `forget_peak`. Not getrusage's: that one is handed
    down by the process that started this one."""
    return _memory("VmHWM", pid)


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _memory(field: str, pid: int | str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise ProcessLookupError(pid)
