"""Where the user's files lie, and where a running supervisor may put short-lived ones."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
from pathlib import Path

from hermes_sandbox.errors import Refused

_PROFILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def get_hermes_home(profile: str | None = None) -> Path:
    """`$HERMES_HOME`, else `~/.hermes`; with a profile the folder `profiles/NAME` in it. It need not exist.

    Raises Refused for a relative HERMES_HOME, which would lie in the workspace, for a profile's name that is no plain
    name, and for a user without a home."""
    said = os.environ.get("HERMES_HOME", "")
    if said and not said.startswith("/"):
        raise Refused(f"HERMES_HOME is the relative path {said!r}", hint="begin it with /")
    try:
        home = Path(said or Path.home() / ".hermes").absolute()
    except RuntimeError:  # a container's made-up user id
        raise Refused("this user has no home folder", hint="set HERMES_HOME, or HOME") from None
    if profile is None:
        return home
    if not _PROFILE.fullmatch(profile):
        raise Refused(
            f"{profile!r} is no name of a profile",
            hint="use 1 to 64 letters, digits, dots, dashes and underscores, the first a letter or digit",
        )
    return home / "profiles" / profile


def runtime_dir() -> Path:
    """A folder that only we can use, gone after a reboot: in `$XDG_RUNTIME_DIR`, else in the temporary folder.

    Raises Refused when somebody else's folder stands in its place, or it cannot be made."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    try:
        if base.startswith("/") and os.path.isdir(base) and os.stat(base).st_uid == os.getuid():
            folder = Path(base) / "hermes-sandbox"
        else:
            folder = Path(tempfile.gettempdir()) / f"hermes-sandbox-{os.getuid()}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
    except OSError as error:
        hint = "set XDG_RUNTIME_DIR or TMPDIR to a folder of yours"
        raise Refused(f"the runtime folder cannot be made: {error}", hint=hint) from None
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise Refused(f"{folder} is not a folder of ours alone", hint=f"remove it: rm -r {folder}")
    return folder
