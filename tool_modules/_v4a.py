"""What a V4A patch says: the format of *** Begin Patch, that models are trained to write.

Its places are found by context alone: by the lines of a hunk, and by the @@ lines before it, each the text of a line
further up.
"""

from __future__ import annotations

import re

from tools._diffs import HUNK, FileChange, Hunk
from tools._textfile import Unusable

FILE = re.compile(r"\*\*\* (Update|Add|Delete) File: (.+)")
KINDS = {"Update": "update", "Add": "create", "Delete": "delete"}
MOVE = "*** Move to: "


def is_v4a(lines):
    return any(FILE.match(line) for line in lines)


def parse(lines):
    """The changes that the patch asks for. Raises Unusable."""
    changes, change, hunk, anchors = [], None, None, []
    for number, line in enumerate(lines, 1):
        header = FILE.match(line)
        if header is not None:
            change, hunk, anchors = FileChange(KINDS[header.group(1)], header.group(2).strip()), None, []
            changes.append(change)
        elif line.startswith("*** End of File"):
            if hunk is not None:
                hunk.at_end = True
        elif line.startswith(("*** Begin Patch", "*** End Patch")):
            change = None
        elif change is None:
            continue  # what stands around the patch
        elif line.startswith(MOVE):
            change.new_path, change.moves = line[len(MOVE) :].strip(), True
        elif line.startswith("*** "):
            raise Unusable("line %d of the patch: %r is no line of V4A; nothing was changed" % (number, line[:80]))
        elif line.startswith("@@") and change.kind == "update":
            anchors, hunk = (anchors if hunk is None else []) + _anchors(line), None
        elif hunk is None and _is_diff_header(lines, number - 1):
            continue
        elif change.kind != "delete":
            if hunk is None:
                hunk = Hunk(anchors=anchors)
                change.hunks.append(hunk)
            hunk.lines.append(_line(line, change.kind == "create"))
    for each in changes:
        # A blank line may only stand between two parts of the patch.
        each.hunks = [hunk for hunk in each.hunks if any(text or tag != " " for tag, text in hunk.lines)]
    return changes


def _is_diff_header(lines, at):
    """Models put the --- and +++ lines of a unified diff here too."""
    starts = [line[:4] for line in lines[at - 1 : at + 2]]
    return starts[:2] == ["--- ", "+++ "] or starts[1:] == ["--- ", "+++ "]


def _anchors(line):
    """The text of an @@ line, unless it is but a unified diff's numbers."""
    text = HUNK.match(line).group(5).strip().strip("@").strip()
    return [text] if text else []


def _line(line, creates):
    """(tag, text). A line of a file that is made needs its +, but models forget it; elsewhere one without a tag is
    context that lost its blank."""
    if creates and line[:1] != "+":
        return (" ", "") if not line.strip() else ("+", line)
    return (line[0], line[1:]) if line[:1] in (" ", "-", "+") else (" ", line)
