"""search_files: by ripgrep where it is and knows the pattern, else by `re`; the same answers either way.

Which files, and in which order, is `_ignoring.walk`'s to say, for both engines; both search line by line, and take a
file with a NUL in it for binary. There are two passes. The first counts the matching lines of every file, so totals are
right. The second looks at the files of the page only, so memory is bounded by the page. `engine` says who searched.
"""

from __future__ import annotations

import os
import re
import stat

from tools import _ignoring
from tools._lines import PythonEngine
from tools._ripgrep import BadForRipgrep, Ripgrep, find_ripgrep
from tools._textfile import Unusable, not_a_file, not_opened

MAX_LINE = 500  # characters of a line that are shown
MAX_PAGE = 100_000  # characters of a page
NOTE = "hidden and binary files and what .gitignore leaves out were not searched; a folder that is named as path is"


def search(pattern, target, path, file_glob, limit, offset, output_mode, context):
    """The answer of search_files. Raises Unusable."""
    if limit < 1 or offset < 0 or context < 0:
        raise Unusable("limit counts from 1, offset and context from 0")
    files = _Files(path)
    if target == "files":
        found = list(filter(_name_filter(pattern), files.names()))
        page = [files.shown(name) for name in found[offset : offset + limit]]
        return _answer({"files": page}, len(found), len(found), PythonEngine.name, offset, len(found))
    _check_is_one_line(pattern)
    engine, counts = _count(pattern, files, _ignoring.glob_filter(file_glob))
    page = counts[offset : offset + limit]
    total, of = sum(count for _name, count in counts), len(counts)
    if output_mode == "content":
        items, of = {"matches": _matches(engine, files, counts, offset, limit, context)}, total
    elif output_mode == "files_only":
        items, total = {"files": [files.shown(name) for name, _count in page]}, of
    else:
        items = {"counts": [{"path": files.shown(name), "count": count} for name, count in page]}
    return _answer(items, total, len(counts), engine.name, offset, of)


class _Files:
    """What there is to search: the files below a folder, or one file. Raises Unusable for a path that is neither."""

    def __init__(self, path):
        self.path = path
        try:
            kind = stat.S_IFMT(os.stat(path).st_mode)
            self.is_folder = kind == stat.S_IFDIR
            if self.is_folder:
                with os.scandir(path):
                    pass  # it can be read
        except OSError as error:
            raise not_opened(path, error) from None
        if kind not in (stat.S_IFDIR, stat.S_IFREG):
            raise not_a_file(path, kind)
        if not os.access(path, os.R_OK):
            raise Unusable("%s cannot be opened: Permission denied" % path)
        self.root = path if self.is_folder else os.path.dirname(path) or "."

    def names(self):
        """Paths relative to the root."""
        return _ignoring.walk(self.path) if self.is_folder else iter([os.path.basename(self.path)])

    def shown(self, name):
        """A path as the model may use it: relative to the workspace if the root was."""
        return os.path.normpath(os.path.join(self.root, name)) if self.is_folder else self.path


def _answer(items, total, files, engine, offset, of):
    """`of`: how many items there are on all pages."""
    (page,) = items.values()
    answer = dict(items, total_count=total, total_files=files, engine=engine)
    answer["truncated"] = bool(page) and offset + len(page) < of
    if answer["truncated"]:
        answer["next_offset"] = offset + len(page)
    if not of:
        answer["note"] = NOTE
    return answer


def _check_is_one_line(pattern):
    """Raises Unusable for a pattern that wants a line break: lines are searched one by one."""
    plain = re.sub(r"\[\^(?:\\.|[^\]\\])*\]", "", re.sub(r"\\\\", "", pattern))
    if "\n" in plain or r"\n" in plain:
        raise Unusable("the pattern has a line break in it, but lines are searched one by one: search for one of them")


def _count(pattern, files, wanted):
    """(the engine that knows the pattern, [(path relative to the root, number of matching lines)])."""
    program = find_ripgrep()
    if program is not None:
        engine = Ripgrep(program, pattern, files.root)
        try:
            return engine, engine.count(filter(wanted, files.names()))
        except BadForRipgrep:
            pass
    engine = PythonEngine(pattern, files.root)
    return engine, engine.count(filter(wanted, files.names()))


def _matches(engine, files, counts, offset, limit, context):
    """The hits of the page: matching lines `offset` to `offset + limit` of all."""
    chosen, before = [], 0
    for name, count in counts:
        first = max(0, offset - before)
        if first < count and before < offset + limit:
            chosen.append((name, first, min(count, offset + limit - before)))
        before += count
    page, used = [], 0
    for name, number, text, earlier, later in engine.hits(chosen, context):
        hit = {"path": files.shown(name), "line": number, "text": shortened(text)}
        if context:
            hit.update(before=[shortened(each) for each in earlier], after=[shortened(each) for each in later])
        used += len(hit["text"]) + sum(map(len, hit.get("before", ()))) + sum(map(len, hit.get("after", ())))
        if used > MAX_PAGE and page:
            break
        page.append(hit)
    return page


def shortened(text):
    if len(text) <= MAX_LINE:
        return text
    return text[:MAX_LINE] + " ... [the line goes on, cut at %d characters]" % MAX_LINE


def _name_filter(pattern):
    """Of target=files: the name or path matches the glob; a pattern without glob characters is a part of the name."""
    if re.search(r"[*?\[{]", pattern):
        return _ignoring.glob_filter(pattern)
    part = pattern.lower()
    return lambda name: part in (name if "/" in part else os.path.basename(name)).lower()
