"""What the tests of the tools terminal and process share: one task's terminal, and commands that can be proved dead."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes_sandbox import Supervisor
from hermes_sandbox.results import CallResult
from tests.support import Holders, asked

GRACE = 0.3  # s between TERM and KILL in these tests
_numbers = itertools.count(1)


class Task:
    """The terminal of one task. Called with a command, it returns the tool's answer."""

    def __init__(self, supervisor: Supervisor, folder: Path, name: str = "") -> None:
        self.supervisor = supervisor
        self.folder = folder
        self.name = name or f"task-{next(_numbers)}"

    def record(self, tool: str, args: dict[str, Any], **limits: object) -> CallResult:
        policy = asked(**limits) if limits else None
        return self.supervisor.call(tool, args, task_id=self.name, policy=policy)

    def answer(self, tool: str, args: dict[str, Any], **limits: object) -> dict[str, Any]:
        record = self.record(tool, args, **limits)
        assert record.outcome in ("ok", "tool_error"), record
        assert isinstance(record.result, str), record
        answer: dict[str, Any] = json.loads(record.result)
        assert bool(answer.get("error")) == (record.outcome == "tool_error")
        return answer

    def __call__(self, command: str, **args: Any) -> dict[str, Any]:
        return self.answer("terminal", {"command": command, **args})

    def output(self, command: str, **args: Any) -> str:
        """What a command prints that goes well."""
        answer = self(command, **args)
        assert "error" not in answer
        assert answer["exit_code"] == 0, answer
        text: str = answer["output"]
        return text

    def start(self, command: str, **args: Any) -> str:
        """Start it in the background. Returns its session_id."""
        answer = self(command, background=True, **args)
        assert answer["status"] == "running", answer
        name: str = answer["session_id"]
        return name

    def process(self, action: str, session_id: str = "", **args: Any) -> dict[str, Any]:
        more = {"session_id": session_id} if session_id else {}
        return self.answer("process", {"action": action, **more, **args})

    def close(self) -> None:
        self.supervisor.close_task(self.name)


def opened(supervisor: Supervisor, folder: Path) -> Iterator[Task]:
    """For a fixture: a task that is closed when the test is over."""
    task = Task(supervisor, folder)
    try:
        yield task
    finally:
        task.close()


def holding(holders: Holders, command: str) -> str:
    """The command, with a descriptor that all it starts inherits: its whole tree holds `holders`."""
    return f"exec 9>{holders.path}; printf x >&9\n{command}"
