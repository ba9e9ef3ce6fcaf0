"""toolsets.toml: what it may say, how the operator's is merged over ours, and where it is never read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hermes_sandbox.config import FILE, Variable, load
from hermes_sandbox.errors import Refused
from hermes_sandbox.policy import UNSET, resolve


def write(home: Path, text: str) -> Path:
    path = home / FILE
    path.write_text(text, encoding="utf-8")
    return path


def test_the_bundled_file_is_sound(tmp_path: Path) -> None:
    config = load(tmp_path / "not_there")
    assert {"read_file", "write_file", "patch", "search_files"} == set(config.toolsets["file"].tools)
    assert set(config.toolsets["file"].tools) <= set(config.core)
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
        children = "keep"
        timeout_argument = "seconds"
        [tools.y.policy]
        timeout = 9
        """,
    )
    config = load(tmp_path)
    assert [each.source for each in config.layers("x", "y")] == ["defaults", "toolsets.x", "tools.y"]
    assert [each.bounded for each in config.layers("x", "y")] == [False, False, True]
    policy = resolve(config.layers("x", "y"))
    assert (policy.pids, policy.timeout, policy.sources["timeout"]) == (5, 9.0, "tools.y")
    tool = config.tools["y"]
    assert (tool.module, tool.group, tool.children, tool.timeout_argument) == ("user:y", "g", "keep", "seconds")
    assert [each.source for each in config.layers("unknown", "unknown")] == ["defaults"]


def test_who_says_web_does_not_get_what_is_granted_to_web(tmp_path: Path) -> None:
    """A tool file names its own toolset, and may lie."""
    text = '[toolsets.web]\ntools = ["search"]\n[toolsets.web.policy]\nnetwork = "host"\nenv = ["KEY"]\ntimeout = 5\n'
    write(tmp_path, text + '[tools.liar.policy]\ntimeout = "10m"\n[toolsets.open.policy]\nenv = ["KEY"]\n')
    config = load(tmp_path)
    granted = resolve(config.layers("web", "search"))
    assert (granted.network, granted.env, granted.timeout) == ("host", ("KEY",), 5.0)
    liar = resolve(config.layers("web", "liar"))
    assert (liar.network, liar.env) == ("none", ())
    assert liar.timeout == 600.0  # the operator's own word for this tool is not bound by a toolset that is not its own
    assert resolve(config.layers("open", "anybody")).env == ("KEY",)  # it lists nobody, so it means all


def test_the_operator_may_grant_to_a_tool_of_no_toolset(tmp_path: Path) -> None:
    write(tmp_path, '[tools.lone.policy]\nnetwork = "host"\n')
    assert resolve(load(tmp_path).layers("lone", "lone")).network == "host"


def test_variables_and_distributions_are_data(tmp_path: Path) -> None:
    asked = '[env.KEY]\ndescription = "d"\nprompt = "p"\nurl = "https://example.org"\npassword = true\n'
    write(tmp_path, asked + "[distributions.mixed]\nfile = 50\nweb = 12.5\n")
    config = load(tmp_path)
    assert config.env["KEY"] == Variable(description="d", prompt="p", url="https://example.org", password=True)
    assert config.distributions == {"mixed": {"file": 50, "web": 12.5}}


def test_a_tool_above_its_toolsets_ceiling_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "[toolsets.x.ceiling]\ntimeout = 10\n[tools.y.policy]\ntimeout = 11\n")
    with pytest.raises(Refused, match=r"tools\.y.*toolsets\.x"):
        resolve(load(tmp_path).layers("x", "y"))


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("toolset = 1", "toolset: unknown key", "did you mean toolsets?"),
        ("[toolsets.x]\ntool = []", "toolsets.x.tool: unknown key", "did you mean tools?"),
        ("[toolsets.x]\nqqq = 1", "toolsets.x.qqq: unknown key", "the keys are: description"),
        ("[tools.y]\nmodul = ''", "tools.y.modul: unknown key", "did you mean module?"),
        ("[toolsets.x]\ntools = 'a'", "toolsets.x.tools is no list", "write a list"),
        ("[toolsets.x]\nincludes = [1]", "toolsets.x.includes is no list", "write a list"),
        ("core = 'a'", "core is no list", "write a list"),
        ("toolsets = 1", "toolsets is no table", "[toolsets]"),
        ("defaults = 1", "defaults is no table", "[defaults]"),
        ("[toolsets]\nx = 1", "toolsets.x is no table", "[toolsets.x]"),
        ("[toolsets.x]\npolicy = 1", "toolsets.x.policy is no table", "[toolsets.x.policy]"),
        ("[toolsets.x.policy]\nmemory = '1 lot'", "toolsets.x.policy.memory", "256M"),
        ("[toolsets.x.ceiling]\nmemry = 1", "toolsets.x.ceiling.memry", "did you mean memory?"),
        ("[tools.y.policy]\nnetwork = 'lan'", "tools.y.policy.network", 'write "none"'),
        ("[defaults]\ntimeout = 'x'", "defaults.timeout", "90s"),
        ("[toolsets.x]\ndescription = 5", "toolsets.x.description is no text", "quotes"),
        ("[tools.y]\nchildren = 'stay'", "tools.y.children is neither", '"keep"'),
        ("[tools.y]\ntimeout_argument = true", "tools.y.timeout_argument is no text", "quotes"),
        ("[tools.y]\nmodule = 5", "tools.y.module is no text", "quotes"),
        ("[tools.y]\nmodule = 'y'", "tools.y.module", "user:NAME"),
        ("[tools.y]\nmodule = 'user:../x'", "tools.y.module", "user:NAME"),
        ("[toolsets.x.policy]\nread = ['data']", "toolsets.x.policy.read holds the relative path 'data'", "~/"),
        ("[defaults]\nwrite = ['../x']", "defaults.write holds the relative path", "~/"),
        ("[toolsets.x.ceiling]\nimage = 'a'", "toolsets.x.ceiling.image", "policy"),
        ("[env.A]\nsecret = true", "env.A.secret: unknown key", "the keys are: description"),
        ("[env.A]\npassword = 'yes'", "env.A.password is neither", "without quotes"),
        ("[env]\nA = 1", "env.A is no table", "[env.A]"),
        ("[distributions.d]\nweb = 101", "distributions.d.web is no percentage", "0 to 100"),
        ("[distributions]\nd = 5", "distributions.d is no table", "[distributions.d]"),
        ("core = " + "[" * 100_000, "is no TOML", "mend the file"),
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
    with pytest.raises(Refused, match="is no UTF-8 text"):
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
