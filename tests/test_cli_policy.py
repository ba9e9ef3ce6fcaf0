"""The policy's keys as options of a command, and as `tools show` tells them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hermes_sandbox.cli import main
from hermes_sandbox.cli.options import taken_from
from hermes_sandbox.errors import Refused
from hermes_sandbox.policy import OPTIONS


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"network": ("none",)}, "network", "none"),
        ({"network": ("host",)}, "network", "host"),
        ({"network": ("a.org", "b.org:443")}, "network", ("a.org", "b.org:443")),
        ({"network": ("t=127.0.0.1:80",)}, "network", ("t=127.0.0.1:80",)),
        ({"hide": ("/a", "/b")}, "hide", ("/a", "/b")),
        ({"packages": ("host",)}, "packages", ("host",)),
        ({"cpus": "1.5"}, "cpus", 1.5),
        ({"disk": "2G"}, "disk", 2 << 30),
        ({"may_call": ("patch",)}, "may_call", ("patch",)),
    ],
)
def test_options_become_a_layer(given: dict[str, Any], name: str, value: object) -> None:
    options = {key: () if option.many else None for key, option in OPTIONS.items()}
    layer = taken_from({**options, **given})
    assert layer.set_keys() == {name: value}


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({"network": ("a.org", "host")}, "--network 'a.org' 'host' cannot be used", "write it alone"),
        ({"network": ("10.0.0.1",)}, "--network '10.0.0.1' cannot be used", "as in test=127.0.0.1:9000"),
        ({"may_call": ("a b",)}, "--may-call 'a b' cannot be used", "names of tools"),
        ({"cpus": "half"}, "--cpus 'half' cannot be used", "such as 2, 1.5 or 0.5"),
        ({"python": "python3"}, "--python 'python3' cannot be used", "absolute path"),
        ({"env": ("KEY=sk-1",)}, "--env wants a name alone", ".env"),
    ],
)
def test_a_wrong_one_is_named_as_it_was_typed(given: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(Refused) as caught:
        taken_from(given)
    assert caught.value.message == message
    assert hint in caught.value.hint


@pytest.mark.parametrize("command", ["call", "exec"])
def test_every_key_is_an_option_and_lists_say_that_they_repeat(command: str) -> None:
    shown = " ".join(CliRunner().invoke(main, [command, "--help"]).stdout.split())
    for name, option in OPTIONS.items():
        flag = f"--{name.replace('_', '-')} {option.metavar} "
        assert flag in shown
        assert ("(repeat it for more)" in shown.partition(flag)[2].partition(" --")[0]) is option.many


def test_tools_show_prints_each_key_with_its_source(
    workspace: Path, hermes_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace)
    (hermes_home / "toolsets.toml").write_text(
        "[toolsets.file.policy]\n"
        'cpus = 1.5\ndisk = "2G"\nnetwork = ["a.org:443", "*.b.org"]\nhide = ["/srv/a"]\nmay_call = ["patch"]\n'
        '[tools.read_file.policy]\nhide = ["/srv/b"]\nimage = "python:3.12"\npython = "/usr/bin/python3"\n',
        encoding="utf-8",
    )
    result = CliRunner().invoke(main, ["tools", "show", "read_file"])
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.partition("policy:")[2].splitlines() if line.strip()]
    assert [line.split()[0] for line in lines] == list(OPTIONS)
    for line in (
        "cpus 1.5 (toolsets.file of your toolsets.toml) at most 1.5 (toolsets.file of your toolsets.toml)",
        "disk 2G (toolsets.file of your toolsets.toml) at most 2G (toolsets.file of your toolsets.toml)",
        "hide /srv/a, /srv/b (toolsets.file of your toolsets.toml, tools.read_file of your toolsets.toml)",
        "image python:3.12 (tools.read_file of your toolsets.toml)",
        "python /usr/bin/python3 (tools.read_file of your toolsets.toml)",
        "timeout 60s (toolsets.file) at most 600s (toolsets.file)",
    ):
        assert line in lines
