"""Files as tools need them: opened without ever waiting, and decoded so that every byte survives an edit.

Text that is UTF-8 is decoded with `surrogateescape`, so bytes that are none travel through unchanged. Text without one
valid UTF-8 sequence is taken for Latin-1, where a byte is a character. Whoever opens a file may find that it is not
what it was a moment ago: `open_regular` never blocks, whatever it finds.
"""

from __future__ import annotations

import codecs
import errno
import os
import stat

KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# The longer mark first: UTF-32's begins with UTF-16's.
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
WIDE = ("utf-16", "utf-32")


class Unusable(Exception):
    """What was asked for cannot be done; the message is for the model and says what to do. `facts` go into the answer
    beside it."""

    def __init__(self, message, **facts):
        super().__init__(message)
        self.facts = facts


def check_path(path):
    """Raises Unusable for what no path can be, so that no system call has to."""
    try:
        is_path = bool(path) and b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        is_path = False
    if not is_path:
        raise Unusable("%a cannot be a path" % path[:200])


def open_regular(path):
    """A binary file object of a regular file. Raises Unusable for anything else, at once, whatever it is."""
    try:
        # Looked at first, since some devices act on being opened; and again when it is open, since it may have changed.
        kind = stat.S_IFMT(os.stat(path).st_mode)
        if kind == stat.S_IFREG:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
            kind = stat.S_IFMT(os.fstat(fd).st_mode)
            if kind == stat.S_IFREG:
                return open(fd, "rb")
            os.close(fd)
    except OSError as error:
        raise not_opened(path, error) from None
    raise not_a_file(path, kind)


def read_bytes(path):
    """All of a regular file. Raises Unusable."""
    with open_regular(path) as file:
        return file.read() or b""


def not_opened(path, error):
    """The Unusable for a path that cannot be opened."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        if os.path.islink(path):
            return Unusable("%s is a symbolic link to %s, which is not there" % (path, os.readlink(path)))
        near = near_names(path)
        hint = "did you mean %s?" % " or ".join(near) if near else "search_files with target=files lists what there is"
        return Unusable("%s is not there; %s" % (path, hint), **({"similar_files": near} if near else {}))
    return Unusable("%s cannot be opened: %s" % (path, error.strerror))


def not_a_file(path, kind):
    """The Unusable for a path with something else than a file at it. `kind` is that of stat.S_IFMT."""
    hint = "; search_files with target=files lists what is in it" if kind == stat.S_IFDIR else ""
    return Unusable("%s is %s, not a file%s" % (path, KINDS.get(kind, "something else"), hint))


def near_names(path):
    """Up to three paths that exist, with a name like that of `path`; if its folder is not there either, like that."""
    import difflib  # here, as most calls need none of it and a cold start pays for every import

    folder, name = os.path.split(path.rstrip("/"))
    if folder and not os.path.isdir(folder):
        folders = near_names(folder)
        there = [os.path.join(each, name) for each in folders if os.path.lexists(os.path.join(each, name))]
        return there or folders
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return []
    folded = {each.lower(): each for each in names}
    found = difflib.get_close_matches(name.lower(), list(folded), n=3, cutoff=0.6)
    return [os.path.join(folder, folded[each]) for each in found]


def mark_of(data):
    """The encoding that a byte order mark at the beginning names, or None."""
    return next((name for mark, name in MARKS if data.startswith(mark)), None)


def encoding_of(data):
    """utf-8, utf-8-sig, utf-16, utf-32 or latin-1; of a part of a file as well. A few bad bytes among UTF-8 are just
    that; only text in which nothing is UTF-8 is something else."""
    mark = mark_of(data)
    if mark is not None:
        return mark
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        try:
            data.decode("utf-8", "surrogateescape").encode("ascii", "surrogateescape")
        except UnicodeEncodeError:
            return "utf-8"
        return "latin-1"
    return "utf-8"


def decode(data, path):
    """(text, encoding) such that `encode` gives back the same bytes; the mark is no part of the text. Raises Unusable
    for UTF-16 and UTF-32."""
    encoding = encoding_of(data)
    if encoding in WIDE:
        raise Unusable("%s is %s: only UTF-8 and single-byte text can be patched; convert it first" % (path, encoding))
    return data.decode(encoding, "surrogateescape"), encoding


def encode(text, encoding="utf-8"):
    """Raises Unusable for a character that the encoding has no bytes for."""
    try:
        return text.encode(encoding, "surrogateescape")
    except UnicodeEncodeError as error:
        odd = text[error.start : error.end]
        raise Unusable("the text has %a in it, which cannot be written as %s" % (odd[:20], encoding)) from None
