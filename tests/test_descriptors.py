"""A program has three descriptors, and nobody else holds the other ends of its pipes: that they are closed is seen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes_sandbox import Supervisor
from tests.support import wait_until
from tests.terminals import GRACE, Task, opened


@pytest.fixture(scope="module")
def supervisor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervisor]:
    with Supervisor(workspace=tmp_path_factory.mktemp("descriptors"), policy={"grace": GRACE}) as made:
        yield made


@pytest.fixture
def task(supervisor: Supervisor, tmp_path: Path) -> Iterator[Task]:
    yield from opened(supervisor, tmp_path)


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("args", [{}, {"pty": True}, {"shell": "sh"}])
def test_a_program_has_three_descriptors(task: Task, args: dict[str, Any], background: bool) -> None:
    """No more: who holds its own pipes twice, or another's, never sees their end."""
    command = "ls /proc/self/fd"
    if background:
        text = task.process("wait", task.start(command, **args))["output"]
    else:
        text = task.output(command, **args)
    assert text.split() == ["0", "1", "2", "3"]  # 3: the folder that ls lists


def test_input_that_is_wrong_is_told(task: Task) -> None:
    name = task.start("exec <&-; echo deaf; sleep 60")
    assert task.process("write", name)["error"] == "write needs data"
    assert wait_until(lambda: "deaf" in task.process("poll", name)["output"])
    assert "does not take input" in task.process("write", name, data="x")["error"]
    task.process("close", name)
    assert task.process("close", name)["input"] == "closed"
    answer = task.process("submit", name, data="x")
    assert (answer["error"], answer["status"]) == ("its input is closed", "running")
    task.process("kill", name)
    assert task.process("write", name, data="x")["error"] == "it has ended"


def test_another_commands_input_is_not_held(task: Task) -> None:
    """Each guard is a fork of the worker: it must not keep what the worker holds of other programs."""
    first = task.start("cat; echo end")
    second = task.start("sleep 60")
    task.process("close", first)
    assert task.process("wait", first, timeout=5)["output"] == "end\n"
    assert task.process("poll", second)["status"] == "running"
