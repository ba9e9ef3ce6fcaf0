"""state.json: what `tools enable` and `tools disable` wrote. Nobody edits it, so it is read strictly.

It names tools and toolsets that are switched off, and the environment variables that a tool was granted; their values
are in .env.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from hermes_sandbox import files
from hermes_sandbox.errors import Refused

FILE = "state.json"
VERSION = 1
NAME = r"^[A-Za-z_][A-Za-z0-9_]*\Z"  # of an environment variable

VariableName = Annotated[str, msgspec.Meta(pattern=NAME)]


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`env`: tool -> names that it was granted."""

    version: int = VERSION
    disabled: tuple[str, ...] = ()
    env: Mapping[str, tuple[VariableName, ...]] = {}


class _Version(msgspec.Struct):
    version: int


def load(home: Path) -> State:
    """HOME/state.json; one that is not there says nothing. Raises Refused for one that is damaged, or of another
    version."""
    path = home / FILE
    again = "move it away, and enable and disable again what it held"
    found = files.read_text(path)
    if found is None:
        return State()
    data = found[0]
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version != VERSION:
            hint = f"update hermes-sandbox, or {again}"
            raise Refused(f"{path} is of version {version}, and this one knows version {VERSION}", hint=hint)
        return msgspec.json.decode(data, type=State)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Refused(f"{path} is damaged: {error}", hint=again) from None


def update(home: Path, change: Callable[[State], State]) -> State:
    """Replace HOME/state.json by what `change` makes of it. Raises Refused."""
    with files.locked(home):
        new = change(load(home))
        text = msgspec.json.format(msgspec.json.encode(new), indent=2).decode()
        files.write_private(home / FILE, text + "\n")
    return new
