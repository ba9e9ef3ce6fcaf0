"""Where a change fits, and making it: all of it or nothing.

Every file is first worked out in memory. A hunk is looked for exactly, then without trailing blanks, then with
typographic characters taken for plain ones, then whatever the indentation. A place that is not the only one is refused
unless a line number prefers one of them. All hunks that do not fit are reported together, each with the place that
comes nearest. Only then files are written, and if that fails half way, what was written is put back.

A file is a list of lines with their own ends. Lines that a hunk only shows keep their bytes; lines that it adds end
like the file's others.
"""

from __future__ import annotations

import difflib
import os
import stat

from tools import _diffs
from tools._textfile import Unusable, decode, encode, read_bytes, write_atomic

PLAIN = {
    ord(odd): plain
    for odds, plain in (("“”„‟″", '"'), ("‘’‚‛′", "'"), ("‐‑‒–—−", "-"), ("\u00a0\u2007\u202f", " "))
    for odd in odds
}
MAX_DIFF = 20_000  # characters of the diff in the answer
MAX_DIFFED = 4000  # changed lines of a file up to which its diff is worked out
SHOWN = 3  # candidate places, or differing lines, in an error


def exact(line):
    return line


def untrailed(line):
    return line.rstrip()


def plain(line):
    return line.translate(PLAIN).rstrip()


def unindented(line):
    return line.translate(PLAIN).strip()


LEVELS = (exact, untrailed, plain, unindented)


class Misfit(Exception):
    """A hunk that does not fit; the message says why and where it nearly does."""


def split(text):
    """Lines with their ends: "\\n", "\\r\\n", or none for a last one without."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def body(line):
    return line[:-2] if line.endswith("\r\n") else line.removesuffix("\n")


def line_end(lines):
    """How most of the lines end."""
    windows = sum(line.endswith("\r\n") for line in lines)
    return "\r\n" if windows * 2 > len(lines) else "\n"


class Draft:
    """What the files will be. `files`: path -> text, or None for one that will not be there."""

    def __init__(self):
        self.files = {}
        self.before = {}
        self.modes = {}

    def read(self, path):
        key = os.path.normpath(path)
        if key not in self.files:
            self.before[key] = self.files[key] = decode(read_bytes(path)) if os.path.lexists(path) else None
        return self.files[key]

    def write(self, path, text):
        self.read(path)
        self.files[os.path.normpath(path)] = text

    def changed(self):
        return [path for path, text in self.files.items() if text != self.before[path] or path in self.modes]

    def commit(self):
        """Write everything, or put everything back and raise Unusable."""
        done = []
        try:
            for path in self.changed():
                old_mode = stat.S_IMODE(os.stat(path).st_mode) if self.before[path] is not None else None
                done.append((path, old_mode))
                if self.files[path] is None:
                    os.unlink(path)
                else:
                    write_atomic(path, encode(self.files[path]), self.modes.get(path))
        except (OSError, Unusable) as error:
            lost = [path for path, mode in reversed(done) if not self.put_back(path, mode)]
            also = "; these could not be put back: %s" % ", ".join(lost) if lost else "; nothing was changed"
            raise Unusable("%s%s" % (error, also)) from None

    def put_back(self, path, mode):
        try:
            if self.before[path] is not None:
                write_atomic(path, encode(self.before[path]), mode)
            elif os.path.lexists(path):
                os.unlink(path)
        except (OSError, Unusable):
            return False
        return True

    def answer(self):
        """The tool's answer, once it is written. Raises Unusable if there was nothing to write."""
        changed = self.changed()
        if not changed:
            raise Unusable("the patch changes nothing: the files are as it wants them already")
        self.commit()
        diff = "".join(diff_of(path, self.before[path], self.files[path]) for path in changed)
        if len(diff) > MAX_DIFF:
            diff = diff[:MAX_DIFF] + "\n... [diff of %d characters, cut]\n" % len(diff)
        states = [(path, self.before[path] is None, self.files[path] is None) for path in changed]
        return {
            "success": True,
            "diff": diff.encode("utf-8", "replace").decode("utf-8"),
            "files_modified": [path for path, made, gone in states if not made and not gone],
            "files_created": [path for path, made, gone in states if made and not gone],
            "files_deleted": [path for path, made, gone in states if gone],
        }


def diff_of(path, before, after):
    """A unified diff of what changed. The common head and tail are left out of the comparison, which is quadratic."""
    a, b = split(before or ""), split(after or "")
    head = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    most = min(len(a), len(b)) - head
    tail = next((i for i in range(most) if a[len(a) - 1 - i] != b[len(b) - 1 - i]), most)
    start = max(0, head - 3)
    a_part, b_part = a[start : len(a) - max(0, tail - 3)], b[start : len(b) - max(0, tail - 3)]
    names = "/dev/null" if before is None else "a/" + path, "/dev/null" if after is None else "b/" + path
    if max(len(a_part), len(b_part)) > MAX_DIFFED:
        return "--- %s\n+++ %s\n... [%d lines became %d]\n" % (*names, len(a_part), len(b_part))
    found = []
    for line in difflib.unified_diff(a_part, b_part, *names):
        if line.startswith("@@"):
            line = _moved_header(line, start)
        found.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
    return "".join(found)


def _moved_header(line, lines):
    found = _diffs.HUNK.match(line)
    sides = []
    for sign, begin, count in (("-", found.group(1), found.group(2)), ("+", found.group(3), found.group(4))):
        sides.append("%s%d%s" % (sign, int(begin) + lines, "," + count if count else ""))
    return "@@ %s @@\n" % " ".join(sides)


# Patches -------------------------------------------------------------------------------------------------------------


def apply_patch(text):
    """The answer of patch with mode=patch. Raises Unusable."""
    draft, misfits, total = Draft(), [], 0
    for change in _diffs.parse(text):
        total += max(1, len(change.hunks))
        misfits += _apply_change(draft, change)
    if misfits:
        raise Unusable("nothing was changed: %d of %d hunks do not fit\n%s" % (len(misfits), total, "\n".join(misfits)))
    return draft.answer()


def _apply_change(draft, change):
    """Work one file's change into the draft. Returns a line for each hunk that does not fit."""
    try:
        text = draft.read(change.path)
    except Unusable as error:
        return [str(error)]
    if change.kind == "create":
        return _create(draft, change, text)
    if text is None:
        try:
            read_bytes(change.path)
        except Unusable as error:
            return [str(error)]
        return ["%s is deleted by the same patch" % change.path]
    lines, misfits = _fit_all(change, split(text))
    if misfits:
        return misfits
    after = "".join(lines)
    if change.kind == "delete":
        if change.hunks and after:
            return ["%s: the patch deletes it, but it has more lines than the patch shows" % change.path]
        draft.write(change.path, None)
        return []
    target = change.new_path or change.path
    if change.new_path is not None:
        if draft.read(target) is not None:
            return ["%s cannot be moved to %s, which is there already" % (change.path, target)]
        draft.modes[os.path.normpath(target)] = stat.S_IMODE(os.stat(change.path).st_mode)
        draft.write(change.path, None)
    if change.mode is not None:
        draft.modes[os.path.normpath(target)] = change.mode
    draft.write(target, after)
    return []


def _create(draft, change, text):
    if text:
        return ["%s cannot be made: it is there already; update it instead" % change.path]
    new = [line for hunk in change.hunks for line in hunk.new()]
    bare = change.hunks and change.hunks[-1].bare_end
    draft.write(change.path, "\n".join(new) + ("" if bare or not new else "\n"))
    if change.mode is not None:
        draft.modes[os.path.normpath(change.path)] = change.mode
    return []


def _fit_all(change, lines):
    """The lines with every hunk worked in, and a line for each hunk that does not fit."""
    end, misfits = line_end(lines), []
    cursor = shift = 0
    for number, hunk in enumerate(change.hunks, 1):
        try:
            at, hunk_lines, level = _place(lines, hunk, cursor, shift)
        except Misfit as misfit:
            misfits.append("%s, hunk %d: %s" % (change.path, number, misfit))
            continue
        count = sum(tag != "+" for tag, _text in hunk_lines)
        fresh = _merge(lines[at : at + count], hunk_lines, level, end)
        last = at + count == len(lines)
        lines[at : at + count] = fresh
        _close_lines(lines, at, len(fresh), end, last and hunk.bare_end)
        cursor, shift = at + len(fresh), shift + len(fresh) - count
    return lines, misfits


def _merge(old, hunk_lines, level, end):
    """The new lines in the place of `old`: shown ones keep their bytes, added ones get the file's indentation and
    end."""
    fresh, index = [], 0
    given = next((text for tag, text in hunk_lines if tag != "+" and text.strip()), "")
    found = next((body(line) for line in old if line.strip()), "")
    for tag, text in hunk_lines:
        if tag == "+":
            fresh.append((reindented(text, given, found) if level is unindented else text) + end)
        else:
            if tag == " ":
                fresh.append(old[index])
            index += 1
    return fresh


def _close_lines(lines, at, count, end, bare):
    """Give an end to a line that is not the last any more, and take it from a last one that shall have none."""
    for index in range(max(0, at - 1), min(at + count, len(lines) - 1)):
        if not lines[index].endswith("\n"):
            lines[index] += end
    if bare and lines and at + count == len(lines):
        lines[-1] = body(lines[-1])


def reindented(text, given, found):
    """`text` with the indentation that the file uses where the patch used that of `given`."""
    patch_indent = given[: len(given) - len(given.lstrip())]
    file_indent = found[: len(found) - len(found.lstrip())]
    if not text.strip() or not text.startswith(patch_indent):
        return text
    return file_indent + text[len(patch_indent) :]


def _place(lines, hunk, cursor, shift):
    """Where the hunk fits: (index, its lines, the level). Raises Misfit."""
    wanted = hunk.start - 1 + shift if hunk.start is not None else None
    for hunk_lines in _variants(hunk.lines):
        old = [text for tag, text in hunk_lines if tag != "+"]
        if not old:
            return _insertion(lines, hunk, wanted, hunk_lines)
        begin = _after_anchors(lines, hunk, cursor)
        for level in LEVELS:
            places = find_places(lines, old, level, begin) or find_places(lines, old, level, 0)
            if hunk.at_end:
                places = [at for at in places if at + len(old) == len(lines)] or places
            if places:
                return _choose(places, wanted, hunk), hunk_lines, level
    raise Misfit(nearest(lines, hunk.old()))


def _variants(hunk_lines):
    """The hunk as it stands, then without blank lines at its end, which models add between files."""
    yield hunk_lines
    shorter = list(hunk_lines)
    while shorter and shorter[-1] == (" ", ""):
        shorter = shorter[:-1]
        yield shorter


def _choose(places, wanted, hunk):
    if len(places) == 1:
        return places[0]
    if wanted is not None:
        return min(places, key=lambda at: abs(at - wanted))
    if hunk.anchors:
        return places[0]  # the first behind the anchor, which is what an anchor is for
    raise Misfit("it fits in %d places, at lines %s: show more lines around it" % (len(places), numbers(places)))


def _insertion(lines, hunk, wanted, hunk_lines):
    """A hunk that shows no line of the file: only a number, an anchor or an empty file says where it goes."""
    if not lines:
        return 0, hunk_lines, exact
    if hunk.at_end:
        return len(lines), hunk_lines, exact
    if wanted is not None:
        return max(0, min(len(lines), wanted + 1)), hunk_lines, exact
    if hunk.anchors:
        return _after_anchors(lines, hunk, 0), hunk_lines, exact
    raise Misfit("it adds lines without showing where: put a line of the file before or after them")


def _after_anchors(lines, hunk, cursor):
    """The line behind the hunk's last anchor. Raises Misfit for an anchor that is nowhere."""
    at = cursor
    for anchor in hunk.anchors:
        found = [i for i, line in enumerate(lines) if anchor in body(line)]
        behind = [i for i in found if i >= at] or found
        if not behind:
            if hunk.start is not None:
                return cursor
            raise Misfit("no line of the file has %r in it, which stands behind @@" % anchor)
        at = behind[0] + 1
    # The anchor line itself may be the hunk's first: then the search has to begin at it.
    return max(0, at - 1) if hunk.anchors else cursor


def find_places(lines, old, level, begin):
    """Where `old` stands in `lines`, as `level` sees it, from index `begin` on."""
    wanted = [level(text) for text in old]
    first = wanted[0]
    last = len(lines) - len(wanted)
    seen = [level(body(line)) for line in lines[begin:]]
    return [at + begin for at in range(last - begin + 1) if seen[at] == first and seen[at : at + len(wanted)] == wanted]


def numbers(places):
    shown = ", ".join(str(at + 1) for at in places[:10])
    return shown + (", ..." if len(places) > 10 else "")


def nearest(lines, old):
    """Words on the place that most lines of `old` agree with, and the first lines that differ there."""
    where = {}
    for index, line in enumerate(lines):
        where.setdefault(unindented(body(line)), []).append(index)
    votes = {}
    for offset, text in enumerate(old):
        if unindented(text):
            for index in where.get(unindented(text), ())[:50]:
                votes[index - offset] = votes.get(index - offset, 0) + 1
    if not votes:
        return _similar(lines, old)
    at = max(votes, key=lambda place: (votes[place], -place))
    differing = []
    for offset, text in enumerate(old):
        index = at + offset
        there = body(lines[index]) if 0 <= index < len(lines) else "(no such line)"
        if unindented(there) != unindented(text):
            differing.append("line %d is %r, the patch shows %r" % (index + 1, there[:200], text[:200]))
    return "it does not fit; the nearest place is line %d (%d of %d lines agree): %s" % (
        max(at, 0) + 1, votes[at], len(old), "; ".join(differing[:SHOWN]) or "the lines stand in another order",
    )  # fmt: skip


def _similar(lines, old):
    first = next((text for text in old if text.strip()), "")
    near = difflib.get_close_matches(first.strip(), [body(line).strip() for line in lines[:5000]], n=1, cutoff=0.5)
    if not near:
        return "it does not fit: no line of the file is like %r" % first[:200]
    at = next(index for index, line in enumerate(lines) if body(line).strip() == near[0])
    return "it does not fit; the nearest line to %r is line %d: %r" % (first[:200], at + 1, near[0][:200])


# Old and new strings -------------------------------------------------------------------------------------------------


def replace(path, old, new, everywhere):
    """The answer of patch with mode=replace. Raises Unusable."""
    if not old:
        raise Unusable("old_string is empty: write the text to replace, or make a file with write_file")
    if new is None:
        raise Unusable("new_string is missing: write the text to put there; an empty one deletes")
    if old == new:
        raise Unusable("old_string and new_string are the same: nothing to change")
    draft = Draft()
    text = draft.read(path)
    if text is None:
        read_bytes(path)  # raises with the reason, and near names
    draft.write(path, _replaced(text, old, new, everywhere, path))
    return draft.answer()


def _replaced(text, old, new, everywhere, path):
    end = line_end(split(text))
    unix = end == "\r\n" and "\r\n" not in old
    for pattern, words in ((old, new), (old.replace("\n", end), _with_end(new, end))) if unix else ((old, new),):
        count = text.count(pattern)
        if count:
            _check_count(text, pattern, count, everywhere, path)
            return text.replace(pattern, words)
    flat, wanted = text.translate(PLAIN), old.replace("\n", end).translate(PLAIN)
    if wanted in flat:  # characters only change one for one, so places in both are the same
        _check_count(flat, wanted, flat.count(wanted), everywhere, path)
        parts, at = [], 0
        while (found := flat.find(wanted, at)) >= 0:
            parts += [text[at:found], _with_end(new, end)]
            at = found + len(wanted)
        return "".join(parts) + text[at:]
    return _replaced_lines(text, old, new, everywhere, path, end)


def _with_end(text, end):
    return text.replace("\r\n", "\n").replace("\n", end)


def _check_count(text, pattern, count, everywhere, path):
    if count > 1 and not everywhere:
        places, at = [], -1
        while (at := text.find(pattern, at + 1)) >= 0 and len(places) < 11:
            places.append(text.count("\n", 0, at))
        raise Unusable(
            "%s: old_string stands in %d places, at lines %s: take in more lines around it, or set replace_all"
            % (path, count, numbers(places))
        )


def _replaced_lines(text, old, new, everywhere, path, end):
    """Whole lines, whatever their trailing blanks and indentation."""
    lines = split(text)
    old_lines = [body(line) for line in split(old)]
    new_lines = [body(line) for line in split(new)]
    for level in (untrailed, plain, unindented):
        places = _apart(find_places(lines, old_lines, level, 0), len(old_lines))
        if not places or not any(level(line) for line in old_lines):
            continue
        if len(places) > 1 and not everywhere:
            raise Unusable(
                "%s: old_string stands in %d places, at lines %s: take in more lines around it, or set replace_all"
                % (path, len(places), numbers(places))
            )
        for at in reversed(places):
            found = lines[at : at + len(old_lines)]
            fresh = _merge(found, [("-", each) for each in old_lines] + [("+", each) for each in new_lines], level, end)
            if fresh and not found[-1].endswith("\n"):
                fresh[-1] = body(fresh[-1])
            lines[at : at + len(old_lines)] = fresh
        return "".join(lines)
    raise Unusable("%s: old_string is not in it: %s" % (path, nearest(lines, old_lines)))


def _apart(places, length):
    """The places that do not overlap with an earlier one."""
    kept = []
    for at in places:
        if not kept or at >= kept[-1] + length:
            kept.append(at)
    return kept
