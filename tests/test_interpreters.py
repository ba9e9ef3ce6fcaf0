"""What is an interpreter, told without running it: by trees of plain files, and by the real ones of this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hermes_sandbox import interpreters
from hermes_sandbox.interpreters import NoInterpreter, find

ELF = b"\x7fELF, and never run"


def installation(prefix: Path, *libraries: str, name: str = "python3.12", text: bytes = ELF, mode: int = 0o755) -> Path:
    """A folder that looks like a Python installation. Returns its interpreter."""
    for library in libraries:
        folder = prefix / library
        folder.mkdir(parents=True)
        (folder / "os.py").touch()
    program = prefix / "bin" / name
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_bytes(text)
    program.chmod(mode)
    return program


@pytest.mark.parametrize(
    ("name", "libraries", "version"),
    [
        ("python3.12", ["lib/python3.12"], (3, 12)),
        ("python3.12", ["lib64/python3.12"], (3, 12)),
        ("python3.9", ["lib/python3.9", "lib/python3.12", "lib/python2.7"], (3, 9)),
        ("python3.13t", ["lib/python3.13", "lib/python3.13t"], (3, 13)),
        ("python3", ["lib/python3.10"], (3, 10)),
        ("python", ["lib/python3.10", "lib64/python3.10"], (3, 10)),
        ("python3.12d", ["lib/python3.12"], (3, 12)),
    ],
)
def test_an_installation_tells_its_version_and_prefix(
    tmp_path: Path, name: str, libraries: list[str], version: tuple[int, int]
) -> None:
    prefix = tmp_path.resolve() / "py"
    program = installation(prefix, *libraries, name=name)
    found = find(str(program))
    assert (found.path, found.prefix, found.version) == (program, prefix, version)
    assert found.like_ours is (version == sys.version_info[:2])


def test_a_virtual_environments_link_leads_to_the_base(tmp_path: Path) -> None:
    program = installation(tmp_path.resolve() / "py", "lib/python3.12")
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    link = tmp_path / "venv" / "bin" / "python"
    link.symlink_to(program)
    assert find(str(link)).path == program


@pytest.mark.parametrize(
    ("libraries", "how", "says", "hint"),
    [
        (["lib/python3.8"], {"name": "python3.8"}, "is Python 3.8", "3.9 or newer"),
        (["lib/python2.7"], {"name": "python2.7"}, "is Python 2.7", "3.9 or newer"),
        (["lib/python3.12"], {"text": b"#!/bin/sh\n"}, "is a script", "sys._base_executable"),
        (["lib/python3.12"], {"mode": 0o644}, "cannot be executed", "not of a script"),
        (["lib/python3.12"], {"name": "bash"}, "beside no standard library", "sys._base_executable"),
        (["lib/python3.10", "lib/python3.12"], {"name": "python3"}, "beside no standard library", ""),
        (["lib/python3.10", "lib/python3.11"], {"name": "python3.12"}, "beside no standard library", ""),
        ([], {}, "beside no standard library", ""),
    ],
)
def test_what_is_no_interpreter(
    tmp_path: Path, libraries: list[str], how: dict[str, object], says: str, hint: str
) -> None:
    program = installation(tmp_path / "py", *libraries, **how)  # type: ignore[arg-type]
    with pytest.raises(NoInterpreter, match=says) as caught:
        find(str(program))
    assert str(program) in str(caught.value)
    assert caught.value.hint
    assert hint in caught.value.hint


def test_a_copy_in_a_virtual_environment_is_none(tmp_path: Path) -> None:
    program = installation(tmp_path / "venv")
    (tmp_path / "venv" / "pyvenv.cfg").write_text("home = /usr/bin\n", encoding="utf-8")
    with pytest.raises(NoInterpreter, match="a copy in a virtual environment") as caught:
        find(str(program))
    assert "`home`" in caught.value.hint


@pytest.mark.parametrize("make", ["nothing", "folder", "loop", "dangling"])
def test_what_is_not_there(tmp_path: Path, make: str) -> None:
    path = tmp_path / "python3"
    if make == "folder":
        path.mkdir()
    elif make != "nothing":
        path.symlink_to(path if make == "loop" else tmp_path / "gone")
    with pytest.raises(NoInterpreter, match="is not there"):
        find(str(path))


def test_an_interpreter_outside_of_a_bin_folder_has_no_prefix_that_could_be_shown(tmp_path: Path) -> None:
    """Or the root of the file system would be one, for /x/python3.12 beside /lib/python3.12."""
    program = installation(tmp_path / "py", "lib/python3.12")
    other = program.parent.parent / "x" / "python3.12"
    other.parent.mkdir()
    program.rename(other)
    with pytest.raises(NoInterpreter, match="beside no standard library"):
        find(str(other))


def test_our_own_is_found_as_what_it_is() -> None:
    own = interpreters.own()
    assert own.version == sys.version_info[:2]
    assert own.like_ours
    assert own.path == Path(os.path.realpath(sys.executable))
    found = find(sys.executable)
    assert (found.path, found.version) == (own.path, own.version)
