"""What a unified diff says, as git and diff write them and as models miswrite them.

Counts in hunk headers only help to tell a line of the hunk from one that follows it; line numbers are only a
preference; what stands around a diff (prose, a Markdown fence) is left out. `_v4a` reads the other format into the same
FileChange and Hunk.
"""

from __future__ import annotations

import re

from tools._textfile import Unusable

HUNK = re.compile(r"@@(?: -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))?(?: @@)?)?(.*)")
STAMP = re.compile(r"\s+(\d{4}-\d\d-\d\d)[ T]\d\d:\d\d.*$")
EPOCH = ("1970-01-01", "1969-12-31")  # what diff -N says of a file that is not there, east and west of Greenwich
ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
NULL = "/dev/null"
EXTENDED = ("rename from ", "rename to ", "new file mode ", "deleted file mode ", "old mode ", "new mode ")


class Hunk:
    """Lines as (tag, text), the tag one of " ", "-" and "+". `start`: the line of the old file that the header names,
    from 1, or None. `anchors`: texts of lines before the place. `at_end`: its last line is the file's last. `old_bare`,
    `new_bare`: that has no newline, before and after."""

    def __init__(self, start=None, anchors=()):
        self.start = start
        self.anchors = list(anchors)
        self.lines = []
        self.at_end = False
        self.old_bare = False
        self.new_bare = False

    def old(self):
        return [text for tag, text in self.lines if tag != "+"]

    def new(self):
        return [text for tag, text in self.lines if tag != "-"]


class FileChange:
    """`kind`: update, create or delete. `new_path`: what the other side calls it, or None; with `moves` that is said to
    be a move, else it may be. `executable`: True, False, or None for as it is."""

    def __init__(self, kind, path, new_path=None, moves=False):
        self.kind = kind
        self.path = path
        self.new_path = new_path
        self.moves = moves
        self.executable = None
        self.hunks = []


def parse(lines, path=""):
    """The changes that a unified diff asks for, none if it is no diff. `path`: the file of hunks that name none. Raises
    Unusable."""
    lines = [line for line in lines if not line.startswith(("*** Begin Patch", "*** End Patch"))]
    return _Diff(_unfenced(lines), path).parse()


def _unfenced(lines):
    """Without Markdown around it: what stands between fences, if the first is before the diff."""
    first = next((at for at, line in enumerate(lines) if line.startswith(("--- ", "diff ", "@@"))), len(lines))
    if not any(line.startswith("```") for line in lines[:first]):
        while lines and lines[-1].rstrip("\r") in ("", "```"):
            lines = lines[:-1]
        return lines
    kept, inside = [], False
    for line in lines:
        if line.startswith("```"):
            inside = not inside
        elif inside:
            kept.append(line)
    return kept


class _Diff:
    def __init__(self, lines, path):
        self.lines = lines
        self.at = 0
        self.path = path
        self.changes = []
        self.header = {}  # what git's extended header says of the file to come

    def parse(self):
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.startswith("diff --git "):
                self.flush()
                self.header = {"git": line[len("diff --git ") :]}
            elif self.is_file_header():
                self.file(self.lines[self.at][4:], self.lines[self.at + 1][4:])
                continue
            elif line.startswith("@@") and self.path:
                change = FileChange("update", self.path)
                self.hunks(change)
                self.changes.append(change)
                continue
            else:
                self.extended(line)
            self.at += 1
        self.flush()
        return self.changes

    def is_file_header(self):
        return self.starts(0, "--- ") and self.starts(1, "+++ ")

    def starts(self, offset, text):
        at = self.at + offset
        return at < len(self.lines) and self.lines[at].startswith(text)

    def fail(self, why):
        raise Unusable("line %d of the patch: %s; nothing was changed" % (self.at + 1, why))

    def extended(self, line):
        key = next((key for key in EXTENDED if line.startswith(key)), None)
        if key is not None:
            self.header[key.strip()] = line[len(key) :].rstrip("\r")
            if key.startswith("new") and line.split()[-1][:3] in ("120", "160"):
                self.fail("symbolic links and submodules cannot be patched here")
        elif line.startswith("copy from "):
            self.fail("copies are not supported: create the new file instead")
        elif line.startswith("GIT binary patch") or re.match(r"Binary files .* differ", line):
            self.fail("binary patches cannot be applied here")
        elif line.startswith("@@"):
            self.fail("a hunk with no --- and +++ lines before it: which file is it for?")

    def flush(self):
        """A file of which git's header says it all: a pure rename, a mode, an empty file made or deleted."""
        header, self.header = self.header, {}
        if not set(header) - {"git"}:
            return
        if "rename from" in header and "rename to" in header:
            change = FileChange("update", unquote(header["rename from"]), unquote(header["rename to"]), moves=True)
        else:
            old, new = git_paths(header.get("git", ""))
            if not (new or old):
                self.fail("a mode or a rename, but no line that says of which file")
            kind = "create" if "new file mode" in header else "delete" if "deleted file mode" in header else "update"
            change = FileChange(kind, new or old)
        self.add(change, header)

    def add(self, change, header):
        mode = header.get("new mode") or header.get("new file mode") or ""
        if mode.isdigit() and ("new mode" in header or mode.endswith("755")):
            change.executable = mode.endswith("755")
        self.changes.append(change)

    def file(self, old, new):
        header, self.header = self.header, {}
        old, new = strip_prefixes(path_of(old), path_of(new))
        if "rename from" in header and "rename to" in header:
            change = FileChange("update", unquote(header["rename from"]), unquote(header["rename to"]), moves=True)
        elif old == NULL and new == NULL:
            self.fail("both sides are %s" % NULL)
        elif old == NULL:
            change = FileChange("create", new)
        elif new == NULL:
            change = FileChange("delete", old)
        else:
            change = FileChange("update", old, new if new != old else None)
        self.at += 2
        self.hunks(change)
        if not change.hunks and change.kind == "update" and change.new_path is None and not set(header) - {"git"}:
            self.fail("no hunk (@@ -1,3 +1,3 @@) for %s" % old)
        self.add(change, header)

    def hunks(self, change):
        while self.starts(0, "@@"):
            if self.starts(0, "@@@"):
                self.fail("a merge's combined diff: make one against a single parent")
            change.hunks.append(self.hunk())

    def hunk(self):
        found = HUNK.match(self.lines[self.at].rstrip("\r"))
        numbered = found.group(1) is not None
        anchor = found.group(5).strip().strip("@").strip()
        hunk = Hunk(int(found.group(1)) if numbered else None, [anchor] if re.search(r"\w", anchor) else [])
        left = [int(found.group(2) or 1), int(found.group(4) or 1)] if numbered else [0, 0]
        self.at += 1
        while self.at < len(self.lines) and self.belongs(left, numbered):
            line = self.lines[self.at]
            if line.startswith("\\"):
                self.no_newline(hunk)
            else:
                # A line without a tag is a context line that lost its blank.
                tag, text = (line[0], line[1:]) if line[:1] in (" ", "-", "+") else (" ", line)
                hunk.lines.append((tag, text))
                left[0] -= tag != "+"
                left[1] -= tag != "-"
            self.at += 1
        return hunk

    def belongs(self, left, numbered):
        """Whether the line here is one of the hunk. `left`: lines that the header still promises, old and new."""
        line = self.lines[self.at]
        done = left[0] <= 0 and left[1] <= 0
        if line.startswith(("@@", "diff ", "Index: ")):
            return False
        if self.is_file_header() and (self.starts(2, "@@") or (numbered and done)):
            # Else it is a removed "-- " and an added "++ ", which look the same.
            return left == [1, 1] and not self.names_one_file()
        if done and numbered and line.rstrip() == "--":
            return False  # the signature below a mailed patch
        return line[:1] in (" ", "-", "+", "\\", "") or line == "\r" or not done or self.goes_on()

    def names_one_file(self):
        old, new = path_of(self.lines[self.at][4:]), path_of(self.lines[self.at + 1][4:])
        return NULL in (old, new) or len(set(strip_prefixes(old, new))) == 1 or (old[:2], new[:2]) == ("a/", "b/")

    def goes_on(self):
        """Whether changed lines come after a line without a tag: then it is no end, whatever the counts say."""
        for line in self.lines[self.at + 1 :]:
            if line.startswith(("@@", "diff ", "Index: ", "--- ", "+++ ")):
                return False
            if line[:1] in ("-", "+"):
                return True
        return False

    def no_newline(self, hunk):
        tag = hunk.lines[-1][0] if hunk.lines else ""
        hunk.old_bare = hunk.old_bare or tag in (" ", "-")
        hunk.new_bare = hunk.new_bare or tag in (" ", "+")


def path_of(text):
    """The path of a --- or +++ line: without a time stamp, unquoted; NULL if the stamp says that there is none."""
    text = text.rstrip("\r")
    if text.startswith('"'):
        return unquote(text)
    stamp = STAMP.search(text)
    if stamp is not None and stamp.group(1) in EPOCH:
        return NULL
    return STAMP.sub("", text.split("\t")[0]).rstrip()


def unquote(text):
    """Git's quoting of odd paths: C escapes and octal bytes between double quotes."""
    text = text.strip()
    if len(text) < 2 or text[0] != '"' or '"' not in text[1:]:
        return text
    raw = text[1 : text.rindex('"')].encode("utf-8", "surrogateescape")

    def plain(found):
        code = found.group(1).decode("latin-1")
        return bytes([int(code, 8) & 255 if code in "01234567" or len(code) > 1 else ESCAPES.get(code, ord(code))])

    return re.sub(rb"\\([0-7]{1,3}|.)", plain, raw).decode("utf-8", "surrogateescape")


def git_paths(text):
    """Both paths of a `diff --git` line."""
    text = text.rstrip("\r")
    if text.startswith('"'):
        end = text.find('" ', 1) + 1 or len(text)
        return strip_prefixes(unquote(text[:end]), unquote(text[end:]))
    half = len(text) // 2
    if text[half : half + 1] == " " and text[2:half] == text[half + 3 :]:  # the same path twice, whatever blanks it has
        return strip_prefixes(text[:half], text[half + 1 :])
    old, _, new = text.partition(" b/")
    return strip_prefixes(old, "b/" + new if new else old)


def strip_prefixes(old, new):
    """Without git's a/ and b/ (or i/, w/, c/, o/), where it is clear that they are no folders."""
    if old == NULL or new == NULL:
        return (old.removeprefix("a/")), (new.removeprefix("b/"))
    if old.startswith("a/") and new.startswith("b/"):
        return old[2:], new[2:]
    if old[1:2] == new[1:2] == "/" and old[2:] == new[2:] and old[0] != new[0]:
        return old[2:], new[2:]
    if old == "a/" + new or new == "b/" + old:
        return min(old, new, key=len), min(old, new, key=len)
    return old, new
