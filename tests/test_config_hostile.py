"""The operator's files that hold what they should not: secrets in a wrong place, bombs, what is no file at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_sandbox import hermes_config, toolsets_file
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
