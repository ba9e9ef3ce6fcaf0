"""HERMES_HOME/.env: the values of the variables that policies grant by name.

A line is NAME=VALUE, with `export` in front or not. A value in double quotes may hold escapes such as \\n, one in
single quotes only \\\\ and \\'; one without quotes ends at ` #`. Nothing is expanded, no command is run, no line is
continued. An empty value counts as not set, as in a template that was not filled in.

The file is read when a name is wanted that our own environment does not have, and then it must be ours and ours alone.
No error ever shows a value, nor a line, which may be one.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from hermes_sandbox import files
from hermes_sandbox.errors import Refused

_LINE = re.compile(
    r"""\s*(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=\s*
    (?:"(?P<double>(?:[^"\\]|\\.)*)"\s*(?:\#.*)?
      |'(?P<single>(?:[^'\\]|\\.)*)'\s*(?:\#.*)?
      |(?P<plain>(?!["']|(?<=\s)\#)[^\0]*?)(?:\s+\#.*|\s*))\Z""",
    re.VERBOSE,
)
_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+=,-]+")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


class Secrets(Mapping[str, str]):
    """The values of one file. The first look at it raises Refused for a bad line, and for a file that others can get
    at; a file that is not there, or no path, has none."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path

    @functools.cached_property
    def _values(self) -> dict[str, str]:
        return read(self._path) if self._path is not None else {}

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:  # of anything that holds it
        return f"Secrets({self._path})"


def read(path: Path) -> dict[str, str]:
    """Name -> value of a .env. Raises Refused."""
    found = files.read_text(path)
    if found is None:
        return {}
    text, status = found
    values = {}
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            name, value = _parse(line, f"{path}: line {number}")
            values[name] = value
    values = {name: value for name, value in values.items() if value}
    if values:
        _check(path, status)
    return values


def _check(path: Path, status: os.stat_result) -> None:
    """Whether a file with secrets in it is ours alone. A link was followed: what counts is what it leads to."""
    target = os.path.realpath(path)
    if status.st_uid not in (os.geteuid(), 0):
        hint = f"make it yours: chown {os.geteuid()} {target}"
        raise Refused(f"{path} holds secrets and belongs to uid {status.st_uid}, who can change them", hint=hint)
    if status.st_mode & 0o077:
        raise Refused(f"{path} holds secrets and others can get at it", hint=f"chmod 600 {target}")


def _parse(line: str, where: str) -> tuple[str, str]:
    found = _LINE.match(line)
    if found is None:
        hint = (
            'write NAME=VALUE, with quotes around a value that holds spaces or quotes, and \\n in "..." for a new line'
        )
        raise Refused(f"{where} is no NAME=VALUE", hint=hint)
    if found["double"] is not None:
        value = re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), found["double"])
    elif found["single"] is not None:
        value = re.sub(r"\\([\\'])", r"\1", found["single"])
    else:
        value = found["plain"]
    return found["name"], value


def put(home: Path, values: Mapping[str, str]) -> None:
    """Set names in HOME/.env and leave its other lines as they are. Raises Refused."""
    path = home / ".env"
    with files.locked(home):
        read(path)  # what is wrong with it is told before it is written
        found = files.read_text(path)
        lines = found[0].removesuffix("\n").split("\n") if found is not None and found[0] else []
        for name, value in values.items():
            if "\0" in value or value != value.encode("utf-8", "ignore").decode():
                raise Refused(f"the value of {name} is no UTF-8 text", hint="give it as text, without NUL")
            line = f"{name}={_quoted(value)}"
            at = [index for index, each in enumerate(lines) if _name_of(each) == name]
            for index in at:
                lines[index] = line
            lines += [] if at else [line]
        files.write_private(path, "".join(f"{line}\n" for line in lines))


def _name_of(line: str) -> str:
    found = _LINE.match(line)
    return found["name"] if found is not None else ""


def _quoted(value: str) -> str:
    if _PLAIN.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'
