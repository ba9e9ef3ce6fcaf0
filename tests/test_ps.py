"""`hermes-sandbox ps`: the workers of this user's supervisors, in every process, and nothing of the dead."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hermes_sandbox import Supervisor
from hermes_sandbox.cli import main
from tests.support import TIERS, wait_until
from tests.terminals import Task

# Another process with a supervisor: it says when its background command runs, and stays until its input ends.
OTHER = """
import json, sys
from hermes_sandbox import Supervisor
with Supervisor(workspace=sys.argv[1], policy={"tier": sys.argv[2]}) as s:
    args = {"command": "sleep 60 # of the\\nother process", "background": True}
    print(json.loads(s.call("terminal", args, task_id="other-task").result)["session_id"], flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime folder of this test's own: other supervisors may be at work on this machine."""
    folder = tmp_path / "runtime"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder / "hermes-sandbox"


@contextmanager
def another(folder: Path, tier: str = "namespaces") -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A process with a supervisor, and the name of its background command."""
    argv = [sys.executable, "-c", OTHER, str(folder), tier]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process, process.stdout.readline().decode().strip()
        if not process.stdin.closed:
            process.stdin.close()


def ps(*options: str) -> str:
    done = CliRunner().invoke(main, ["ps", *options])
    assert done.exit_code == 0, done.output
    return done.stdout


def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ps("--json"))
    return found


def test_nobody_is_at_work() -> None:
    assert ps() == ""
    assert rows() == []


@pytest.mark.parametrize("tier", TIERS)
def test_another_processes_background_command_is_shown(tier: str, workspace: Path) -> None:
    before = time.time()
    with another(workspace, tier) as (process, name):
        assert wait_until(lambda: any(worker["background"] for row in rows() for worker in row["workers"]))
        [row] = rows()
        [worker] = row["workers"]
        text = ps()
    assert set(worker) == {
        *("pid", "runner", "tier", "task_id", "tools", "started", "background", "processes", "memory")
    }
    assert row["pid"] == process.pid
    assert (worker["runner"], worker["tier"], worker["task_id"]) == ("local", tier, "other-task")
    assert worker["tools"] == "terminal_tool"
    assert before - 1 < worker["started"] < time.time()
    assert worker["processes"] >= 3
    assert worker["memory"] > 1 << 20
    [background] = worker["background"]
    assert (background["session_id"], background["command"]) == (name, "sleep 60 # of the\nother process")
    first, second = text.splitlines()
    assert first.startswith(f"{worker['pid']}  supervisor {process.pid}  local/{tier}  task other-task  terminal_tool")
    assert second.startswith(f"    {name}  0:00:0")
    assert second.endswith("sleep 60 # of the other process")


def test_it_is_there_and_then_it_is_not(workspace: Path, runtime: Path) -> None:
    with Supervisor(workspace=workspace) as supervisor:
        task = Task(supervisor, workspace)
        name = task.start("sleep 60")
        assert wait_until(lambda: any(worker["background"] for row in rows() for worker in row["workers"]))
        task.process("kill", name)
        assert wait_until(lambda: [worker["background"] for worker in rows()[0]["workers"]] == [[]])
        task.close()
        assert wait_until(lambda: rows()[0]["workers"] == [])
    assert rows() == []
    assert list(runtime.glob("*.json")) == []


def test_what_the_dead_left_is_not_shown_and_swept(workspace: Path, runtime: Path) -> None:
    with another(workspace) as (process, _):
        assert wait_until(lambda: rows() != [])
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert len(list(runtime.glob("supervisor-*.json"))) == 1
        assert rows() == []
        assert ps() == ""
    removed = json.loads(ps("--sweep", "--json"))["removed"]
    assert removed >= 1
    assert list(runtime.iterdir()) == []
    assert re.fullmatch(r"removed \d+ thing\(s\) that dead supervisors had left\n", ps("--sweep"))


def test_a_sweep_spares_the_living(workspace: Path) -> None:
    with another(workspace):
        assert wait_until(lambda: rows() != [])
        ps("--sweep")
        assert len(rows()) == 1


def test_one_runners_workers(workspace: Path) -> None:
    with another(workspace):
        assert wait_until(lambda: any(row["workers"] for row in rows()))
        assert "local/" in ps("--runner", "local")
        done = CliRunner().invoke(main, ["ps", "--runner", "nowhere"])
        assert done.exit_code != 0
        assert "nowhere" in done.stderr
        assert "local" in done.stderr


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', "\0" * 1000, '{"pid": 1, "workers": [{"pid": -1}]}'])
def test_a_file_that_is_not_ours_is_left_out(text: str, workspace: Path, runtime: Path) -> None:
    with Supervisor(workspace=workspace) as supervisor:
        supervisor.call("terminal", {"command": "true"})
        assert wait_until(lambda: len(list(runtime.glob("supervisor-*.json"))) == 1)
        [own] = runtime.glob("supervisor-*.json")
        (runtime / f"{own.stem[:-4]}0000.json").write_text(text, encoding="utf-8")
        assert [row["pid"] for row in rows()] == [os.getpid()]


def test_a_command_that_drives_a_terminal_does_not(workspace: Path) -> None:
    with Supervisor(workspace=workspace) as supervisor:
        Task(supervisor, workspace).start("sleep 60 # \x1b]0;title\x07\u202e\x1b[2J")
        assert wait_until(lambda: any(worker["background"] for row in rows() for worker in row["workers"]))
        text = ps()
    assert "sleep 60" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
