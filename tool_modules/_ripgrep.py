"""ripgrep as an engine of search_files. It is given the files one by one, so it decides nothing but what matches.

Its output is parsed by the NUL behind each path, so no path can look like something else.
"""

from __future__ import annotations

import collections
import os
import re

from tools._textfile import mark_of

# Without mmap a NUL is noticed wherever in a file it is.
OPTIONS = (
    "--no-config --color=never --no-heading --with-filename --null --crlf --no-mmap --no-messages "
    "--no-context-separator --max-columns-preview"
).split()
COUNTED = re.compile(rb"([^\0]+)\0(\d+)\r?\n")
SHOWN = re.compile(rb"([^\0]+)\0(\d+)([:-])([^\n]*)\n")
MAX_COLUMNS = 2500  # bytes of a line, more than what is shown of it
MAX_ARGUMENTS = 500_000  # bytes of paths in one start, which has to stay below the kernel's 2 MiB
BLOCK = 1 << 16
SNIFF = 16 << 10  # bytes


class BadForRipgrep(Exception):
    """ripgrep does not know this pattern, or does not run here."""


def find_ripgrep():
    """The path of the program, or None."""
    import shutil  # here, as most calls need none of it and a cold start pays for every import

    return shutil.which("rg")


class Ripgrep:
    """Searches files below `root`, by paths relative to it."""

    name = "ripgrep"

    def __init__(self, program, pattern, root):
        self.program = program
        self.pattern = "--regexp=" + pattern
        self.root = root

    def count(self, names):
        """[(path, number of matching lines)] of the files that have any, in the order of `names`. Raises
        BadForRipgrep."""
        counts = []
        for batch in _batches(name for name in names if not _looks_binary(os.path.join(self.root, name))):
            # A pattern has to be tried even where there is no file.
            output = self._run("--count", self.pattern, "--", *(batch or [os.devnull]))
            found = {_name(path): int(count) for path, count in COUNTED.findall(output)}
            for name in self._binary(["./" + name for name in found]):
                del found[name]
            counts += [(name[2:], found[name[2:]]) for name in batch if name[2:] in found]
        return counts

    def _binary(self, paths):
        """Those of the paths that have a NUL somewhere, which it looks over in files that are named to it."""
        if not paths:
            return []
        output = self._run("--files-with-matches", "--text", r"--regexp=\x00", "--", *paths)
        return [_name(path) for path in output.split(b"\0")[:-1]]

    def hits(self, chosen, context):
        """For each (path, first, last) of chosen, the matching lines of these numbers: (path, line number, text, lines
        before, lines after)."""
        wanted = {name: _Window(first, last, context) for name, first, last in chosen}
        most = max((last for _name, _first, last in chosen), default=0)
        options = ["-n", "-C%d" % context, "--max-columns=%d" % MAX_COLUMNS, "--max-count=%d" % most]
        for batch in _batches(wanted):
            for path, number, mark, text in self._records(*options, self.pattern, "--", *batch) if batch else ():
                line = text.decode("utf-8", "surrogateescape")
                wanted[_name(path)].add(int(number), mark == b":", line.rstrip("\r"))
            for name in batch:
                for hit in wanted[name[2:]].hits():
                    yield (name[2:], *hit)

    def _run(self, *arguments):
        """What it prints. Raises BadForRipgrep."""
        import subprocess

        try:
            argv = [self.program, *OPTIONS, *arguments]
            done = subprocess.run(argv, cwd=self.root, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        except (OSError, ValueError):  # not to be started, or a pattern that no argument can be
            raise BadForRipgrep from None
        # 2 is also its word for a file that it could not read, but of that --no-messages says nothing.
        if done.returncode not in (0, 1) and (done.returncode != 2 or done.stderr):
            raise BadForRipgrep
        return done.stdout

    def _records(self, *arguments):
        """What it prints, match by match of SHOWN, without holding all of it."""
        import subprocess

        argv = [self.program, *OPTIONS, *arguments]
        null = subprocess.DEVNULL
        with subprocess.Popen(argv, cwd=self.root, stdin=null, stdout=subprocess.PIPE, stderr=null) as process:
            rest = b""
            while True:
                block = process.stdout.read(BLOCK)
                rest += block
                at, found = 0, SHOWN.match(rest)
                while found is not None:
                    yield found.groups()
                    at = found.end()
                    found = SHOWN.match(rest, at)
                rest = rest[at:]
                if not block:
                    return


class _Window:
    """The hits `first` to `last` of one file, out of all its lines that are shown, with the lines around them."""

    def __init__(self, first, last, context):
        self.first, self.last, self.context = first, last, context
        self.seen = 0
        self.numbers = []
        self.lines = {}
        self.recent = collections.deque(maxlen=context)

    def add(self, number, is_hit, text):
        if is_hit:
            self.seen += 1
            if self.first < self.seen <= self.last:
                self.numbers.append(number)
                self.lines.update(self.recent)
                self.lines[number] = text
        if self.numbers and number <= self.numbers[-1] + self.context:
            self.lines[number] = text
        self.recent.append((number, text))

    def hits(self):
        for at in self.numbers:
            before = [self.lines[each] for each in range(at - self.context, at) if each in self.lines]
            after = [self.lines[each] for each in range(at + 1, at + 1 + self.context) if each in self.lines]
            yield at, self.lines[at], before, after


def _looks_binary(path):
    """Whether the file has a NUL near its beginning or end, or cannot be read. In a file that is named to it ripgrep
    takes each NUL for a line end, which is slow where there are many."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            head = os.pread(fd, SNIFF, 0)
            tail = os.pread(fd, SNIFF, max(0, os.fstat(fd).st_size - SNIFF)) if len(head) == SNIFF else b""
        finally:
            os.close(fd)
    except OSError:
        return True
    return (b"\0" in head or b"\0" in tail) and mark_of(head) != "utf-16"


def _batches(names):
    """The names as paths that cannot look like options, in lists that an argument list can hold; at least one list."""
    batch, size = [], 0
    for name in names:
        length = len(os.fsencode(name)) + 11  # with its ./, its end and the pointer to it
        if batch and size + length > MAX_ARGUMENTS:
            yield batch
            batch, size = [], 0
        batch.append("./" + name)
        size += length
    yield batch


def _name(path):
    return os.fsdecode(path[2:])  # without its ./
