"""What is kept of a stream that may be endless: its first bytes and its last, in memory that a fork shares.

A guard (guard.py) writes what its program prints; the worker reads it whenever it is asked to, without asking the
guard, who may be stopped or busy. A counter that is odd while a write is going on tells the reader to look again.
"""

import mmap
import time

HEADER = 16  # bytes: the counter, and how many bytes there were in all
TRIES = 100  # looks of a reader at a stream that is being written; then it takes what is there


class Rolling:
    """The first `head` bytes and the last `tail` bytes; what lies between is counted and dropped."""

    def __init__(self, head, tail):
        self.head = head
        self.tail = tail
        self.memory = mmap.mmap(-1, HEADER + head + tail)

    @property
    def total(self):
        return int.from_bytes(self.memory[8:HEADER], "little")

    def _step(self):
        count = int.from_bytes(self.memory[:8], "little") + 1
        self.memory[:8] = count.to_bytes(8, "little")

    def add(self, data):
        self._step()
        position = self.total
        total = position + len(data)
        room = self.head - position
        if room > 0:
            first = data[:room]
            self.memory[HEADER + position : HEADER + position + len(first)] = first
            data, position = data[room:], position + len(first)
        if len(data) > self.tail:
            position += len(data) - self.tail
            data = data[-self.tail :]
        while data:
            at = (position - self.head) % self.tail
            piece = data[: self.tail - at]
            begin = HEADER + self.head + at
            self.memory[begin : begin + len(piece)] = piece
            data, position = data[len(piece) :], position + len(piece)
        self.memory[8:HEADER] = total.to_bytes(8, "little")
        self._step()

    def read(self):
        """The kept bytes as (first, omitted, last): `omitted` bytes lie between the two."""
        for _ in range(TRIES):
            before = self.memory[:8]
            found = self._read()
            if before == self.memory[:8] and before[0] % 2 == 0:
                return found
            time.sleep(0.0002)
        return self._read()

    def _read(self):
        total = self.total
        first = self.memory[HEADER : HEADER + min(total, self.head)]
        length = min(max(total - self.head, 0), self.tail)
        begin = HEADER + self.head
        at = (total - length - self.head) % self.tail if length else 0
        last = self.memory[begin + at : begin + min(at + length, self.tail)]
        last += self.memory[begin : begin + length - len(last)]
        return first, total - len(first) - length, last

    def newest(self):
        """The unbroken end of the stream: its offset in the stream, and its bytes."""
        first, omitted, last = self.read()
        return (0, first + last) if not omitted else (len(first) + omitted, last)

    def text(self, head, tail):
        """The first `head` and the last `tail` bytes as text, with a line between them that says what is missing."""
        first, omitted, last = self.read()
        if not omitted and len(first) + len(last) <= head + tail:
            return (first + last).decode("utf-8", "replace")
        begin, end = first[:head], (first + last)[-tail:] if not omitted else last[-tail:]
        left_out = len(first) + omitted + len(last) - len(begin) - len(end)
        marker = "\n[... %d bytes left out ...]\n" % left_out
        return begin.decode("utf-8", "replace") + marker + end.decode("utf-8", "replace")

    def close(self):
        self.memory.close()
