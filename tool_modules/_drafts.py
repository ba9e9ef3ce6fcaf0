"""What files shall be, worked out in memory: then all of it is written, or nothing.

Parts of a patch that name each other's files (a move, two sections for one file, two names of one file) meet in the
Drafts. `_placing` does the writing; here is what the answer says of it.
"""

from __future__ import annotations

import os

from tools._diffs import HUNK
from tools._fitting import split
from tools._placing import Change, place_all
from tools._textfile import Unusable, decode, encode, open_regular

MAX_FILE = 64 << 20  # bytes of a file that is patched
MAX_DIFF = 20_000  # characters of the diff in the answer
MAX_DIFFED = 4000  # lines that differ, up to which a file's diff is worked out: that takes quadratic time
MAX_NOTES = 20


class Drafts:
    """What the files shall be. Keyed by the path as it is after symbolic links in it are followed, so that two names of
    one file are one; but a link that is to be removed is itself."""

    def __init__(self):
        self.drafts = {}

    def of(self, path, is_link=False):
        """The Draft of a path. Raises Unusable."""
        folder, name = os.path.split(path)
        key = os.path.join(os.path.realpath(folder), name) if is_link else os.path.realpath(path)
        if key not in self.drafts:
            plain = os.path.normpath(path)  # unless a link makes x/.. something else
            same = os.path.realpath(plain) == os.path.realpath(path)
            self.drafts[key] = Draft(plain if same else path, is_link)
        return self.drafts[key]

    def finish(self, notes=()):
        """Write it all, and the tool's answer. Raises Unusable if it cannot be, or if there is nothing to write."""
        changed = [each for each in self.drafts.values() if each.is_changed()]
        if not changed:
            raise Unusable("the patch changes nothing: the files are as it wants them already")
        place_all([each.change() for each in changed])
        answer = {
            "success": True,
            "diff": _cut("".join(diff_of(each.path, each.before, each.text) for each in changed)),
            "files_modified": [each.path for each in changed if each.before is not None and each.text is not None],
            "files_created": [each.path for each in changed if each.before is None],
            "files_deleted": [each.path for each in changed if each.text is None],
        }
        return dict(answer, notes=list(notes)[:MAX_NOTES]) if notes else answer


class Draft:
    """One file: `text` is what it shall hold, or None for no file."""

    def __init__(self, path, is_link=False):
        self.path = path
        self.data = self.stat = self.text = None
        self.encoding = "utf-8"
        self.executable = None
        if is_link:  # as git has it: where it leads is its content
            self.text = os.readlink(path)
            self.data = os.fsencode(self.text)
        elif os.path.lexists(path):
            self.data, self.stat = read_file(path)
            self.text, self.encoding = decode(self.data, path)
        self.before = self.text

    def is_changed(self):
        if self.executable is not None and self.text is not None:
            is_executable = self.stat is not None and bool(self.stat.st_mode & 0o100)
            return self.text != self.before or is_executable != self.executable
        return self.text != self.before

    def change(self):
        data = None if self.text is None else encode(self.text, self.encoding)
        return Change(self.path, data, self.data, self.executable, self.stat)


def read_file(path):
    with open_regular(path) as file:
        data = file.read(MAX_FILE + 1) or b""
        if len(data) > MAX_FILE:
            raise Unusable("%s has more than %d MiB, which is too much to patch" % (path, MAX_FILE >> 20))
        return data, os.fstat(file.fileno())


def diff_of(path, before, after):
    """A unified diff of what changed. The common head and tail are left out of the comparison, which is quadratic."""
    import difflib

    a, b = split(before or ""), split(after or "")
    most = min(len(a), len(b))
    head = next((at for at in range(most) if a[at] != b[at]), most)
    tail = next((at for at in range(most - head) if a[-1 - at] != b[-1 - at]), most - head)
    start, keep = max(0, head - 3), max(0, tail - 3)
    a, b = a[start : len(a) - keep], b[start : len(b) - keep]
    names = "/dev/null" if before is None else "a/" + path, "/dev/null" if after is None else "b/" + path
    if max(len(a), len(b)) > MAX_DIFFED:
        much = "... [from line %d on, %d lines became %d: too many to show]\n" % (start + 1, len(a), len(b))
        return "--- %s\n+++ %s\n%s" % (*names, much)
    found = []
    for line in difflib.unified_diff(a, b, *names):
        if line.startswith("@@"):
            line = _moved_header(line, start)
        found.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
    return "".join(found) or "--- %s\n+++ %s\n" % names


def _moved_header(line, lines):
    found = HUNK.match(line)
    sides = []
    for sign, begin, count in (("-", found.group(1), found.group(2)), ("+", found.group(3), found.group(4))):
        sides.append("%s%d%s" % (sign, int(begin) + lines, "," + count if count else ""))
    return "@@ %s @@\n" % " ".join(sides)


def _cut(diff):
    if len(diff) <= MAX_DIFF:
        return diff
    return diff[:MAX_DIFF] + "\n... [diff of %d characters, cut]\n" % len(diff)
