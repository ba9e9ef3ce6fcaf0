"""patch with mode=patch: each file's change is settled by what is there, fitted, and worked into its draft.

Everything that does not fit is reported together, each hunk with the place that comes nearest; only if all of it fits
something is written.
"""

from __future__ import annotations

import os

from tools import _diffs, _v4a
from tools._drafts import Drafts, read_file
from tools._fitting import Fit, split, unended
from tools._textfile import Unusable, check_path


def apply_patch(text, path=""):
    """The answer of patch with mode=patch. `path`: the file of hunks that name none. Raises Unusable."""
    drafts, problems, notes = Drafts(), [], []
    changes = parse(text, path)
    for change in changes:
        try:
            notes += _apply(drafts, change)
        except Unusable as error:
            problems.append(str(error))
    if problems:
        raise Unusable("nothing was changed, since not all of the patch fits:\n%s" % "\n".join(problems))
    return drafts.finish(notes)


def parse(text, path):
    """The FileChanges of a patch of either kind. Raises Unusable."""
    lines = text.split("\n")
    headers = [line for line in lines if line.startswith(("@@", "--- ", "*** "))]
    if all(line.endswith("\r") for line in headers):  # else carriage returns are the text's, not the patch's
        lines = [unended(line) for line in lines]
    while lines and lines[-1] in ("", "\r"):
        lines.pop()
    changes = _v4a.parse(lines) if _v4a.is_v4a(lines) else _diffs.parse(lines, path)
    if not changes:
        raise Unusable(
            "this is no patch: write a unified diff (--- a/file, +++ b/file, @@ -1,3 +1,3 @@) or a V4A patch "
            "(*** Begin Patch, *** Update File: file, @@, *** End Patch)"
        )
    return changes


def _apply(drafts, change):
    """Work one file's change into the draft. Returns notes. Raises Unusable, with a line for each hunk that does not
    fit."""
    for path in (change.path, change.new_path):
        if path is not None:
            check_path(path)
    _settle_paths(change)
    draft = drafts.of(change.path, is_link=change.kind == "delete" and os.path.islink(change.path))
    if change.kind == "create":
        return _create(draft, change)
    if draft.text is None:
        if draft.before is not None:
            raise Unusable("%s: an earlier part of the patch deletes or moves it" % change.path)
        if change.hunks and all(hunk.start == 0 and not hunk.old() for hunk in change.hunks):
            return _create(draft, change)  # all of it is new: only the /dev/null is missing
        read_file(change.path)  # raises with near names
    if draft.encoding == "utf-8-sig":  # the text is without its mark, but a diff may show it
        for hunk in change.hunks:
            hunk.lines = [(tag, text.lstrip("\ufeff")) for tag, text in hunk.lines]
    fit = Fit(split(draft.text))
    lines = fit.run(change.hunks)
    if fit.misfits:
        raise Unusable("\n".join("%s, %s" % (change.path, misfit) for misfit in fit.misfits))
    text = "".join(lines)
    if change.kind == "delete":
        _delete(draft, change, text)
    elif change.new_path is not None:
        _move(drafts, draft, change, text)
    elif text == draft.text and change.executable is None:
        raise Unusable("%s: the patch changes nothing in it" % change.path)
    else:
        draft.text, draft.executable = text, change.executable
    return ["%s, %s" % (change.path, note) for note in fit.notes]


def _settle_paths(change):
    """Decide by what is there what a diff leaves open: whether a/ is a folder, whether another name means a move."""
    if change.moves:
        return
    if change.new_path is not None and os.path.lexists(change.new_path):
        change.path, change.new_path = change.new_path, None  # --- f.orig, +++ f
    prefix, name = change.path[:2], change.path[2:]
    is_there = change.kind == "create" or os.path.lexists(change.path)
    if not is_there and prefix in ("a/", "b/") and os.path.lexists(name):
        change.path = name
        if change.new_path is not None and change.new_path[:2] in ("a/", "b/"):
            change.new_path = change.new_path[2:]
        if change.new_path == name:
            change.new_path = None


def _create(draft, change):
    if draft.text:
        raise Unusable("%s cannot be made: it is there already; update it instead" % change.path)
    new = [line for hunk in change.hunks for line in hunk.lines]
    while new and new[-1] == (" ", ""):
        new.pop()  # it only stands before the next part of the patch
    bare = bool(change.hunks) and change.hunks[-1].new_bare
    draft.text = "\n".join(text for _tag, text in new) + ("\n" if new and not bare else "")
    draft.executable = change.executable
    return []


def _delete(draft, change, left):
    if change.hunks and left:
        count = len(split(draft.text))
        raise Unusable("%s: the patch deletes it, but shows less than the %d lines it has" % (change.path, count))
    draft.text = None


def _move(drafts, draft, change, text):
    if os.path.islink(change.path):
        raise Unusable("%s is a symbolic link: move it in the terminal" % change.path)
    target = drafts.of(change.new_path)
    if target is draft:
        raise Unusable("%s cannot be moved to itself" % change.path)
    if target.text is not None:
        raise Unusable("%s cannot be moved to %s, which is there already" % (change.path, change.new_path))
    target.text, target.encoding, target.executable = text, draft.encoding, change.executable
    target.stat = target.stat or draft.stat
    draft.text = None
