"""read_file: a page of a text file, without reading more of it than the page and its line count need.

Memory is bounded by the page, whatever the file: lines before it are counted in blocks, a long line is kept to its
first MAX_LINE characters, and the lines after it are counted only in a file of moderate size.
"""

from __future__ import annotations

import codecs
import io
import os

from tools._textfile import MARKS, WIDE, Unusable, encoding_of, mark_of, open_regular

SNIFF = 8 << 10  # bytes in which a NUL means binary
BLOCK = 1 << 20  # bytes that are read at a time
MAX_LINE = 2000  # characters of a line that are shown
MAX_PAGE = 100_000  # characters of a page
MAX_SKIPPED = 16 << 20  # bytes of one line that are looked through for its end
MAX_COUNTED = 64 << 20  # bytes of a file up to which its lines are counted, and UTF-16 is decoded
IMAGES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
    (b"II*\0", "image/tiff"),
    (b"MM\0*", "image/tiff"),
    (b"\0\0\1\0", "image/x-icon"),
)


def read(path, offset, limit):
    """The answer of read_file. Raises Unusable."""
    if offset < 1 or limit < 1:
        raise Unusable("offset and limit count from 1; %d and %d came" % (offset, limit))
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(SNIFF) or b""
        facts = {"path": path, "file_size": size, "is_binary": False, "is_image": False}
        encoding = mark_of(head)
        if encoding in WIDE:
            facts.update(_wide(path, file, head, offset, limit), encoding=encoding)
            return facts
        if b"\0" in head:
            image = image_type(head)
            if image is not None:
                facts.update(is_binary=True, is_image=True, mime=image, note="an image: it is not shown")
                return dict(facts, content="")
            return dict(facts, is_binary=True, content="", note="a binary file: nothing of it is shown")
        file.seek(len(next((mark for mark, name in MARKS if name == encoding), b"")))
        facts.update(_page(file, size, offset, limit))
        if encoding is not None:
            facts["encoding"] = encoding
        return facts


def image_type(head):
    """The media type of an image, by its first bytes, or None."""
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "image/webp"
    return next((name for magic, name in IMAGES if head.startswith(magic)), None)


def _wide(path, file, head, offset, limit):
    """A page of UTF-16 or UTF-32, which is decoded whole: its lines cannot be found otherwise."""
    encoding = mark_of(head)
    data = head + (file.read(MAX_COUNTED) or b"")
    if len(data) > MAX_COUNTED:
        raise Unusable("%s has more than %d MiB of %s: convert it to UTF-8 first" % (path, MAX_COUNTED >> 20, encoding))
    text = data.decode(encoding, "replace").encode("utf-8", "replace")
    return _page(io.BytesIO(text), len(text), offset, limit)


def _page(file, size, offset, limit):
    skipped = _skip(file, offset - 1)
    lines, used, stopped = [], 0, None
    while len(lines) < limit and stopped is None and used <= MAX_PAGE * 4:  # were each character of four bytes
        line, length, stopped = _line(file)
        if line is None:
            break
        lines.append((line, length))
        used += len(line)
    if not lines and offset > 1:
        raise Unusable("offset %d is past the end: the file has %d lines" % (offset, skipped))
    count, content, encoding = _shown(lines, offset)
    rest = _count(file) if size <= MAX_COUNTED and stopped is None else None
    more = count < len(lines) or (rest > 0 if rest is not None else bool(stopped or file.read(1)))
    answer = {
        "content": content,
        "encoding": encoding,
        "total_lines": None if rest is None else offset - 1 + len(lines) + rest,
        "truncated": more,
    }
    if more and (count < len(lines) or stopped is None):
        answer["next_offset"] = offset + count
    if rest is None:
        answer["note"] = stopped or "the file has more than %d MiB, so its lines were not counted" % (MAX_COUNTED >> 20)
    return answer


def _shown(lines, offset):
    """Numbered lines, as many as fit on a page: (how many, the text, its encoding)."""
    encoding = encoding_of(b"\n".join(line for line, _length in lines))
    encoding = encoding if encoding in ("utf-8", "latin-1") else "utf-8"  # a mark in the middle of a file is none
    shown, used = [], 0
    for number, (line, length) in enumerate(lines, offset):
        text = line.decode(encoding, "replace")
        if len(line) < length or len(text) > MAX_LINE:
            more = "" if length < MAX_SKIPPED else "at least "
            text = "%s ... [a line of %s%d bytes, cut]" % (text[:MAX_LINE], more, length)
        entry = "%d|%s" % (number, text)
        used += len(entry) + 1
        if used > MAX_PAGE and shown:
            break
        shown.append(entry)
    return len(shown), "\n".join(shown), encoding


def _line(file):
    """The next line: (its first bytes without its end, or None at the end of the file; its length, with its end if it
    is cut; why
    nothing after it can be read, or None)."""
    most = MAX_LINE * 4
    line = file.readline(most)
    if not line:
        return None, 0, None
    if line.endswith(b"\n") or len(line) < most:
        line = line[:-1] if line.endswith(b"\n") else line
        line = line[:-1] if line.endswith(b"\r") else line
        return line, len(line), None
    length = len(line)
    # The cut may have gone through a character, of which nothing shall stay.
    line = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode(line).encode("utf-8", "surrogateescape")
    while length < MAX_SKIPPED:
        more = file.readline(BLOCK)
        length += len(more)
        if not more or more.endswith(b"\n"):
            return line, length, None
    return line, length, "nothing was read after the last line shown, which is longer than %d MiB" % (MAX_SKIPPED >> 20)


def _skip(file, lines):
    """Go to the beginning of the line after `lines` lines. Returns how many there were, `lines` at most."""
    seen, last = 0, b"\n"
    while seen < lines:
        block = file.read(BLOCK)
        if not block:
            return seen + (last != b"\n")
        last = block[-1:]
        found = block.count(b"\n")
        if seen + found >= lines:
            at = -1
            for _ in range(lines - seen):
                at = block.index(b"\n", at + 1)
            file.seek(at + 1 - len(block), os.SEEK_CUR)
        seen += found
    return lines


def _count(file):
    """How many lines come after this place."""
    lines, last = 0, b"\n"
    while True:
        block = file.read(BLOCK)
        if not block:
            return lines + (last != b"\n")
        lines += block.count(b"\n")
        last = block[-1:]
