"""search_files: by ripgrep where it is and knows the pattern, else by `re`; the same answers either way.

To be the same, both engines see the files that `_ignoring.walk` would see, skip a file with a NUL in it, count lines
that match, and order them by path. Only the lines of the page are kept; the rest is counted. `engine` in the answer
says who searched.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess

from tools import _ignoring
from tools._textfile import MARKS, Unusable, open_regular, read_bytes

MAX_LINE = 500  # characters of a line that are shown
MAX_FILE = 256 << 20  # bytes of one file up to which `re` searches it
RG = (
    "rg --json --no-config --sort path --no-require-git --no-ignore-parent --no-ignore-global --no-ignore-exclude "
    "--no-ignore-dot --no-messages --crlf"
).split()


class BadForRipgrep(Exception):
    """ripgrep does not know this pattern; `re` may."""


class Page:
    """Collects what the answer shows, and counts all. `offset` and `limit` count lines, or files."""

    def __init__(self, offset, limit, mode):
        self.offset = offset
        self.limit = limit
        self.mode = mode
        self.items = []
        self.total = 0
        self.matches = 0

    def file(self, path, hits):
        """One file's matching lines: (number, text)."""
        self.matches += len(hits)
        if self.mode == "content":
            for number, text in hits:
                self.take({"path": path, "line": number, "text": shortened(text)})
        elif self.mode == "files_only":
            self.take(path)
        else:
            self.take({"path": path, "count": len(hits)})

    def take(self, item):
        self.total += 1
        if self.offset < self.total <= self.offset + self.limit:
            self.items.append(item)


def search(pattern, target, path, file_glob, limit, offset, output_mode, context):
    """The answer of search_files. Raises Unusable."""
    if limit < 1 or offset < 0 or context < 0:
        raise Unusable("limit counts from 1, offset and context from 0")
    if not os.path.exists(path):
        read_bytes(path)  # raises with near names
    if target == "files":
        return _find_files(pattern, path, limit, offset)
    page = Page(offset, limit, output_mode)
    engine = _run(pattern, path, _ignoring.glob_filter(file_glob), page)
    answer = {"total_count": page.total, "engine": engine, "truncated": page.total > offset + len(page.items)}
    if output_mode == "content":
        answer["matches"] = (
            [dict(item, **_around(path, item, context)) for item in page.items] if context else page.items
        )
    elif output_mode == "files_only":
        answer["files"] = page.items
    else:
        answer["counts"] = page.items
        answer["total_matches"] = page.matches
    if answer["truncated"]:
        answer["next_offset"] = offset + len(page.items)
    return answer


def _run(pattern, path, wanted, page):
    program = shutil.which("rg")
    if program is not None:
        try:
            for name, hits in _by_ripgrep(program, pattern, path):
                if wanted(name):
                    page.file(_shown(path, name), hits)
            return "ripgrep"
        except BadForRipgrep:
            pass
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise Unusable("the pattern %r is no regular expression: %s" % (pattern[:200], error)) from None
    for name in [""] if os.path.isfile(path) else _ignoring.walk(path):
        if wanted(name or os.path.basename(path)) and (
            hits := _by_re(compiled, os.path.join(path, name) if name else path)
        ):
            page.file(_shown(path, name), hits)
    return "re"


def _shown(root, name):
    """A path as the model may use it: relative to the workspace if the root was."""
    return os.path.normpath(os.path.join(root, name)) if name else root


# ripgrep -------------------------------------------------------------------------------------------------------------


def _by_ripgrep(program, pattern, path):
    """(path relative to the root, hits) of each file that has any. Raises BadForRipgrep before the first."""
    argv = [program, *RG[1:], "--regexp", pattern, "--", path]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        hits = []
        for line in process.stdout:
            event = json.loads(line)
            data = event["data"]
            if event["type"] == "begin":
                hits = []
            elif event["type"] == "match":
                hits.append((data["line_number"], _text(data["lines"])))
            elif event["type"] == "end" and hits and data.get("binary_offset") is None:
                name = os.path.relpath(_text(data["path"]), path)
                yield "" if name == "." else name, hits
    # 2 is also ripgrep's word for a file that it could not read, but then it had understood the pattern.
    if process.returncode == 2 and not _understands(program, pattern):
        raise BadForRipgrep


def _understands(program, pattern):
    argv = [program, "--no-config", "--crlf", "--regexp", pattern, "--", os.devnull]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode != 2


def _text(value):
    """ripgrep's text, or its base64 of what is no UTF-8; without the line's end."""
    if "text" in value:
        text = value["text"]
    else:
        text = base64.b64decode(value["bytes"]).decode("utf-8", "surrogateescape")
    return text.rstrip("\n").rstrip("\r")


# re ------------------------------------------------------------------------------------------------------------------


def _by_re(compiled, path):
    """The matching lines of one file; none of one that is binary, special or too large."""
    try:
        with open_regular(path) as file:
            data = file.read(MAX_FILE + 1)
    except (Unusable, OSError):
        return []
    encoding = next((name for mark, name in MARKS if data.startswith(mark)), None)
    if encoding in ("utf-16", "utf-32"):
        text = data.decode(encoding, "replace")
    elif b"\0" in data or len(data) > MAX_FILE:
        return []
    else:
        text = data.decode("utf-8-sig" if encoding else "utf-8", "surrogateescape")
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return [
        (number, line) for number, line in enumerate((each.rstrip("\r") for each in lines), 1) if compiled.search(line)
    ]


def shortened(text):
    text = text.encode("utf-8", "replace").decode("utf-8")
    if len(text) <= MAX_LINE:
        return text
    return text[:MAX_LINE] + " ... [%d characters, cut]" % len(text)


def _around(root, item, context):
    """The lines before and after a hit."""
    try:
        lines = read_bytes(item["path"]).decode("utf-8", "replace").split("\n")
    except (Unusable, OSError):
        return {}
    at = item["line"] - 1
    before, after = lines[max(0, at - context) : at], lines[at + 1 : at + 1 + context]
    if after and not after[-1] and at + 1 + len(after) == len(lines):
        after.pop()
    return {
        "before": [shortened(each.rstrip("\r")) for each in before],
        "after": [shortened(each.rstrip("\r")) for each in after],
    }


# Files ---------------------------------------------------------------------------------------------------------------


def _find_files(pattern, path, limit, offset):
    """The files whose name or path matches a glob; a pattern without glob characters is a part of the name."""
    matches = _ignoring.glob_filter(pattern)
    if not re.search(r"[*?\[{]", pattern):
        folded = pattern.lower()

        def matches(name):
            return folded in (name if "/" in folded else os.path.basename(name)).lower()

    page = Page(offset, limit, "files_only")
    for name in [os.path.basename(path)] if os.path.isfile(path) else _ignoring.walk(path):
        if matches(name):
            page.take(_shown(os.path.dirname(path) if os.path.isfile(path) else path, name))
    files = [each.encode("utf-8", "replace").decode("utf-8") for each in page.items]
    answer = {
        "total_count": page.total,
        "files": files,
        "engine": "walk",
        "truncated": page.total > offset + len(files),
    }
    if answer["truncated"]:
        answer["next_offset"] = offset + len(files)
    return answer
