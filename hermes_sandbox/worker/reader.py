"""What the guard of a background program does with the output: keeps it, and finds what is to be told of it."""

import errno
import os
import time

READ_SIZE = 64 << 10  # bytes
FULL_PIPE = 1 << 20  # bytes: no pipe of ours holds more
TOLD = 4000  # bytes of output in one report
MAX_LINE = 8 << 10  # bytes of a line that are kept to be searched
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
        self._overlap = max((len(pattern) for pattern in self.patterns), default=1) - 1
        self._line = b""  # that has not ended yet; of a long one the end
        self._line_matched = False
        self._told = 0  # bytes of the output that were reported
        self._next_report = time.monotonic() + interval
        self._next_match = 0.0
        self._unreported = 0  # lines that matched too soon after another
        self._last_match = b""

    def read(self, pipe):
        """Read once. Returns a line that matched and how many more did, or None; raises EOFError at the end."""
        try:
            data = os.read(pipe, READ_SIZE)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EIO:  # a terminal that nobody holds open any more
                raise
            data = b""
        if not data:
            raise EOFError
        self.rolling.add(data)
        return self._match(data) if self.patterns else None

    def _match(self, data):
        """A line counts as soon as it contains a pattern, before its end too: a prompt has none."""
        found = []
        *lines, rest = (self._line + data).split(b"\n")
        for line in lines:
            if not self._line_matched and self._matches(line):
                found.append(line)
            self._line_matched = False
        if not self._line_matched and self._matches(rest):
            found.append(rest)
            self._line_matched = True
        self._line = rest if len(rest) <= MAX_LINE else rest[-self._overlap :] if self._overlap else b""
        if not found:
            return None
        self._unreported += len(found)
        self._last_match = found[-1]
        if time.monotonic() < self._next_match:
            return None
        self._next_match = time.monotonic() + MATCH_PAUSE
        return self._report(found[0])

    def _report(self, line):
        more, self._unreported = self._unreported - 1, 0
        return line[:TOLD], more

    def _matches(self, line):
        return any(pattern in line for pattern in self.patterns)

    def due(self):
        """s until there is new output to report; None if there is none."""
        return None if self.rolling.total == self._told else max(0.0, self._next_report - time.monotonic())

    def news(self, at_once=False):
        """The end of what is new since the last report; b"" if it is too early for another, and not `at_once`."""
        total = self.rolling.total
        if total == self._told or (time.monotonic() < self._next_report and not at_once):
            return b""
        newest = self.rolling.newest()[1][-min(total - self._told, TOLD) :]
        self._told = total
        self._next_report = time.monotonic() + self.interval
        return newest

    def skip_news(self):
        """What is there counts as told."""
        self._told = self.rolling.total

    def drain(self):
        """Read what is in the pipes, without waiting. Yields the matches that are still to be reported, whatever the
        pause says: nothing comes after them."""
        for fd in self.pipes:
            os.set_blocking(fd, False)
            try:
                for _ in range(FULL_PIPE // READ_SIZE):
                    found = self.read(fd)
                    if found is not None:
                        yield found
            except EOFError:
                pass
        if self._unreported:
            yield self._report(self._last_match)
