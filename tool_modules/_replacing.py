"""patch with mode=replace: old_string is found, as it stands or nearly so, in one place; new_string is put there."""

from __future__ import annotations

from tools._drafts import Drafts, read_file
from tools._fitting import LEVELS, NOTES, PLAIN, Fit, Indent, body, line_end, nearest, numbers, split, unended
from tools._textfile import Unusable


def replace(path, old, new, everywhere):
    """The answer of patch with mode=replace. Raises Unusable."""
    if not old:
        raise Unusable("old_string is empty: write the text to replace, or make a file with write_file")
    if new is None:
        raise Unusable("new_string is missing: write the text to put there; an empty one deletes")
    if old == new:
        raise Unusable("old_string and new_string are the same: nothing to change")
    drafts = Drafts()
    draft = drafts.of(path)
    if draft.text is None:
        read_file(path)  # raises with near names
    places = _Places(path, draft.text, everywhere)
    found = places.literal(old, new) or places.by_lines(old, new) or places.typographic(old, new)
    if found is None:
        raise Unusable("%s: old_string is not in it: %s" % (path, nearest(split(draft.text), _old_lines(old))))
    draft.text, notes = found
    return drafts.finish(notes)


def _old_lines(text):
    return [unended(body(line)) for line in split(text)]


class _Places:
    """Finds old_string in a text and puts new_string there: each way gives (the new text, notes), or None if there is
    no such place. Raises Unusable if there are too many."""

    def __init__(self, path, text, everywhere):
        self.path = path
        self.text = text
        self.everywhere = everywhere
        self.end = line_end(split(text))

    def literal(self, old, new):
        """As it stands, with the file's line ends."""
        ended = old.replace("\r\n", "\n").replace("\n", self.end)
        for wanted in (old, ended):
            starts = self.starts(self.text, wanted)
            if starts:
                # Where a plain newline was given and found, whatever the file has elsewhere, it may stay.
                is_plain = wanted is old and "\n" in old.replace("\r\n", "")
                return self.put(starts, len(wanted), new if is_plain else self.with_ends(new)), ()
        return None

    def typographic(self, old, new):
        """A part of a line, with plain characters for typographic ones: these change one for one, so places agree."""
        wanted = old.replace("\r\n", "\n").replace("\n", self.end).translate(PLAIN)
        starts = self.starts(self.text.translate(PLAIN), wanted)
        if not starts:
            return None
        line = self.text.count("\n", 0, starts[0]) + 1
        note = "put at line %d without regard to typographic characters" % line
        return self.put(starts, len(wanted), self.with_ends(new)), [note]

    def by_lines(self, old, new):
        """Whole lines, whatever their trailing blanks, typography and indentation. Lines that old and new share keep
        their bytes."""
        hunk_lines = _as_hunk(_old_lines(old), _old_lines(new))
        wanted = [text for tag, text in hunk_lines if tag != "+"]
        fit = Fit(split(self.text))
        for level in LEVELS[1:]:
            places = _apart(fit.places(wanted, level), len(wanted))
            if level is LEVELS[-1]:
                places = [at for at in places if Indent(hunk_lines, fit.lines[at:]).is_clear]
            if not places:
                continue
            self.check(places)
            for at in places:
                fit.edit(at, hunk_lines, level)
            notes = ["put at line %s without regard to %s" % (numbers(places), NOTES[level])] if level in NOTES else ()
            return "".join(fit.result()), notes
        return None

    def starts(self, text, wanted):
        """The offsets of `wanted`, overlapping ones too. Raises Unusable for more than one, unless all are meant."""
        found, at = [], text.find(wanted)
        while at >= 0:
            found.append(at)
            at = text.find(wanted, at + (len(wanted) if self.everywhere else 1))
        self.check([text.count("\n", 0, at) for at in found[:11]])
        return found

    def check(self, places):
        if len(places) > 1 and not self.everywhere:
            raise Unusable(
                "%s: old_string stands in %s places, at lines %s: take in more lines around it, or set replace_all"
                % (self.path, len(places) if len(places) <= 10 else "more than 10", numbers(places))
            )

    def put(self, starts, length, new):
        parts, at = [], 0
        for start in starts:
            parts += [self.text[at:start], new]
            at = start + length
        return "".join(parts) + self.text[at:]

    def with_ends(self, text):
        return text.replace("\r\n", "\n").replace("\n", self.end)


def _as_hunk(old, new):
    import difflib  # here, as most calls need none of it and a cold start pays for every import

    lines = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            lines += [(" ", text) for text in old[a:b]]
        else:
            lines += [("-", text) for text in old[a:b]] + [("+", text) for text in new[c:d]]
    return lines


def _apart(places, length):
    """The places that do not overlap with an earlier one."""
    kept = []
    for at in places:
        if not kept or at >= kept[-1] + length:
            kept.append(at)
    return kept
