"""What the guard of a background program does with the output: keeps it, and finds what is to be told of it."""

import errno
import os
import time

READ_SIZE = 64 << 10  # bytes
FULL_PIPE = 1 << 20  # bytes: no pipe of ours holds more
TOLD = 4000  # bytes of output in one report
MAX_LINE = 8 << 10  # bytes of a line that are searched for a pattern; the rest of a longer one counts as the next
MATCH_PAUSE = 1.0  # s between two reports of matches; what matches meanwhile is counted


class Reader:
    """`interval`: s between two reports of new output; `patterns`: texts that a line may contain; `at_once`: else the
    worker reads the pipes until it says `read`."""

    def __init__(self, pipes, rolling, interval, patterns=(), at_once=True):
        self.pipes = pipes
        self.rolling = rolling
        self.interval = interval
        self.patterns = [pattern.encode("utf-8", "replace") for pattern in patterns]
        self.at_once = at_once
        self._line = b""
        self._told = 0  # bytes of the output that were reported
        self._next_report = time.monotonic() + interval
        self._next_match = 0.0
        self._unreported = 0  # lines that matched too soon after another

    def read(self, pipe):
        """Read once. Returns a line that matched, or None, and how many more did; raises EOFError at the end."""
        try:
            data = os.read(pipe, READ_SIZE)
        except BlockingIOError:
            return None, 0
        except OSError as error:
            if error.errno != errno.EIO:  # a terminal that nobody holds open any more
                raise
            data = b""
        if not data:
            raise EOFError
        self.rolling.add(data)
        return self._match(data) if self.patterns else (None, 0)

    def _match(self, data):
        *lines, self._line = (self._line + data).split(b"\n")
        if len(self._line) > MAX_LINE:
            lines.append(self._line)
            self._line = b""
        found = [line for line in lines if any(pattern in line for pattern in self.patterns)]
        if not found:
            return None, 0
        if time.monotonic() < self._next_match:
            self._unreported += len(found)
            return None, 0
        self._next_match = time.monotonic() + MATCH_PAUSE
        more, self._unreported = self._unreported + len(found) - 1, 0
        return found[0][:TOLD], more

    def due(self):
        """s until there is new output to report; None if there is none."""
        return None if self.rolling.total == self._told else max(0.0, self._next_report - time.monotonic())

    def news(self):
        """The end of what is new since the last report; b"" if it is too early for another."""
        total = self.rolling.total
        if time.monotonic() < self._next_report:
            return b""
        newest = self.rolling.newest()[1][-min(total - self._told, TOLD) :]
        self._told = total
        self._next_report = time.monotonic() + self.interval
        return newest

    def drain(self):
        """What is in the pipes, without waiting."""
        for fd in self.pipes:
            os.set_blocking(fd, False)
            try:
                for _ in range(FULL_PIPE // READ_SIZE):
                    self.read(fd)
            except EOFError:
                pass
