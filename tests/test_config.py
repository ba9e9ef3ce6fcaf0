"""toolsets.toml: what it may say, how the operator's is merged over ours, and where it is never read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hermes_sandbox.config import FILE, load
from hermes_sandbox.errors import Refused
from hermes_sandbox.policy import UNSET, resolve


def write(home: Path, text: str) -> Path:
    path = home / FILE
    path.write_text(text, encoding="utf-8")
    return path


def test_the_bundled_file_is_sound(tmp_path: Path) -> None:
    config = load(tmp_path / "not_there")
    assert (
        {"read_file", "write_file", "patch", "search_files"} == set(config.toolsets["file"].tools) == set(config.core)
    )
    assert resolve(config.layers("file", "read_file")).timeout == 60.0


def test_the_operators_is_merged_key_by_key(tmp_path: Path) -> None:
    write(tmp_path, '[toolsets.file.policy]\nmemory = "64M"\n[toolsets.mine]\ntools = ["a"]\naliases = ["m"]\n')
    config = load(tmp_path)
    assert config.toolsets["file"].policy.memory == 64 << 20
    assert config.toolsets["file"].policy.timeout == 60.0  # ours stays
    assert config.toolsets["file"].aliases == ("file_tools",)
    assert config.toolsets["mine"].tools == ("a",)
    assert config.toolsets["mine"].policy.memory is UNSET


def test_a_list_replaces_ours(tmp_path: Path) -> None:
    write(tmp_path, 'core = ["only"]\n')
    assert load(tmp_path).core == ("only",)


def test_layers_go_from_weak_to_strong(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        [defaults]
        pids = 5
        timeout = 7
        [toolsets.x.policy]
        timeout = 8
        [toolsets.x.ceiling]
        timeout = 10
        [tools.y]
        module = "user:y"
        group = "g"
        [tools.y.policy]
        timeout = 9
        """,
    )
    config = load(tmp_path)
    assert [each.source for each in config.layers("x", "y")] == ["defaults", "toolsets.x", "tools.y"]
    assert [each.bounded for each in config.layers("x", "y")] == [False, False, True]
    policy = resolve(config.layers("x", "y"))
    assert (policy.pids, policy.timeout, policy.sources["timeout"]) == (5, 9.0, "tools.y")
    assert (config.tools["y"].module, config.tools["y"].group) == ("user:y", "g")
    assert [each.source for each in config.layers("unknown", "unknown")] == ["defaults"]


def test_a_tool_above_its_toolsets_ceiling_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "[toolsets.x.ceiling]\ntimeout = 10\n[tools.y.policy]\ntimeout = 11\n")
    with pytest.raises(Refused, match=r"tools\.y.*toolsets\.x"):
        resolve(load(tmp_path).layers("x", "y"))


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("toolset = 1", "unknown key 'toolset'", "did you mean toolsets?"),
        ("[toolsets.x]\ntool = []", "toolsets.x: unknown key 'tool'", "did you mean tools?"),
        ("[toolsets.x]\nqqq = 1", "toolsets.x: unknown key 'qqq'", "the keys are: description"),
        ("[tools.y]\nmodul = ''", "tools.y: unknown key 'modul'", "did you mean module?"),
        ("[toolsets.x]\ntools = 'a'", "toolsets.x.tools is no list", "write a list"),
        ("[toolsets.x]\nincludes = [1]", "toolsets.x.includes is no list", "write a list"),
        ("core = 'a'", "core is no list", "write a list"),
        ("toolsets = 1", "toolsets is no table", "[toolsets]"),
        ("defaults = 1", "defaults is no table", "[defaults]"),
        ("[toolsets]\nx = 1", "toolsets.x is no table", "[toolsets.x]"),
        ("[toolsets.x]\npolicy = 1", "toolsets.x.policy is no table", "[toolsets.x.policy]"),
        ("[toolsets.x.policy]\nmemory = '1 lot'", "toolsets.x.policy.memory", "256M"),
        ("[toolsets.x.ceiling]\nmemry = 1", "toolsets.x.ceiling.memry", "did you mean memory?"),
        ("[tools.y.policy]\nnetwork = ['a.org']", "tools.y.policy.network", "not in this version"),
        ("[defaults]\ntimeout = 'x'", "defaults.timeout", "90s"),
        ("[toolsets.x]\ndescription = 5", "toolsets.x.description is no text", "quotes"),
        ("[tools.y]\nmodule = 5", "tools.y.module is no text", "quotes"),
        ("[tools.y]\nmodule = 'y'", "tools.y.module", "user:NAME"),
        ("not toml", "is no TOML", "mend the file"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(tmp_path: Path, text: str, message: str, hint: str) -> None:
    write(tmp_path, text)
    with pytest.raises(Refused) as caught:
        load(tmp_path)
    assert message in caught.value.message
    assert FILE in caught.value.message
    assert hint in caught.value.hint


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"core = ['\xff']\n")
    with pytest.raises(Refused, match="is no TOML"):
        load(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "").chmod(0)
    with pytest.raises(Refused, match="cannot be read"):
        load(tmp_path)


def test_one_in_the_working_folder_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "core = ['planted']\n")
    monkeypatch.chdir(tmp_path)
    assert "planted" not in load(tmp_path / "home").core
