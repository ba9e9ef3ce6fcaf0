"""The environment of what runs in a sandbox: an allow-list. Nothing of ours passes by itself.

A tool gets a plain base and the variables that its policy grants; a value that we do not have ourselves comes from the
user's .env. A command of `exec` gets the same, and of our PATH the folders that it will see, so that a command of a
virtual environment in the workspace is found.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeGuard

from hermes_sandbox.errors import InvalidArguments
from hermes_sandbox.policy import Policy

SAFE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BASE_ENV = {"PATH": SAFE_PATH, "LANG": "C.UTF-8"}


def granted(policy: Policy, secrets: Mapping[str, str]) -> dict[str, str]:
    """The base and those of the policy's names that are set. Raises Refused where `secrets` does: for a .env that is
    needed and cannot be used."""
    found = {name: value_of(name, secrets) for name in policy.env}
    return {**BASE_ENV, **{name: value for name, value in found.items() if _is_text(value)}}


def value_of(name: str, secrets: Mapping[str, str]) -> str | None:
    """What a name is worth: what is set out here wins over the user's .env, as long as it is not empty."""
    return os.environ.get(name) or secrets.get(name) or os.environ.get(name)


def search_path(policy: Policy, workspace: Path) -> str:
    """PATH for a command: the folders of ours that lie in the workspace or below what the policy shows, then the
    system's. On tier process everything is in sight."""
    python = Path(os.path.realpath(policy.python)).parent.parent if policy.python else Path(sys.base_prefix)
    shown = [workspace, python, *map(Path, (*policy.read, *policy.write))]
    ours = [Path(entry) for entry in os.environ.get("PATH", "").split(":") if entry.startswith("/")]
    if policy.tier != "process":
        ours = [entry for entry in ours if any(entry.is_relative_to(folder) for folder in shown)]
    return ":".join(dict.fromkeys([*filter(_is_text, map(str, ours)), *SAFE_PATH.split(":")]))


def _is_text(value: str | None) -> TypeGuard[str]:
    """Whether a value of our environment can be sent: one of other bytes than UTF-8 cannot, and counts as not set."""
    return value is not None and value == value.encode("utf-8", "ignore").decode()


def where_it_is(command: str) -> str:
    """A hint for a command that the sandbox did not find: where it is out here, or ""."""
    found = shutil.which(command)
    if found is None:
        return ""
    return f"it is {found} out here, which the sandbox does not show: grant what it needs with read (--read PATH)"


def check_command(argv: Sequence[str], cwd: str | None, env: Mapping[str, str] | None) -> None:
    """Raises InvalidArguments for what is no command, or holds what no program can be given."""
    if not argv or isinstance(argv, str) or not all(isinstance(word, str) for word in argv):
        raise InvalidArguments("the command is no list of words", hint='write it like ["ls", "-l"]')
    env = env or {}
    for what, words in (("the command", argv), ("cwd", [cwd or ""]), ("env", [*env, *env.values()])):
        for word in words:
            if "\0" in word or not _is_text(word):
                raise InvalidArguments(f"{what}: {word!r} is not text without NUL", hint="write UTF-8 text")
    if any("=" in name or not name for name in env):
        raise InvalidArguments("env: a name is empty or has = in it", hint='write {"NAME": "value"}')
