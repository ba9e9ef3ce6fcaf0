"""Files that others may have put in place of what is expected: read without ever waiting, replaced whole or not at all.

A FIFO may stand where a file should be, a link may lead to an endless device, a file may be larger than memory. So each
is opened without waiting and read only when it is a regular one of a bounded size. Two kinds are written: those of a
cache, which may be left out, and those that nobody else may read, which are refused if they cannot be written. Who
reads one of these, changes it and writes it back does so under `locked`, or of two commands at a time one would undo
what the other wrote.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from hermes_sandbox.errors import Refused

MAX_TEXT = 1 << 20  # bytes of a file that the operator writes
LOCK = "state.lock"


def read_whole(path: Path, most: int) -> bytes:
    """A regular file of at most `most` bytes. Raises OSError."""
    return _read(path, most)[0]


def _read(path: Path, most: int) -> tuple[bytes, os.stat_result]:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "it is no regular file")
        if found.st_size > most:
            raise OSError(0, f"it has {found.st_size} bytes, more than {most}")
        with open(fd, "rb", closefd=False) as file:
            return file.read(most), found
    finally:
        os.close(fd)


def read_text(path: Path) -> tuple[str, os.stat_result] | None:
    """The text of a file of the operator's, and what the file is; None where there is none. A byte order mark is no
    part of the text. Raises Refused."""
    try:
        data, found = _read(path, MAX_TEXT)
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}", hint="mend its permissions") from None
    except NotADirectoryError:
        raise Refused(f"{path} cannot be read: {path.parent} is no folder", hint="move it away") from None
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}", hint="mend the file, or move it away") from None
    try:
        return data.decode("utf-8-sig"), found
    except UnicodeDecodeError:
        raise Refused(f"{path} is no UTF-8 text", hint="mend the file, or move it away") from None


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file of a cache, or leave it: a home that cannot be written makes us slower, not wrong."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, data)


def write_private(path: Path, text: str) -> None:
    """Replace a file, or what a link at its place leads to, by one of mode 0600 that is on the disk. Raises Refused."""
    try:
        _replace(Path(os.path.realpath(path)), text.encode(), sync=True)
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}", hint="mend its permissions") from None


def _replace(path: Path, data: bytes, sync: bool = False) -> None:
    new = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(home: Path) -> Iterator[None]:
    """Wait until no other command changes the files of `home`, which is made if it is not there. Raises Refused."""
    with contextlib.ExitStack() as held:
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(home / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            held.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            raise Refused(f"{home} cannot be written: {error.strerror}", hint="mend its permissions") from None
        yield
