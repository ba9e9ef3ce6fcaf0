"""`re` as an engine of search_files: for machines without ripgrep, and for the patterns that ripgrep does not know.

A file is read a line at a time, so memory is bounded by MAX_CHARACTERS, whatever is in it.
"""

from __future__ import annotations

import collections
import io
import os
import re
import warnings

from tools._textfile import Unusable, mark_of, open_regular

MAX_CHARACTERS = 16 << 20  # of a line; a file with a longer one is taken for binary


class _Binary(Exception):
    """The file is none to search."""


class PythonEngine:
    """Searches files below `root`, by paths relative to it."""

    name = "re"

    def __init__(self, pattern, root):
        self.root = root
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what a later Python may take a pattern for
                self.search = re.compile(pattern).search
        except (re.error, RecursionError, OverflowError) as error:
            raise Unusable("the pattern %r is no regular expression: %s" % (pattern[:200], error)) from None

    def count(self, names):
        """[(path, number of matching lines)] of the files that have any, in the order of `names`."""
        counts = ((name, self._count(name)) for name in names)
        return [(name, count) for name, count in counts if count]

    def _count(self, name):
        try:
            return sum(1 for line in _lines(os.path.join(self.root, name)) if self.search(line))
        except (_Binary, Unusable, OSError):
            return 0

    def hits(self, chosen, context):
        """For each (path, first, last) of chosen, the matching lines of these numbers: (path, line number, text, lines
        before, lines after)."""
        for name, first, last in chosen:
            try:
                for number, text, before, after in self._hits(name, first, last, context):
                    yield name, number, text, before, after
            except (_Binary, Unusable, OSError):
                continue  # it is not what it was a moment ago

    def _hits(self, name, first, last, context):
        waiting = []  # hits that lack lines after them
        before = collections.deque(maxlen=context)
        seen = 0
        for number, line in enumerate(_lines(os.path.join(self.root, name)), 1):
            for hit in waiting:
                hit[3].append(line)
            while waiting and len(waiting[0][3]) >= context:
                yield waiting.pop(0)
            if seen == last and not waiting:
                return
            if seen < last and self.search(line):
                seen += 1
                if seen > first and context:
                    waiting.append((number, line, list(before), []))
                elif seen > first:
                    yield number, line, [], []
            before.append(line)
        yield from waiting


def _lines(path):
    """The lines of a file, without their ends. Raises _Binary for one with a NUL, or without line ends."""
    with open_regular(path) as file:
        head = file.peek(4)
        encoding = mark_of(head) or "utf-8"
        if encoding == "utf-32":
            raise _Binary  # to ripgrep that is UTF-16 with a NUL in each character
        errors = "replace" if encoding == "utf-16" else "surrogateescape"
        with io.TextIOWrapper(file, encoding=encoding, errors=errors, newline="\n") as text:
            while True:
                line = text.readline(MAX_CHARACTERS)
                if not line:
                    return
                if "\0" in line or len(line) == MAX_CHARACTERS:
                    raise _Binary
                yield line.rstrip("\r\n")
