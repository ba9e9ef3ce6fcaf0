"""The operator's files that hold what they should not: secrets in a wrong place, bombs, what is no file at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hermes_sandbox import files, hermes_config, state, toolsets_file
from hermes_sandbox.config import load
from hermes_sandbox.errors import Refused


def refused(home: Path, file: str, text: str) -> Refused:
    (home / file).write_text(text, encoding="utf-8")
    with pytest.raises(Refused) as caught:
        load(home)
    return caught.value


@pytest.mark.parametrize(
    "text",
    [
        "sandbox: {policy: {env: {API_KEY: sk-SECRET}}}",
        "sandbox: {policy: {env: ['API_KEY=sk-SECRET']}}",
        "sandbox: {policy: {env: [sk-SECRET]}}",
        "sandbox: {ceiling: {env: API_KEY=sk-SECRET}}",
        "tools: {x: {policy: {env: sk-SECRET}}}",
        "terminal: {env_passthrough: ['API_KEY=sk-SECRET']}",
        "terminal: {backend: docker, docker_forward_env: ['API_KEY=sk-SECRET']}",
        "terminal: {backend: docker, docker_volumes: ['API_KEY=sk-SECRET']}",
    ],
)
def test_a_value_where_a_name_should_be_is_shown_nowhere(tmp_path: Path, text: str) -> None:
    error = refused(tmp_path, hermes_config.FILE, text)
    assert "SECRET" not in error.message + error.hint
    assert ("API_KEY" in error.message) == ("API_KEY" in text and "volumes" not in text)


@pytest.mark.parametrize("text", ["env = ['API_KEY=sk-SECRET']", "env = {API_KEY = 'sk-SECRET'}", "env = 'sk-SECRET'"])
def test_nor_in_toolsets_toml(tmp_path: Path, text: str) -> None:
    error = refused(tmp_path, toolsets_file.FILE, f"[toolsets.x.policy]\n{text}\n")
    assert "toolsets.x.policy.env" in error.message
    assert ".env" in error.hint
    assert "SECRET" not in error.message + error.hint


# What is no file --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [toolsets_file.FILE, hermes_config.FILE, state.FILE])
@pytest.mark.parametrize(
    ("kind", "why"),
    [("fifo", "no regular file"), ("folder", "no regular file"), ("zero", "no regular file"), ("large", "more than")],
)
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, name: str, kind: str, why: str) -> None:
    path = tmp_path / name
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(b"#" * (files.MAX_TEXT + 1))
    with pytest.raises(Refused, match=why) as caught:
        load(tmp_path)
    assert str(path) in caught.value.message
    assert "move it away" in caught.value.hint


def test_a_home_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    with pytest.raises(Refused, match=f"{tmp_path / 'home'} is no folder"):
        load(tmp_path / "home")


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    (tmp_path / toolsets_file.FILE).write_text("core = ['one']", encoding="utf-8-sig")
    (tmp_path / hermes_config.FILE).write_text("toolsets: [web]", encoding="utf-8-sig")
    assert (load(tmp_path).core, load(tmp_path).chosen) == (("one",), ("web",))


def test_a_number_that_nobody_can_hold_is_no_toml(tmp_path: Path) -> None:
    assert "is no TOML" in refused(tmp_path, toolsets_file.FILE, "[defaults]\npids = " + "9" * 5000).message


# Bombs ------------------------------------------------------------------------------------------------------------

DOUBLING = "\n".join(["y0: &a0 [x, x]", *(f"y{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 30))])


@pytest.mark.parametrize("text", [f"{DOUBLING}\nterminal: {{timeout: *a29}}", f"{DOUBLING}\n? *a29\n: 1", "a: &a [*a]"])
def test_aliases_that_mean_too_much_are_refused_at_once(tmp_path: Path, text: str) -> None:
    assert "once each alias is what it stands for" in refused(tmp_path, hermes_config.FILE, text).message
