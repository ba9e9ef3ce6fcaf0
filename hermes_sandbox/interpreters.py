"""Which Python runs a worker: our own, or the one that the policy names.

Nothing is started to find out. An installation tells its version and prefix by its layout, PREFIX/bin/python3.X beside
PREFIX/lib/python3.X/os.py, which is what the interpreter itself goes by. So a path that a caller may choose freely is
never run out here, and what is no interpreter is refused before anything is started.

It is the base interpreter that runs: a virtual environment's link is followed to it, as the worker is to have nothing
of the environment's. A version manager's script is refused, since it would look for its versions in a home that is not
there.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import msgspec

OLDEST = (3, 9)  # what the worker's own files run on
_NAME = re.compile(r"python([0-9]+(?:\.[0-9]+)?)?[a-z]*")
_LIBRARY = re.compile(r"python([0-9]+)\.([0-9]+)[a-z]*")  # 3.13t is free-threaded
_ASK = "ask it for the path: PYTHON -c 'import os, sys; print(os.path.realpath(sys._base_executable))'"


class NoInterpreter(ValueError):
    """The path leads to nothing that can run a worker. The hint says what to write."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class Interpreter(msgspec.Struct, frozen=True):
    """`path` is the file itself, behind all links; `prefix` the folder that holds all of the installation, and `alias`
    another name of that, by which programs may call for it."""

    path: Path
    prefix: Path
    version: tuple[int, int]
    alias: Path | None = None

    @property
    def like_ours(self) -> bool:
        """Whether compiled code of ours runs there."""
        return self.version == sys.version_info[:2]


def own() -> Interpreter:
    """The base interpreter of this process."""
    path = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    prefix = Path(os.path.realpath(sys.base_prefix))
    return Interpreter(Path(path), prefix, sys.version_info[:2], Path(sys.base_prefix))


def find(path: str) -> Interpreter:
    """The interpreter at an absolute path. Raises NoInterpreter."""
    real = Path(os.path.realpath(path))
    shown = path if str(real) == path else f"{path}, which is {real},"
    if not real.is_file():
        raise NoInterpreter(f"{shown} is not there", "write the path of an interpreter that is")
    if not os.access(real, os.X_OK):
        raise NoInterpreter(f"{shown} cannot be executed", "write the path of an interpreter, not of a script")
    if _first_bytes(real) == b"#!":
        raise NoInterpreter(f"{shown} is a script, as version managers have them", _ASK)
    if (environment := real.parent.parent / "pyvenv.cfg").is_file():
        raise NoInterpreter(
            f"{shown} is a copy in a virtual environment", f"write the one below `home` of {environment}"
        )
    version = _version(real)
    if version < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise NoInterpreter(f"{shown} is Python {version[0]}.{version[1]}", f"use Python {oldest} or newer")
    return Interpreter(real, real.parent.parent, version)


def _first_bytes(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(2)
    except OSError:  # it may be executed and not read
        return b""


def _version(real: Path) -> tuple[int, int]:
    """By the standard library that lies beside it: the one that bears its name, or the only one."""
    prefix = real.parent.parent
    found = {} if real.parent.name != "bin" else {
        folder.parent.name: (int(name[1]), int(name[2]))
        for library in ("lib", "lib64")
        for folder in sorted(prefix.glob(f"{library}/python*/os.py"))
        if (name := _LIBRARY.fullmatch(folder.parent.name))
    }  # fmt: skip
    if real.name in found:
        return found[real.name]
    if _NAME.fullmatch(real.name) and len(set(found.values())) == 1:
        return next(iter(found.values()))
    raise NoInterpreter(
        f"{real} lies beside no standard library ({prefix}/lib/{real.name}/os.py), so it is no Python installation's",
        _ASK,
    )
