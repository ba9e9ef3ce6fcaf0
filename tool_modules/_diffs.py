"""What a patch says: unified diffs, as git and diff write them and as models miswrite them, and V4A patches.

Both become a list of FileChange with Hunks, whose lines are (" ", "-" or "+", text). Line counts in headers are not
believed, line numbers are only a preference, and what stands around a patch (prose, a Markdown fence) is left out.
"""

from __future__ import annotations

import re

from tools._textfile import Unusable

HUNK = re.compile(r"@@(?: -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@)?(.*)")
STAMP = re.compile(r"\s+\d{4}-\d\d-\d\d[ T]\d\d:\d\d.*$")
ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}
NO_NEWLINE = "\\ No newline"
NULL = "/dev/null"


class Hunk:
    """`start`: the line of the old file that the header names, from 1, or None. `anchors`: texts that come before the
    place. `at_end`: the last line is the file's last. `bare_end`: the new last line has no newline."""

    def __init__(self, start=None, anchors=()):
        self.start = start
        self.anchors = list(anchors)
        self.lines = []
        self.at_end = False
        self.bare_end = False

    def old(self):
        return [text for tag, text in self.lines if tag != "+"]

    def new(self):
        return [text for tag, text in self.lines if tag != "-"]


class FileChange:
    """`kind`: update, create or delete. `new_path`: where it goes, if it moves. `mode`: its new permission bits."""

    def __init__(self, kind, path, new_path=None):
        self.kind = kind
        self.path = path
        self.new_path = new_path
        self.mode = None
        self.hunks = []


def parse(text):
    """The changes that a patch asks for. Raises Unusable when it is none, or asks for something binary."""
    lines = _strip_fence(text.replace("\r\n", "\n").split("\n"))
    if any(line.startswith("*** Begin Patch") or _v4a_header(line) for line in lines):
        changes = _parse_v4a(lines)
    else:
        changes = _Unified(lines).parse()
    if not changes:
        raise Unusable(
            "this is no patch: write a unified diff (--- a/file, +++ b/file, @@ ... @@) or a V4A patch (*** Begin Patch)"
        )
    return changes


def _strip_fence(lines):
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    fences = [index for index, line in enumerate(lines) if line.startswith("```")]
    if len(fences) >= 2 and fences[-1] == len(lines) - 1:
        return lines[fences[0] + 1 : fences[-1]]
    return lines


# Unified diffs -------------------------------------------------------------------------------------------------------


class _Unified:
    def __init__(self, lines):
        self.lines = lines
        self.at = 0
        self.changes = []
        self.header = {}  # what git's extended header says of the file to come

    def parse(self):
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.startswith("diff --git "):
                self.flush()
                self.header = {"git": line[len("diff --git ") :]}
            elif line.startswith("GIT binary patch") or (line.startswith("Binary files ") and line.endswith(" differ")):
                raise Unusable("binary patches cannot be applied here: write the file with another tool")
            elif self.is_file_header():
                self.file(path_of(line[4:]), path_of(self.lines[self.at + 1][4:]))
                continue
            elif line.startswith("@@") and HUNK.match(line):
                raise Unusable("line %d of the patch: a hunk before any --- and +++ lines" % (self.at + 1))
            else:
                self.extended(line)
            self.at += 1
        self.flush()
        return self.changes

    def is_file_header(self):
        if not self.lines[self.at].startswith("--- ") or self.at + 1 >= len(self.lines):
            return False
        return self.lines[self.at + 1].startswith("+++ ")

    def extended(self, line):
        for key in ("rename from ", "rename to ", "copy from ", "new file mode ", "deleted file mode ", "new mode "):
            if line.startswith(key):
                self.header[key.strip()] = line[len(key) :]
        if line.startswith("copy from "):
            raise Unusable("copies are not supported: create the new file instead")

    def flush(self):
        """A file of which git's header says it all: a pure rename, a mode, an empty file made or deleted."""
        header, self.header = self.header, {}
        if not set(header) - {"git"}:
            return
        if "rename from" in header and "rename to" in header:
            change = FileChange("update", unquote(header["rename from"]), unquote(header["rename to"]))
        else:
            old, new = git_paths(header["git"]) if "git" in header else ("", "")
            kind = "create" if "new file mode" in header else "delete" if "deleted file mode" in header else "update"
            change = FileChange(kind, new or old)
        self.add(change, header)

    def add(self, change, header):
        for key in ("new mode", "new file mode"):
            if header.get(key, "").isdigit():
                change.mode = int(header[key], 8) & 0o777
        self.changes.append(change)

    def file(self, old, new):
        header, self.header = self.header, {}
        old, new = strip_prefixes(old, new)
        if "rename from" in header and "rename to" in header:
            old, new = unquote(header["rename from"]), unquote(header["rename to"])
        if old == NULL and new == NULL:
            raise Unusable("line %d of the patch: both sides are %s" % (self.at + 1, NULL))
        if old == NULL:
            change = FileChange("create", new)
        elif new == NULL:
            change = FileChange("delete", old)
        else:
            change = FileChange("update", old, new if new != old else None)
        self.at += 2
        while self.at < len(self.lines) and self.lines[self.at].startswith("@@"):
            change.hunks.append(self.hunk())
        if not change.hunks and change.kind == "update" and change.new_path is None and not header:
            raise Unusable("%s: the patch has no hunk for it (@@ ... @@)" % old)
        self.add(change, header)

    def hunk(self):
        found = HUNK.match(self.lines[self.at])
        start = int(found.group(1)) if found.group(1) else None
        # What follows the second @@ is a section's name, of use only where there are no numbers.
        anchor = found.group(5).strip().strip("@").strip() if start is None else ""
        hunk = Hunk(start, [anchor] if anchor else [])
        left_old = int(found.group(2) or 1) if start is not None else 0
        left_new = int(found.group(4) or 1) if start is not None else 0
        self.at += 1
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.startswith(("@@", "diff --git ")):
                break
            if self.is_file_header() and ((left_old <= 0 and left_new <= 0) or self.looks_like_file()):
                break
            tag = line[:1] or " "
            if tag == "\\":
                hunk.bare_end = hunk.bare_end or bool(hunk.lines and hunk.lines[-1][0] != "-")
            elif tag in " -+":
                hunk.lines.append((tag, line[1:]))
                left_old -= tag != "+"
                left_new -= tag != "-"
            elif left_old > 0 or left_new > 0:
                hunk.lines.append((" ", line))  # a context line that lost its blank
                left_old, left_new = left_old - 1, left_new - 1
            else:
                break  # prose after the diff
            self.at += 1
        return hunk

    def looks_like_file(self):
        """The two header lines here are followed by a hunk, so they are no removed and added line."""
        return self.at + 2 < len(self.lines) and self.lines[self.at + 2].startswith("@@")


def path_of(text):
    """The path of a --- or +++ line: without a time stamp, unquoted."""
    if text.startswith('"'):
        return unquote(text)
    return STAMP.sub("", text.split("\t")[0]).rstrip()


def unquote(text):
    """Git's quoting of odd paths: C escapes and octal bytes between double quotes."""
    text = text.strip()
    if not (len(text) >= 2 and text.startswith('"') and '"' in text[1:]):
        return text
    raw = text[1 : text.rindex('"')].encode("utf-8", "surrogateescape")

    def plain(found):
        code = found.group(1).decode("ascii")
        return bytes([int(code, 8) & 255 if code[0].isdigit() else ESCAPES.get(code, ord(code))])

    return re.sub(rb"\\([0-7]{1,3}|.)", plain, raw).decode("utf-8", "surrogateescape")


def git_paths(text):
    """Both paths of a `diff --git` line."""
    if text.startswith('"'):
        end = text.index('" ', 1) + 1 if '" ' in text[1:] else len(text)
        return strip_prefixes(unquote(text[:end]), unquote(text[end:]))
    half = len(text) // 2
    if text[half : half + 1] == " ":  # the usual case: the same path twice, whatever blanks are in it
        return strip_prefixes(text[:half], text[half + 1 :])
    old, _, new = text.partition(" b/")
    return strip_prefixes(old, "b/" + new)


def strip_prefixes(old, new):
    """Without git's a/ and b/, if both sides have them (a side that is /dev/null agrees with anything)."""
    if (old.startswith("a/") or old == NULL) and (new.startswith("b/") or new == NULL) and (old, new) != (NULL, NULL):
        return (old if old == NULL else old[2:]), (new if new == NULL else new[2:])
    return old, new


# V4A -----------------------------------------------------------------------------------------------------------------


def _v4a_header(line):
    found = re.match(r"\*\*\* (Update|Add|Delete) File: (.+)", line)
    return (found.group(1), found.group(2).strip()) if found else None


def _parse_v4a(lines):
    changes = []
    change = hunk = None
    anchors = []
    for number, line in enumerate(lines, 1):
        header = _v4a_header(line)
        if header is not None:
            kind = {"Update": "update", "Add": "create", "Delete": "delete"}[header[0]]
            change, hunk, anchors = FileChange(kind, header[1]), None, []
            changes.append(change)
        elif line.startswith("*** End of File"):
            if hunk is not None:
                hunk.at_end = True
        elif line.startswith(("*** Begin Patch", "*** End Patch")):
            change = hunk = None
        elif change is None:
            continue
        elif line.startswith("*** Move to: "):
            change.new_path = line[len("*** Move to: ") :].strip()
        elif line.startswith("@@"):
            anchors = (anchors if hunk is None else []) + [HUNK.match(line).group(5).strip().strip("@").strip()]
            anchors = [anchor for anchor in anchors if anchor]
            hunk = None
        else:
            if change.kind == "delete" and line.strip():
                raise Unusable("line %d of the patch: *** Delete File has no lines of its own" % number)
            if hunk is None:
                hunk = Hunk(anchors=anchors)
                change.hunks.append(hunk)
            _v4a_line(change, hunk, line)
    for each in changes:
        each.hunks = [hunk for hunk in each.hunks if any(text or tag != " " for tag, text in hunk.lines)]
    return changes


def _v4a_line(change, hunk, line):
    tag = line[:1] or " "
    if change.kind == "create":
        hunk.lines.append(("+", line[1:] if tag == "+" else line))
    elif tag in " -+":
        hunk.lines.append((tag, line[1:]))
    elif not line.startswith(NO_NEWLINE):
        hunk.lines.append((" ", line))  # a context line that lost its blank
