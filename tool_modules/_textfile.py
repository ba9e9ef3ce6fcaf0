"""Files as tools need them: opened without ever waiting, decoded without losing a byte, replaced whole or not at all.

Text is UTF-8 with `surrogateescape`: bytes that are no UTF-8 survive reading, editing and writing unchanged.
"""

from __future__ import annotations

import codecs
import difflib
import errno
import os
import secrets
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
IMAGES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
    (b"RIFF", "image/webp"),
)
TEMPORARY = ".hermes-sandbox-"  # how the name of a file begins that is being written


class Unusable(Exception):
    """A path that cannot be used; the message is for the model and says what to do."""


def open_regular(path):
    """A binary file object of a regular file. Raises Unusable for anything else, at once, whatever it is."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise Unusable(_why_not_opened(path, error)) from None
    kind = stat.S_IFMT(os.fstat(fd).st_mode)
    if kind != stat.S_IFREG:
        os.close(fd)
        raise Unusable(_not_a_file(path, kind))
    os.set_blocking(fd, True)
    return open(fd, "rb")


def read_bytes(path):
    with open_regular(path) as file:
        return file.read()


def _why_not_opened(path, error):
    if error.errno == errno.ENOENT:
        near = near_names(path)
        hint = "did you mean %s?" % " or ".join(near) if near else "search_files with target=files lists what there is"
        return "%s is not there; %s" % (path, hint)
    if error.errno == errno.ENXIO:  # a socket cannot be opened at all
        return _not_a_file(path, stat.S_IFSOCK)
    return "%s cannot be opened: %s" % (path, error.strerror)


def _not_a_file(path, kind):
    hint = "; search_files with target=files lists what is in it" if kind == stat.S_IFDIR else ""
    return "%s is %s, not a file%s" % (path, KINDS.get(kind, "something else"), hint)


def near_names(path):
    """Existing paths whose name is like that of `path`, which is not there."""
    folder, name = os.path.split(path)
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return []
    folded = {each.lower(): each for each in names}
    found = difflib.get_close_matches(name.lower(), list(folded), n=3, cutoff=0.6)
    return [os.path.join(folder, folded[each]) for each in found]


def decode(data):
    return data.decode("utf-8", "surrogateescape")


def encode(text):
    return text.encode("utf-8", "surrogateescape")


def write_atomic(path, data, mode=None):
    """Replace the file at `path`, or make it, with its parents. Whoever is killed in the middle leaves the old content.

    A symbolic link is followed: its target is replaced. Mode and owner stay; `mode` sets another mode. Raises
    Unusable."""
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    try:
        old = os.stat(target)
    except FileNotFoundError:
        old = None
    except OSError as error:
        raise Unusable("%s cannot be written: %s" % (path, error.strerror)) from None
    if old is not None and not stat.S_ISREG(old.st_mode):
        raise Unusable(_not_a_file(path, stat.S_IFMT(old.st_mode)))
    try:
        os.makedirs(folder, exist_ok=True)
        _replace(target, folder, data, old, mode)
    except OSError as error:
        hint = ""
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            hint = "; files are replaced whole, so its folder must be writable"
        raise Unusable("%s cannot be written: %s%s" % (path, error.strerror, hint)) from None


def _replace(target, folder, data, old, mode):
    temporary = os.path.join(folder, TEMPORARY + secrets.token_hex(8))
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if old is not None and (old.st_uid, old.st_gid) != (os.getuid(), os.getgid()):
                try:
                    os.fchown(fd, old.st_uid, old.st_gid)
                except PermissionError:
                    pass  # only root may give a file away; the content is what was asked for
            if mode is not None or old is not None:
                # Without set-uid and set-gid: whoever could change the content must not gain the owner's rights by it.
                os.fchmod(fd, stat.S_IMODE(old.st_mode if mode is None else mode) & 0o1777)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
