"""The environment inside: an allow-list, and for commands those folders of our PATH that they can see."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_sandbox import Supervisor
from hermes_sandbox.dotenv import Secrets
from hermes_sandbox.environment import BASE_ENV, SAFE_PATH, granted, search_path
from hermes_sandbox.errors import Refused
from hermes_sandbox.policy import Policy


@pytest.fixture
def tool(workspace: Path) -> Path:
    """A command in a folder of the workspace, as a virtual environment has them."""
    command = workspace / ".venv" / "bin" / "greet-from-venv"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\necho from the venv\n", encoding="utf-8")
    command.chmod(0o755)
    return command


def test_only_granted_names_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRANTED_NAME", "1")
    monkeypatch.setenv("OTHER_NAME", "2")
    env = granted(Policy(env=("GRANTED_NAME", "NOT_SET")), {})
    assert env["GRANTED_NAME"] == "1"
    assert not {"OTHER_NAME", "NOT_SET"} & env.keys()


def test_a_search_path_has_only_what_is_in_sight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, outside, shown = tmp_path / "ws" / "bin", tmp_path / "other" / "bin", tmp_path / "shown"
    monkeypatch.setenv("PATH", f"{outside}:{inside}:relative:{shown}")
    policy = Policy(read=(str(shown),))
    assert search_path(policy, tmp_path / "ws") == f"{inside}:{shown}:{SAFE_PATH}"
    assert str(outside) in search_path(Policy(tier="process"), tmp_path / "ws")
    chosen = Policy(python=str(outside / "python3"))  # its installation is shown
    assert search_path(chosen, tmp_path / "ws") == f"{outside}:{inside}:{SAFE_PATH}"


def test_a_command_of_the_workspaces_environment_is_found(
    tool: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tool.parent}:{SAFE_PATH}")
    with Supervisor(workspace=workspace) as supervisor:
        result = supervisor.exec([tool.name])
    assert (result.exit_code, result.stdout_tail) == (0, "from the venv\n")


def test_a_command_that_is_out_of_sight_is_named(tool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tool.parent}:{SAFE_PATH}")
    with Supervisor(workspace=tmp_path) as supervisor:
        result = supervisor.exec([tool.name])
    assert result.exit_code == 127
    assert result.error is not None
    assert str(tool) in result.error.hint
    assert "--read" in result.error.hint


def test_what_is_not_set_out_here_comes_from_dotenv_and_what_is_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "here")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.setenv("EMPTY_ALONE", "")
    secrets = {"HERE": "there", "THERE": "there", "EMPTY": "there", "OTHER": "there"}
    env = granted(Policy(env=("HERE", "THERE", "EMPTY", "EMPTY_ALONE", "NOWHERE")), secrets)
    own = {name: value for name, value in env.items() if name not in BASE_ENV}
    assert own == {"HERE": "here", "THERE": "there", "EMPTY": "there", "EMPTY_ALONE": ""}


def test_dotenv_is_not_looked_at_where_it_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("no line of it\n", encoding="utf-8")
    monkeypatch.setenv("HERE", "here")
    secrets = Secrets(tmp_path / ".env")
    assert granted(Policy(env=("HERE",)), secrets)["HERE"] == "here"
    with pytest.raises(Refused, match="line 1"):
        granted(Policy(env=("HERE", "THERE")), secrets)


def test_a_granted_secret_reaches_a_command_and_a_loose_file_ends_the_call(
    workspace: Path, hermes_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FROM_DOTENV", raising=False)
    (hermes_home / ".env").write_text("FROM_DOTENV=hunter2\nOTHER=x\n", encoding="utf-8")
    (hermes_home / ".env").chmod(0o644)
    for said in ("refused", "ok"):
        with Supervisor(workspace=workspace) as supervisor:
            result = supervisor.exec(["sh", "-c", "echo $FROM_DOTENV$OTHER"], policy={"env": ["FROM_DOTENV"]})
            without = supervisor.exec(["true"])
        assert (result.outcome, without.outcome) == (said, "ok")
        if result.error is not None:
            assert result.error.hint == f"chmod 600 {hermes_home / '.env'}"
        assert ("hunter2" in result.to_json()) == (said == "ok")
        (hermes_home / ".env").chmod(0o600)
    assert result.stdout_tail == "hunter2\n"
