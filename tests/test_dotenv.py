""".env: what a line may be, who may read the file, and that no error ever shows a value."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_sandbox import files
from hermes_sandbox.dotenv import Secrets, put, read
from hermes_sandbox.errors import Refused


def made(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / ".env"
    path.write_bytes(text.encode())
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("NAME=value", "value"),
        ("export NAME=value", "value"),
        ("  NAME = value  ", "value"),
        ("NAME=value # said", "value"),
        ("NAME=va#lue", "va#lue"),
        ("NAME=#lue", "#lue"),
        ("NAME=two words", "two words"),
        ("NAME=a=b=", "a=b="),
        ('NAME="two words" # said', "two words"),
        ('NAME="a # b"', "a # b"),
        ('NAME="a\\"b\\\\c\\nd"', 'a"b\\c\nd'),
        ("NAME='a \"b\" $c \\n'", 'a "b" $c \\n'),
        ("NAME='it\\'s'", "it's"),
        ("NAME=it's", "it's"),
        ("NAME=$(touch x)${HOME}`y`", "$(touch x)${HOME}`y`"),
        ("NAME=value\r", "value"),
        ("NAME=gr\u00fc\u00df", "gr\u00fc\u00df"),
        ("OTHER=1\n# NAME=no\n\n   \nNAME=value\n", "value"),
        ("NAME=first\nNAME=second", "second"),
        ("\ufeffNAME=value", "value"),
    ],
)
def test_a_line(tmp_path: Path, line: str, value: str) -> None:
    assert read(made(tmp_path, line))["NAME"] == value


@pytest.mark.parametrize("line", ["NAME=", 'NAME=""', "NAME=''", "NAME=   ", "NAME=  # to fill in"])
def test_an_empty_value_counts_as_not_set(tmp_path: Path, line: str) -> None:
    assert read(made(tmp_path, line)) == {}


@pytest.mark.parametrize(
    "line",
    [
        *("hunter2", "=hunter2", "1NAME=hunter2", "NA-ME=hunter2", "NAME hunter2", "export hunter2", "NAME: hunter2"),
        *(
            'NAME="hunter2',
            "NAME='hunter2",
            'NAME="hunter2"3',
            "NAME='hunter2' 3",
            'NAME="hunter2\\"',
            "NAME=hunter2\0",
        ),
    ],
)
def test_a_bad_line_is_named_by_its_number_and_never_shown(tmp_path: Path, line: str) -> None:
    path = made(tmp_path, f"# first\nGOOD=1\n{line}\n")
    with pytest.raises(Refused) as caught:
        read(path)
    assert caught.value.message == f"{path}: line 3 is no NAME=VALUE"
    assert "NAME=VALUE" in caught.value.hint
    assert "hunter2" not in caught.value.hint


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o666])
def test_a_file_with_secrets_that_others_can_get_at_is_refused(tmp_path: Path, mode: int) -> None:
    path = made(tmp_path, "NAME=hunter2\n", mode)
    with pytest.raises(Refused) as caught:
        read(path)
    assert str(path) in caught.value.message
    assert caught.value.hint == f"chmod 600 {path}"
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize("text", ["", "# NAME=x\n", "NAME=\n"])
def test_one_without_secrets_may_be_read_by_all(tmp_path: Path, text: str) -> None:
    assert read(made(tmp_path, text, 0o644)) == {}


def test_what_a_link_leads_to_is_what_counts(tmp_path: Path) -> None:
    target = made(tmp_path, "NAME=value\n", 0o644).rename(tmp_path / "shared")
    link = tmp_path / ".env"
    link.symlink_to(target)
    with pytest.raises(Refused) as caught:
        read(link)
    assert caught.value.hint == f"chmod 600 {target}"
    target.chmod(0o600)
    assert read(link) == {"NAME": "value"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_somebody_elses_file_is_refused(tmp_path: Path) -> None:
    path = made(tmp_path, "NAME=value\n")
    os.chown(path, 12345, 0)
    with pytest.raises(Refused) as caught:
        read(path)
    assert "belongs to uid 12345" in caught.value.message
    assert f"chown 0 {path}" in caught.value.hint


def test_what_is_no_file_of_text_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    (tmp_path / "binary").write_bytes(b"NAME=\xff\xfe\n")
    (tmp_path / "huge").write_bytes(b"#" * (files.MAX_TEXT + 1))
    for name, word in (
        ("fifo", "no regular file"),
        ("binary", "no UTF-8"),
        ("huge", "more than 1048576"),
        (".", "no regular file"),
    ):
        with pytest.raises(Refused, match=word):
            read(tmp_path / name)


# Secrets ----------------------------------------------------------------------------------------------------------


def test_it_is_read_when_it_is_wanted_and_once(tmp_path: Path) -> None:
    path = made(tmp_path, "bad line", 0o600)
    secrets = Secrets(path)
    path.write_text("NAME=value\n", encoding="utf-8")
    assert secrets.get("NAME") == "value"
    path.unlink()
    assert (secrets.get("NAME"), secrets.get("OTHER"), list(secrets)) == ("value", None, ["NAME"])


def test_one_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert dict(Secrets(tmp_path / ".env")) == dict(Secrets()) == {}


def test_values_are_not_in_what_is_printed_of_it(tmp_path: Path) -> None:
    secrets = Secrets(made(tmp_path, "NAME=hunter2\n"))
    assert secrets["NAME"] == "hunter2"
    assert "hunter2" not in repr(secrets) + str(secrets)


# Writing ----------------------------------------------------------------------------------------------------------


def test_other_lines_stay_as_they_are(tmp_path: Path) -> None:
    path = made(tmp_path, "# mine\nexport ONE=1 # one\n\nTWO='2'\nONE=again")
    put(tmp_path, {"ONE": "new", "THREE": "x y"})
    assert path.read_text(encoding="utf-8") == "# mine\nONE=new\n\nTWO='2'\nONE=new\nTHREE=\"x y\"\n"


def test_a_new_one_is_ours_alone(tmp_path: Path) -> None:
    home = tmp_path / "a" / "home"
    put(home, {"NAME": "value"})
    assert stat.S_IMODE((home / ".env").stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert [path.name for path in home.iterdir() if path.name not in (".env", files.LOCK)] == []


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target = made(tmp_path, "ONE=1\n").rename(tmp_path / "elsewhere")
    (tmp_path / ".env").symlink_to(target)
    put(tmp_path, {"TWO": "2"})
    assert (tmp_path / ".env").is_symlink()
    assert read(target) == {"ONE": "1", "TWO": "2"}


@pytest.mark.parametrize(("text", "mode"), [("ONE=1\n", 0o644), ("bad line\n", 0o600)])
def test_a_file_that_is_not_right_is_left_alone(tmp_path: Path, text: str, mode: int) -> None:
    path = made(tmp_path, text, mode)
    with pytest.raises(Refused):
        put(tmp_path, {"TWO": "2"})
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("value", ["a\0b", "\udc80"])
def test_what_no_program_can_be_given_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(Refused, match="the value of NAME is no UTF-8 text"):
        put(tmp_path, {"NAME": value})


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1))
def test_what_is_written_is_what_is_read(tmp_path_factory: pytest.TempPathFactory, value: str) -> None:
    home = tmp_path_factory.mktemp("home")
    put(home, {"BEFORE": "1", "NAME": value, "AFTER": "2"})
    assert read(home / ".env") == {"BEFORE": "1", "NAME": value, "AFTER": "2"}


def test_of_those_who_write_at_once_each_is_heard(tmp_path: Path) -> None:
    writers = [threading.Thread(target=put, args=(tmp_path, {f"NAME_{number}": "x"})) for number in range(16)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(read(tmp_path / ".env")) == 16
