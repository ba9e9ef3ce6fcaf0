"""state.json: what commands wrote, read strictly; and the grants in it as a layer of their tool."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import msgspec
import pytest

from hermes_sandbox import files, toolsets_file
from hermes_sandbox.config import Config, load
from hermes_sandbox.errors import Refused
from hermes_sandbox.policy import resolve
from hermes_sandbox.state import FILE, State, update
from hermes_sandbox.state import load as load_state


def made(home: Path, state: str, toml: str = "") -> Config:
    (home / FILE).write_text(state, encoding="utf-8")
    (home / toolsets_file.FILE).write_text(toml, encoding="utf-8")
    return load(home)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert load_state(home) == State()
    state = State(disabled=("terminal", "web"), env={"search": ("KEY", "OTHER")})
    assert update(home, lambda _: state) == load_state(home) == state
    assert stat.S_IMODE((home / FILE).stat().st_mode) == 0o600


def test_of_those_who_write_at_once_each_is_heard(tmp_path: Path) -> None:
    def disable(number: int) -> None:
        update(tmp_path, lambda kept: msgspec.structs.replace(kept, disabled=(*kept.disabled, f"tool_{number}")))

    writers = [threading.Thread(target=disable, args=(number,)) for number in range(16)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(load_state(tmp_path).disabled) == 16


def test_a_home_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(Refused, match="file/home cannot be written: Not a directory"):
        update(tmp_path / "file" / "home", lambda kept: kept)
    (tmp_path / FILE).mkdir()
    with pytest.raises(Refused, match="cannot be read: it is no regular file"):
        update(tmp_path, lambda kept: kept)


def test_a_write_that_fails_leaves_nothing_half_done(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(Refused, match="folder cannot be written"):
        files.write_private(tmp_path / "folder", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "is damaged", "move it away"),
        ("{", "is damaged", "move it away"),
        ("[]", "is damaged", "move it away"),
        ("{}", "is damaged", "move it away"),
        ('{"version": 1', "is damaged", "move it away"),
        ('{"version": "1"}', "is damaged", "move it away"),
        ('{"version": 2, "new": 1}', "is of version 2, and this one knows version 1", "update hermes-sandbox"),
        ('{"version": 1, "new": 1}', "`new`", "move it away"),
        ('{"version": 1, "disabled": "web"}', "disabled", "move it away"),
        ('{"version": 1, "disabled": [1]}', "disabled", "move it away"),
        ('{"version": 1, "env": {"a": ["NOT A NAME"]}}', "env", "move it away"),
        ('{"version": 1, "env": {"a": ["NAME\\n"]}}', "env", "move it away"),
        ("[" * 100_000, "is damaged", "move it away"),
        ('{"version": 1, "disabled": ["\udcff"]}', "is no UTF-8 text", "move it away"),
    ],
)
def test_one_that_is_not_right_is_refused_and_left_alone(tmp_path: Path, text: str, message: str, hint: str) -> None:
    path = tmp_path / FILE
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    before = path.read_bytes()
    for attempt in (lambda: load(tmp_path), lambda: update(tmp_path, lambda kept: kept)):
        with pytest.raises(Refused) as caught:
            attempt()
        assert str(path) in caught.value.message
        assert message in caught.value.message
        assert hint in caught.value.hint
    assert path.read_bytes() == before


TOML = """
[toolsets.web]
tools = ["search"]
[toolsets.web.policy]
env = ["ONE"]
"""
GRANT = '{"version": 1, "env": {"search": ["TWO", "ONE"]}}'


def test_a_grant_adds_to_what_the_tool_has(tmp_path: Path) -> None:
    config = made(tmp_path, GRANT, TOML)
    layers = config.layers("web", "search")
    found = resolve(layers)
    assert found.env == ("ONE", "TWO")
    assert found.sources["env"] == layers[-1].source == "state.json: env.search"
    assert resolve(config.layers("web", "other")).env == ()
    assert config.grants("search")


@pytest.mark.parametrize("table", ["defaults", "toolsets.web.policy", "tools.search.policy"])
def test_it_adds_to_a_list_that_nobody_called_the_most(tmp_path: Path, table: str) -> None:
    found = resolve(made(tmp_path, GRANT, f'[{table}]\nenv = ["ONE"]\n').layers("web", "search"))
    assert set(found.env) == {"ONE", "TWO"}


@pytest.mark.parametrize(
    ("toml", "yaml", "source"),
    [
        ('[toolsets.web.ceiling]\nenv = ["ONE"]\n', "", "toolsets.web"),
        ("[tools.search.ceiling]\nenv = []\n[tools.search.policy]\nenv = []\n", "", "tools.search"),
        ("", "sandbox: {ceiling: {env: []}}", "config.yaml: sandbox"),
        ("", "tools: {search: {ceiling: {env: [ONE]}}}", "config.yaml: tools.search"),
    ],
)
def test_a_ceiling_holds_for_it_and_both_are_named(tmp_path: Path, toml: str, yaml: str, source: str) -> None:
    (tmp_path / "config.yaml").write_text(yaml, encoding="utf-8")
    layers = made(tmp_path, GRANT, TOML + toml).layers("web", "search")
    with pytest.raises(Refused, match=r"^env = .*TWO.* \(state\.json: env\.search\) is beyond the ceiling") as caught:
        resolve(layers)
    assert source in caught.value.message


def test_what_a_call_may_ask_for_besides_stays(tmp_path: Path) -> None:
    config = made(tmp_path, GRANT, TOML + '[toolsets.web.ceiling]\nenv = ["ONE", "TWO", "THREE"]\n')
    found = resolve(config.layers("web", "search"))
    assert (found.env, found.sources["env"]) == (("ONE", "TWO"), "state.json: env.search")
    assert found.ceilings["env"] == (("ONE", "TWO", "THREE"), "toolsets.web")


def test_names_that_are_off_are_those_of_both_files(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("tools: {disabled: [one]}\n", encoding="utf-8")
    assert made(tmp_path, '{"version": 1, "disabled": ["two"]}').disabled == {"one", "two"}
