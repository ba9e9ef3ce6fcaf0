"""Where the hunks of a patch fit in a file, and the file with all of them worked in. Nothing here touches a file.

All places are looked for in the file as it is, so no hunk sees what another did. A hunk is looked for exactly, then
with less and less regard to line ends, trailing blanks, typography and indentation; the first of these that fits
anywhere decides. Of several places the one at the stated line is taken, or the only one behind the hunk before, or the
only one behind the @@ line; otherwise the hunk is refused, and the places are named.

Lines that a hunk only shows keep their bytes. Lines that it adds end as it says, if it shows others exactly, and else
like most of the file's; where indentation was disregarded they get the file's.
"""

from __future__ import annotations

import re

PLAIN = {
    ord(odd): plain
    for odds, plain in (
        ("\u201c\u201d\u201e\u201f\u2033", '"'),
        ("\u2018\u2019\u201a\u201b\u2032", "'"),
        ("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
        ("\u00a0\u2002\u2003\u2007\u2009\u202f", " "),
    )
    for odd in odds
}
MAX_SHOWN = 3  # differing lines in an error
MAX_QUOTED = 200  # characters of a line in an error


def exact(line):
    return line


def unended(line):
    return line.removesuffix("\r")


def untrailed(line):
    return line.rstrip()


def plain(line):
    return line.translate(PLAIN).rstrip()


def unindented(line):
    return line.translate(PLAIN).strip()


LEVELS = (exact, unended, untrailed, plain, unindented)
# What a place that was found in this way deserves to have said of it; line ends are nobody's concern.
NOTES = {untrailed: "trailing blanks", plain: "typographic characters", unindented: "indentation"}


class Misfit(Exception):
    """A hunk that does not fit; the message says why and where it nearly does."""


def split(text):
    """Lines, each with its "\\n", but perhaps the last."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def body(line):
    """Without the newline; a carriage return stays."""
    return line.removesuffix("\n")


def line_end(lines):
    """How most of the lines end."""
    windows = sum(line.endswith("\r\n") for line in lines)
    return "\r\n" if windows * 2 > len(lines) else "\n"


class Fit:
    """Works hunks into `lines` (each with its end). After `run`: `misfits` and `notes`, texts that name the hunk."""

    def __init__(self, lines):
        self.lines = lines
        self.end = line_end(lines)
        self.misfits = []
        self.notes = []
        self.removed = set()  # indexes
        self.added = {}  # index -> lines that come before it
        self.last_newline = None  # whether the last line shall have one, if a hunk says so
        self.cursor = 0  # behind the hunk before
        self.drift = 0  # how far that was from its stated line
        self._bodies = {}

    def run(self, hunks):
        """The new lines; the old ones if a hunk does not fit."""
        for number, hunk in enumerate(hunks, 1):
            try:
                self._work_in(hunk, "hunk %d" % number)
            except Misfit as misfit:
                self.misfits.append("hunk %d: %s" % (number, misfit))
        return self.lines if self.misfits else self.result()

    def _work_in(self, hunk, name):
        at, hunk_lines, level = self._place(hunk)
        old = [text for tag, text in hunk_lines if tag != "+"]
        self.edit(at, hunk_lines, level)
        if level in NOTES:
            self.notes.append("%s: put at line %d without regard to %s" % (name, at + 1, NOTES[level]))
        if hunk.start is not None and old:
            self.drift = at - (hunk.start - 1)
        self.cursor = at + len(old)
        if self.cursor == len(self.lines) and (hunk.old_bare or hunk.new_bare):
            self.last_newline = not hunk.new_bare

    # Editing

    def edit(self, at, hunk_lines, level):
        """Remember what the hunk does to the lines from index `at` on."""
        indent = Indent(hunk_lines, self.lines[at:]) if level is unindented else None
        # A hunk that shows lines as they are, carriage returns and all, means what it adds as it is.
        shows = [text for tag, text in hunk_lines if tag != "+"]
        end = "\n" if level is exact and shows else self.end
        index = at
        for tag, text in hunk_lines:
            if tag == "+":
                self.added.setdefault(index, []).append((indent.of(text) if indent else text) + end)
                continue
            if tag == "-":
                self.removed.add(index)
            index += 1

    def result(self):
        """All lines with the edits in them."""
        out, last_is_new = [], False
        for index in range(len(self.lines) + 1):
            for line in self.added.get(index, ()):
                out.append(line)
                last_is_new = True
            if index < len(self.lines) and index not in self.removed:
                out.append(self.lines[index])
                last_is_new = False
        for index, line in enumerate(out[:-1]):
            if not line.endswith("\n"):
                out[index] = line + self.end  # it was the last line
        if not out:
            return out
        newline = self.last_newline
        if newline is None and last_is_new and self.lines:
            newline = self.lines[-1].endswith("\n")
        if newline is False:
            out[-1] = unended(body(out[-1])) if self.end == "\r\n" else body(out[-1])
        elif newline and not out[-1].endswith("\n"):
            out[-1] += self.end
        return out

    # Places

    def _place(self, hunk):
        """Where the hunk fits: (index, its lines, the level). Raises Misfit."""
        if not any(tag != " " for tag, _text in hunk.lines):
            raise Misfit("it changes nothing: it has no line that begins with - or +")
        for hunk_lines in _variants(hunk.lines):
            old = [text for tag, text in hunk_lines if tag != "+"]
            if not old:
                return self._insertion(hunk), hunk_lines, exact
            for level in LEVELS:
                places = self.places(old, level)
                if level is unindented:
                    places = [at for at in places if Indent(hunk_lines, self.lines[at:]).is_clear]
                if places:
                    return self._choose(places, hunk, len(old)), hunk_lines, level
        raise Misfit(nearest(self.lines, hunk.old()))

    def places(self, old, level):
        """Every index where `old` stands, as `level` sees it, in lines that no hunk has removed."""
        bodies = self._bodies.get(level)
        if bodies is None:
            bodies = self._bodies[level] = [level(body(line)) for line in self.lines]
        wanted = [level(text) for text in old]
        if level is not exact and not any(wanted):
            return []  # blank lines are alike everywhere
        found, at = [], -1
        while True:
            try:
                at = bodies.index(wanted[0], at + 1)
            except ValueError:
                return found
            if bodies[at : at + len(wanted)] == wanted and self.removed.isdisjoint(range(at, at + len(wanted))):
                found.append(at)

    def _choose(self, places, hunk, length):
        stated = hunk.start - 1 + self.drift if hunk.start is not None else None
        if hunk.at_end or hunk.old_bare or hunk.new_bare:
            places = [at for at in places if at + length == len(self.lines)] or places
        if stated in places:
            return stated
        behind = [at for at in places if at >= self.cursor]
        for left in (places, behind, self._anchored(hunk.anchors, places)):
            if len(left) == 1:
                return left[0]
        raise Misfit("it fits in %d places, at lines %s: show more lines around it" % (len(places), numbers(places)))

    def _anchored(self, anchors, places):
        """The places that come first behind a line that the anchors may mean."""
        found = set()
        for begin in self._behind(anchors):
            # The anchor's line may be the hunk's first as well.
            found.update([at for at in places if at >= begin - 1][:1])
        return sorted(found)

    def _behind(self, anchors):
        """The index behind each line that the anchors may mean, where each stands below the one before it."""
        begins = []
        for number, anchor in enumerate(anchors):
            stands = self._stands(anchor)
            if number:
                below = (next((at + 1 for at in stands if at >= begin), None) for begin in begins)
                begins = sorted({each for each in below if each is not None})
            else:
                begins = [at + 1 for at in stands]
        return begins

    def _stands(self, anchor):
        """The indexes of the lines that are the anchor; if there is none, that begin with it; else that contain it."""
        lines = [line.strip() for line in self.lines]
        return (
            [at for at, line in enumerate(lines) if line == anchor]
            or [at for at, line in enumerate(lines) if line.startswith(anchor)]
            or [at for at, line in enumerate(lines) if anchor in line]
        )

    def _insertion(self, hunk):
        """The index where a hunk belongs that shows no line of the file. Raises Misfit."""
        if not self.lines or hunk.at_end:
            return len(self.lines)
        if hunk.start is not None:
            if hunk.start > len(self.lines):
                raise Misfit("it adds lines behind line %d, but the file has %d" % (hunk.start, len(self.lines)))
            return hunk.start  # the number of the line before it
        behind = self._behind(hunk.anchors)
        if len(behind) == 1:
            return behind[0]
        if behind:
            raise Misfit("%r stands at lines %s: show lines around it" % (hunk.anchors[-1], numbers(behind, 0)))
        if hunk.anchors:
            raise Misfit("no line of the file has %r in it, which stands behind @@" % hunk.anchors[-1][:MAX_QUOTED])
        raise Misfit("it adds lines without showing where: put a line of the file before or after them")


def _variants(hunk_lines):
    """The hunk as it stands, then without blank lines at its end, which models add between files."""
    yield hunk_lines
    shorter = list(hunk_lines)
    while shorter and shorter[-1] == (" ", ""):
        shorter = shorter[:-1]
        yield shorter


class Indent:
    """Turns the patch's indentation into the file's. `is_clear`: each of the patch's has one of the file's."""

    def __init__(self, hunk_lines, found):
        self.pairs = {}
        self.is_clear = True
        old = (text for tag, text in hunk_lines if tag != "+")
        for text, line in zip(old, found):
            if text.strip():
                there = indent_of(line)
                self.is_clear = self.is_clear and self.pairs.setdefault(indent_of(text), there) == there

    def of(self, text):
        """An added line as the file would indent it."""
        given = indent_of(text)
        if not text.strip():
            return text
        if given in self.pairs:
            return self.pairs[given] + text[len(given) :]
        inner = max((each for each in self.pairs if given.startswith(each)), key=len, default=None)
        if inner is not None:  # deeper than any line that the hunk shows
            return self.pairs[inner] + text[len(inner) :]
        outer = min((each for each in self.pairs if each.startswith(given)), key=len, default=None)
        if outer is None:
            return text
        less = outer[len(given) :]
        there = self.pairs[outer]
        return (there[: -len(less)] if there.endswith(less) else "") + text[len(given) :]


def indent_of(line):
    return line[: len(line) - len(line.lstrip())]


def numbers(places, first=1):
    shown = ", ".join(str(at + first) for at in places[:10])
    return shown + (", ..." if len(places) > 10 else "")


def nearest(lines, old):
    """Words on the place that most lines of `old` agree with, and the first lines that differ there."""
    where, votes = {}, {}
    for index, line in enumerate(lines):
        where.setdefault(unindented(body(line)), []).append(index)
    for offset, text in enumerate(old):
        if re.search(r"\w", text):
            for index in where.get(unindented(text), ())[:50]:
                votes[index - offset] = votes.get(index - offset, 0) + 1
    if not votes:
        return _similar(lines, old)
    at = max(votes, key=lambda place: (votes[place], -place))
    differing = []
    for index, text in enumerate(old, at):
        there = untrailed(body(lines[index])) if 0 <= index < len(lines) else None
        if there is None:
            differing.append("line %d is not in the file, the patch shows %r" % (index + 1, text[:MAX_QUOTED]))
        elif there != untrailed(text):
            differing.append("line %d is %r, the patch shows %r" % (index + 1, there[:MAX_QUOTED], text[:MAX_QUOTED]))
    return "it does not fit; the nearest place is line %d, where %d of its %d lines stand: %s" % (
        max(at, 0) + 1, votes[at], len(old), "; ".join(differing[:MAX_SHOWN]) or "but another hunk has removed them",
    )  # fmt: skip


def _similar(lines, old):
    import difflib  # here, as most calls need none of it and a cold start pays for every import

    first = next((text for text in old if text.strip()), "")[:MAX_QUOTED]
    stripped = [line.strip()[:MAX_QUOTED] for line in lines[:5000]]
    near = difflib.get_close_matches(first.strip(), stripped, n=1, cutoff=0.5)
    if not near:
        return "it does not fit: no line of the file is like %r" % first
    return "it does not fit; the nearest line to %r is line %d: %r" % (first, stripped.index(near[0]) + 1, near[0])
