"""Files of the operator's that nobody else may read, and that commands of ours write: whole or not at all, mode 0600.

Who reads one, changes it and writes it back does so under `locked`, or of two commands at a time one would undo what
the other wrote.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from hermes_sandbox.errors import Refused

LOCK = "state.lock"


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


def write(path: Path, text: str) -> None:
    """Replace a file, or what a link at its place leads to. Raises Refused."""
    target = Path(os.path.realpath(path))
    new = target.with_name(f".{target.name}.{os.urandom(8).hex()}")
    try:
        try:
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, target)
        finally:
            new.unlink(missing_ok=True)
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}", hint="mend its permissions") from None
