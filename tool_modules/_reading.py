"""read_file: a page of a text file, without reading more of it than the page and its line count need."""

from __future__ import annotations

import io
import os

from tools._textfile import IMAGES, MARKS, Unusable, open_regular

SNIFF = 8 << 10  # bytes in which a NUL means binary
MAX_LINE = 2000  # characters of a line that are shown
MAX_PAGE = 100_000  # characters of a page
MAX_COUNTED = 64 << 20  # bytes up to which the lines of a file are counted
MAX_WIDE = 64 << 20  # bytes of a UTF-16 or UTF-32 file, which has to be decoded whole


def read(path, offset, limit):
    """The answer of read_file. Raises Unusable."""
    if offset < 1 or limit < 1:
        raise Unusable("offset and limit count from 1; %d and %d came" % (offset, limit))
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(SNIFF)
        file.seek(0)
        facts = {"path": path, "file_size": size, "is_binary": False, "is_image": False}
        kind = next((name for magic, name in IMAGES if head.startswith(magic)), None)
        encoding = next((name for mark, name in MARKS if head.startswith(mark)), None)
        if kind is not None and b"\0" in head:
            return dict(facts, is_binary=True, is_image=True, mime=kind, content="")
        if encoding in ("utf-16", "utf-32"):
            if size > MAX_WIDE:
                raise Unusable("%s has %d bytes of %s, more than can be decoded here" % (path, size, encoding))
            text = file.read().decode(encoding, "replace").encode("utf-8")
            return dict(facts, **_page(io.BytesIO(text), len(text), offset, limit), encoding=encoding)
        if b"\0" in head:
            return dict(facts, is_binary=True, content="", note="a binary file: nothing of it is shown")
        if encoding == "utf-8-sig":
            file.seek(3)
        found = _page(file, size, offset, limit)
        if encoding is not None:
            found["encoding"] = encoding
        return dict(facts, **found)


def _page(file, size, offset, limit):
    lines, total, complete = _lines(file, size, offset, limit)
    if total is not None and offset > max(total, 1):
        raise Unusable("offset %d is past the end: the file has %d lines" % (offset, total))
    encoding = "utf-8"
    try:
        texts = [line.decode("utf-8") for line, _length in lines]
    except UnicodeDecodeError:
        encoding = "latin-1"
        texts = [line.decode("latin-1") for line, _length in lines]
    shown, used = [], 0
    for number, (text, (_line, length)) in enumerate(zip(texts, lines), offset):
        cut = text[:MAX_LINE]
        if length > MAX_LINE * 4 or len(text) > MAX_LINE:
            cut += " ... [line of %d bytes, cut]" % length
        entry = "%d|%s" % (number, cut)
        used += len(entry) + 1
        if used > MAX_PAGE and shown:
            break
        shown.append(entry)
    answer = {
        "content": "\n".join(shown),
        "encoding": encoding,
        "total_lines": total,
        "truncated": not complete or len(shown) < len(lines),
    }
    if answer["truncated"]:
        answer["next_offset"] = offset + len(shown)
    if total is None:
        answer["note"] = "the file has more than %d bytes, so its lines were not counted" % MAX_COUNTED
    return answer


def _lines(file, size, offset, limit):
    """The lines of the page as (the first bytes, length), how many lines there are (None: not counted), and whether the
    page reaches the end."""
    wanted = []
    number = 0
    counted = size <= MAX_COUNTED
    while True:
        line, length = _line(file)
        if not length:
            return wanted, number, True
        number += 1
        if offset <= number < offset + limit:
            wanted.append((line, length))
        elif number >= offset + limit:
            return wanted, number + _count(file) if counted else None, False


def _line(file):
    """The first bytes of the next line, without its end, and its length in bytes with it: 0 at the end of the file."""
    most = MAX_LINE * 4
    line = file.readline(most)
    length = len(line)
    while line and not line.endswith(b"\n") and length >= most:
        more = file.readline(1 << 20)
        length += len(more)
        if not more or more.endswith(b"\n"):
            break
    whole = line.rstrip(b"\r\n")
    if length > most:  # the cut may have gone through a character
        whole = whole.decode("utf-8", "ignore").encode("utf-8") or whole
    return whole, length


def _count(file):
    """How many lines come after this place."""
    lines, last = 0, b"\n"
    while True:
        block = file.read(1 << 20)
        if not block:
            return lines + (last != b"\n")
        lines += block.count(b"\n")
        last = block[-1:]
