"""Where the user's files lie, and the folder for what lives as long as a supervisor."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from hermes_sandbox.errors import Refused
from hermes_sandbox.home import get_hermes_home, runtime_dir


def test_the_home_is_what_the_environment_says_else_below_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", "/srv/hermes")
    assert get_hermes_home() == Path("/srv/hermes")
    monkeypatch.setenv("HERMES_HOME", "")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert get_hermes_home() == Path("/home/somebody/.hermes")


def test_a_relative_home_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would lie in the workspace, which tools may write."""
    monkeypatch.setenv("HERMES_HOME", "own")
    with pytest.raises(Refused, match="relative path 'own'") as caught:
        get_hermes_home()
    assert "begin it with /" in caught.value.hint


def test_each_profile_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", "/srv/hermes")
    assert get_hermes_home("work") == Path("/srv/hermes/profiles/work")


@pytest.mark.parametrize("name", ["", "..", ".", "../x", "a/b", "/etc", ".hidden", "-x", "x" * 65, "a b", "x\n", "ä"])
def test_a_profile_is_a_plain_name(name: str) -> None:
    with pytest.raises(Refused) as caught:
        get_hermes_home(name)
    assert repr(name) in caught.value.message
    assert "letters" in caught.value.hint


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_the_runtime_folder_is_ours_alone(base: Path) -> None:
    folder = runtime_dir()
    assert folder == base / "hermes-sandbox"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert runtime_dir() == folder  # again


def test_a_wide_umask_does_not_open_it(base: Path) -> None:
    before = os.umask(0)
    try:
        assert stat.S_IMODE(runtime_dir().stat().st_mode) == 0o700
    finally:
        os.umask(before)


@pytest.mark.parametrize("base_exists", [False, True])
def test_without_a_runtime_folder_of_the_system_it_is_in_the_temporary_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, base_exists: bool
) -> None:
    if base_exists and os.geteuid() == 0:
        somebodys = tmp_path / "somebodys"
        somebodys.mkdir()
        os.chown(somebodys, 12345, 12345)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(somebodys))
    else:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert runtime_dir() == tmp_path / f"hermes-sandbox-{os.getuid()}"


@pytest.mark.parametrize("planted", ["link", "file", "open", "dangling"])
def test_what_somebody_planted_in_its_place_is_refused(base: Path, planted: str) -> None:
    place, other = base / "hermes-sandbox", base / "other"
    other.mkdir(mode=0o700)
    if planted == "link":
        place.symlink_to(other)
    elif planted == "dangling":
        place.symlink_to(base / "missing")
    elif planted == "file":
        place.touch(mode=0o600)
    else:
        place.mkdir()
        place.chmod(0o755)
    with pytest.raises(Refused) as caught:
        runtime_dir()
    assert str(place) in caught.value.message
    assert "rm -r" in caught.value.hint
    assert not (base / "missing").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder away")
def test_a_strangers_folder_is_refused(base: Path) -> None:
    place = base / "hermes-sandbox"
    place.mkdir(mode=0o700)
    os.chown(place, 12345, 12345)
    with pytest.raises(Refused):
        runtime_dir()


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("HERMES_HOME")
    monkeypatch.setattr(Path, "home", none)
    with pytest.raises(Refused) as caught:
        get_hermes_home()
    assert "HERMES_HOME" in caught.value.hint


def test_a_runtime_folder_that_cannot_be_made_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_RUNTIME_DIR", "relative/is/no/folder/of/the/system")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    with pytest.raises(Refused) as caught:
        runtime_dir()
    assert str(tmp_path / "file") in caught.value.message
    assert "TMPDIR" in caught.value.hint
