"""`tools enable` and `tools disable`, with real processes; what is asked, on a real terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import pytest

from hermes_sandbox.dotenv import read

ROOT = Path(__file__).parents[1]
TOOLS = """
import os
from tools.registry import registry

EMPTY = {"description": "d", "parameters": {"type": "object", "properties": {}}}
for name, wants in {"forecast": ["WX_KEY", "WX_CITY"], "tides": ["WX_KEY"], "moon": [], "odd": ["NOT A NAME"]}.items():
    registry.register(
        name=name, toolset="weather", schema=EMPTY, requires_env=wants,
        handler=lambda args, **kw: str(sorted(key for key in os.environ if key.startswith("WX_"))),
    )
"""
TOML = """
[env.WX_KEY]
description = "Key of the weather service"
url = "https://example.org/keys"
[toolsets.weather]
tools = ["forecast", "tides", "moon", "odd"]
aliases = ["weather_tools"]
"""


@pytest.fixture(autouse=True)
def home(hermes_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (hermes_home / "tools").mkdir()
    (hermes_home / "tools" / "weather.py").write_text(TOOLS, encoding="utf-8")
    (hermes_home / "toolsets.toml").write_text(TOML, encoding="utf-8")
    for name in ("WX_KEY", "WX_CITY"):
        monkeypatch.delenv(name, raising=False)
    return hermes_home


def run(*words: str, cwd: Path, **env: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr, without a terminal."""
    ran = subprocess.run(
        [sys.executable, "-m", "hermes_sandbox", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=50,
        check=False,
    )
    return ran.returncode, ran.stdout, ran.stderr


def on_terminal(*words: str, cwd: Path, answers: dict[str, str]) -> tuple[int, str, str]:
    """Exit code, stdout, and what a user saw. An answer is typed when its question is there up to the space behind it:
    then the echo is off where it has to be."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "hermes_sandbox", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    seen, left = b"", dict(answers)
    while select.select([ours], [], [], 50)[0]:
        try:
            seen += os.read(ours, 4096)
        except OSError:  # nobody holds the other side any more
            break
        for question in [each for each in left if each.encode() in seen]:
            os.write(ours, f"{left.pop(question)}\n".encode())
    os.close(ours)
    out, _ = process.communicate(timeout=50)
    return process.returncode, out.decode(), seen.decode()


def state(home: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((home / "state.json").read_text(encoding="utf-8"))
    return found


# Off and on -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "kept"), [("moon", "moon"), ("weather", "weather"), ("weather_tools", "weather")])
def test_what_is_off_is_marked_and_cannot_be_called_until_it_is_on(
    home: Path, workspace: Path, name: str, kept: str
) -> None:
    said = "moon is off\n" if kept == "moon" else "the toolset weather is off: forecast, moon, odd, tides\n"
    assert run("tools", "disable", name, cwd=workspace) == (0, said, "")
    assert state(home)["disabled"] == [kept]
    _, out, _ = run("tools", "list", cwd=workspace)
    (line,) = [line for line in out.splitlines() if line.startswith("moon ")]
    assert "(off)" in line
    code, _, err = run("call", "moon", cwd=workspace)
    assert (code, f"tools enable {kept}" in err) == (4, True)
    code, out, _ = run("tools", "enable", name, cwd=workspace)
    assert f"{kept} is on" in out
    assert state(home)["disabled"] == []
    assert run("call", "moon", cwd=workspace)[:2] == (0, "[]\n")


def test_json_says_what_is_off(home: Path, workspace: Path) -> None:
    code, out, err = run("tools", "disable", "moon", "tides", "moon", "--json", cwd=workspace)
    assert (code, json.loads(out), err) == (0, {"disabled": ["moon", "tides"]}, "")
    rows = json.loads(run("tools", "list", "--json", cwd=workspace)[1])["tools"]
    assert {row["name"] for row in rows if row["disabled"]} == {"moon", "tides"}
    assert {"forecast", "read_file"} <= {row["name"] for row in rows if not row["disabled"]}


def test_a_profile_has_switches_of_its_own(home: Path, workspace: Path) -> None:
    (home / "profiles" / "work").mkdir(parents=True)
    assert run("--profile", "work", "tools", "disable", "read_file", cwd=workspace)[0] == 0
    assert state(home / "profiles" / "work")["disabled"] == ["read_file"]
    assert not (home / "state.json").exists()
    assert "(off)" not in run("tools", "list", cwd=workspace)[1]
    assert "(off)" in run("--profile", "work", "tools", "list", cwd=workspace)[1]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["disable", "mon"], 4, "did you mean moon?"),
        (["enable", "wether"], 4, "did you mean weather?"),
        (["enable", "moon", "nothing_like_it"], 4, "tools list"),
        (["disable"], 2, "Missing argument"),
    ],
)
def test_a_name_that_is_nothings_is_told(home: Path, workspace: Path, words: list[str], code: int, told: str) -> None:
    found, _, err = run("tools", *words, cwd=workspace)
    assert (found, told in err) == (code, True), err
    assert not (home / "state.json").exists()


def test_what_another_switch_holds_off_is_told(home: Path, workspace: Path) -> None:
    run("tools", "disable", "weather", "moon", cwd=workspace)
    code, _, err = run("tools", "enable", "moon", cwd=workspace)
    assert (code, "since weather is switched off" in err, "tools enable weather" in err) == (78, True, True)
    assert run("tools", "enable", "moon", "weather", cwd=workspace)[1] == "moon is on\nweather is on\n"
    (home / "config.yaml").write_text("tools: {disabled: [moon]}\n", encoding="utf-8")
    code, _, err = run("tools", "enable", "moon", cwd=workspace)
    shown = run("tools", "show", "moon", cwd=workspace)[1]
    assert shown.startswith("moon is switched off; take moon out of tools.disabled in config.yaml")
    assert (code, "take moon out of tools.disabled in config.yaml" in err) == (78, True)


def test_where_an_option_stands(home: Path, workspace: Path) -> None:
    assert "moon" in {row["name"] for row in json.loads(run("tools", "--json", "list", cwd=workspace)[1])["tools"]}
    code, _, err = run("tools", "list", "--profile", "work", cwd=workspace)
    assert (code, "write --profile before the command" in err) == (2, True)


def test_the_help_of_the_group_cuts_no_line(workspace: Path) -> None:
    code, out, _ = run("tools", "--help", cwd=workspace, COLUMNS="80")
    assert (code, "..." in out.partition("Commands:")[2]) == (0, False)


def test_a_toolset_is_no_tool_to_show(home: Path, workspace: Path) -> None:
    code, _, err = run("tools", "show", "weather", cwd=workspace)
    assert (code, "'weather' is a toolset" in err, "forecast" in err) == (4, True, True)


# Variables --------------------------------------------------------------------------------------------------------


def test_without_a_terminal_what_is_set_is_granted_and_what_is_missing_is_named(home: Path, workspace: Path) -> None:
    code, out, err = run("tools", "enable", "forecast", cwd=workspace, WX_CITY="Kiel")
    assert (code, out) == (1, "forecast is on\nforecast gets WX_CITY\n")
    assert "WX_KEY" in err
    assert str(home / ".env") in err
    assert state(home)["env"] == {"forecast": ["WX_CITY"]}
    assert run("call", "forecast", cwd=workspace, WX_CITY="Kiel", WX_KEY="k")[1] == "['WX_CITY']\n"
    assert run("call", "tides", cwd=workspace, WX_CITY="Kiel", WX_KEY="k")[1] == "[]\n"


def test_what_is_in_dotenv_is_set_and_a_toolset_is_all_its_tools(home: Path, workspace: Path) -> None:
    (home / ".env").write_text("WX_KEY=hunter2\nWX_CITY=Kiel\n", encoding="utf-8")
    (home / ".env").chmod(0o600)
    code, out, err = run("tools", "enable", "weather", "--json", cwd=workspace)
    assert json.loads(out) == {
        "enabled": ["weather"],
        "granted": {"forecast": ["WX_KEY", "WX_CITY"], "tides": ["WX_KEY"]},
        "missing": {"odd": ["NOT A NAME"]},
    }
    assert code == 1
    assert "hunter2" not in out + err
    assert run("call", "forecast", cwd=workspace)[1] == "['WX_CITY', 'WX_KEY']\n"


def test_a_name_that_the_policy_grants_needs_no_grant(home: Path, workspace: Path) -> None:
    (home / "config.yaml").write_text("tools: {tides: {policy: {env: [WX_KEY]}}}\n", encoding="utf-8")
    assert run("tools", "enable", "tides", cwd=workspace)[0] == 1  # but it is not set
    assert run("tools", "enable", "tides", cwd=workspace, WX_KEY="k")[:2] == (0, "tides is on\n")
    assert state(home)["env"] == {}


def test_nothing_is_granted_beyond_a_ceiling(home: Path, workspace: Path) -> None:
    (home / "config.yaml").write_text("sandbox: {ceiling: {env: [WX_CITY]}}\n", encoding="utf-8")
    code, out, err = run("tools", "enable", "forecast", cwd=workspace, WX_KEY="k", WX_CITY="Kiel")
    assert (code, out) == (78, "")
    assert "WX_KEY" in err
    assert "config.yaml: sandbox" in err
    assert not (home / "state.json").exists()


def test_a_loose_dotenv_is_refused_and_nothing_is_granted(home: Path, workspace: Path) -> None:
    (home / ".env").write_text("WX_KEY=hunter2\n", encoding="utf-8")
    (home / ".env").chmod(0o644)
    code, out, err = run("tools", "enable", "tides", cwd=workspace)
    assert (code, f"chmod 600 {home / '.env'}" in err, "hunter2" in out + err) == (78, True, False)
    assert not (home / "state.json").exists()


def test_a_check_that_cannot_be_asked_says_what_to_do(home: Path, workspace: Path) -> None:
    checked = TOOLS.replace("requires_env=wants", "requires_env=wants, check_fn=lambda: True")
    (home / "tools" / "weather.py").write_text(checked, encoding="utf-8")
    (home / "config.yaml").write_text("tools: {tides: {policy: {env: [WX_KEY]}}}\n", encoding="utf-8")
    (home / ".env").write_text("WX_KEY=hunter2\n", encoding="utf-8")
    (home / ".env").chmod(0o644)
    code, out, err = run("call", "tides", cwd=workspace)
    assert (code != 0, out, f"chmod 600 {home / '.env'}" in err, "hunter2" in err) == (True, "", True, False)


def test_on_a_terminal_what_is_missing_is_asked_for_and_kept(home: Path, workspace: Path) -> None:
    answers = {"WX_KEY (Enter leaves it out): ": " hunter2 ", "WX_CITY (Enter leaves it out): ": "Bad Oldesloe"}
    code, out, seen = on_terminal("tools", "enable", "forecast", "tides", cwd=workspace, answers=answers)
    assert (code, out) == (0, "forecast is on\ntides is on\nforecast gets WX_KEY, WX_CITY\ntides gets WX_KEY\n")
    assert "forecast, tides: asks for WX_KEY" in seen
    assert "Key of the weather service" in seen
    assert "https://example.org/keys" in seen
    assert "hunter2" not in seen
    assert "Bad Oldesloe" in seen  # what is no secret is typed in sight
    assert read(home / ".env") == {"WX_KEY": "hunter2", "WX_CITY": "Bad Oldesloe"}
    assert state(home)["env"] == {"forecast": ["WX_CITY", "WX_KEY"], "tides": ["WX_KEY"]}
    assert run("call", "forecast", cwd=workspace)[1] == "['WX_CITY', 'WX_KEY']\n"


def test_an_answer_may_be_left_out(home: Path, workspace: Path) -> None:
    answers = {"WX_KEY (Enter leaves it out): ": ""}
    code, out, seen = on_terminal("tools", "enable", "tides", cwd=workspace, answers=answers)
    assert (code, out) == (1, "tides is on\n")
    assert "tides asks for WX_KEY, which nobody set" in seen
    assert not (home / ".env").exists()


def test_what_is_set_is_not_asked_for(home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WX_KEY", "k")
    code, out, seen = on_terminal("tools", "enable", "tides", cwd=workspace, answers={})
    assert (code, out, seen) == (0, "tides is on\ntides gets WX_KEY\n", "")
