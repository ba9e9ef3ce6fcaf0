"""`children = "keep"`: what a command in front leaves running goes on in the background, as far as its task goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_sandbox import Supervisor
from tests.support import Holders, wait_until
from tests.terminals import GRACE, Task, holding

TALKER = "(while :; do echo tick; sleep 0.05; done) &"


@pytest.fixture(scope="module")
def supervisor(tier: str, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervisor]:
    home = tmp_path_factory.mktemp("home")
    (home / "toolsets.toml").write_text('[tools.terminal]\nchildren = "keep"\n', encoding="utf-8")
    with Supervisor(workspace=folder, home=home, policy={"tier": tier, "grace": GRACE}) as made:
        yield made


def test_a_server_goes_on_is_listed_read_and_killed(task: Task, holders: Holders) -> None:
    answer = task(holding(holders, f"{TALKER}\necho started"))
    assert answer["exit_code"] == 0
    assert "started\n" in answer["output"]
    assert len(answer["still_running"]) >= 1
    assert "goes on in the background" in answer["note"]
    name = answer["session_id"]
    [listed] = task.process("list")["processes"]
    assert (listed["session_id"], listed["status"]) == (name, "running")
    assert "its shell has ended" in listed["note"]
    before = task.process("log", name)["total_lines"]
    assert wait_until(lambda: task.process("log", name)["total_lines"] > before + 3)
    assert task.process("poll", name)["output"].endswith("tick\n")
    assert not holders.are_gone()
    killed = task.process("kill", name)
    assert holders.are_gone()
    assert (killed["status"], killed["exit_code"]) == ("exited", 0)


def test_it_outlives_other_calls_and_dies_with_its_task(supervisor: Supervisor, folder: Path, holders: Holders) -> None:
    task = Task(supervisor, folder)
    name = task(holding(holders, "setsid sleep 60 </dev/null >/dev/null 2>&1 &"))["session_id"]
    for command in ("true", "exit 3", "kill -9 $$"):
        task(command)
    assert not holders.are_gone()
    assert task.process("poll", name)["status"] == "running"
    task.close()
    assert holders.are_gone()


def test_each_command_that_leaves_something_is_one(task: Task, folder: Path) -> None:
    first, second = Holders(folder, "first"), Holders(folder, "second")
    names = [task(holding(each, "(setsid sleep 60 &)"))["session_id"] for each in (first, second)]
    assert [each["session_id"] for each in task.process("list")["processes"]] == names
    task.process("kill", names[0])
    assert first.are_gone()
    assert not second.are_gone()
    task.process("kill", names[1])
    assert second.are_gone()
    first.close()
    second.close()


def test_the_last_of_them_ends_it(task: Task) -> None:
    (task.folder / "go").unlink(missing_ok=True)
    name = task("(until [ -e go ]; do sleep 0.01; done; echo went) &")["session_id"]
    assert task.process("poll", name)["status"] == "running"
    (task.folder / "go").touch()
    ended = task.process("wait", name, timeout=10)
    assert (ended["status"], ended["exit_code"], ended["output"]) == ("exited", 0, "went\n")


def test_who_leaves_nothing_is_no_background(task: Task) -> None:
    answer = task("echo done")
    assert "session_id" not in answer
    assert "still_running" not in answer
    assert task.process("list")["processes"] == []


def test_a_command_over_its_time_keeps_nothing(task: Task, holders: Holders) -> None:
    answer = task(holding(holders, "(setsid sleep 60 &); sleep 60"), timeout=0.3)
    assert holders.are_gone()
    assert answer["exit_code"] == 124
    assert "session_id" not in answer
    assert task.process("list")["processes"] == []


def test_a_shell_that_is_killed_keeps_what_it_left(task: Task, holders: Holders) -> None:
    answer = task(holding(holders, "(setsid sleep 60 &); kill -9 $$"))
    assert answer["exit_code"] == 137
    assert task.process("kill", answer["session_id"])["status"] == "exited"
    assert holders.are_gone()


def test_a_background_command_keeps_its_own(task: Task, holders: Holders) -> None:
    name = task.start(holding(holders, "(setsid sleep 60 &); exit 4"))
    assert wait_until(lambda: "note" in task.process("poll", name))
    polled = task.process("poll", name)
    assert polled["status"] == "running"
    assert "its shell has ended" in polled["note"]
    assert task.process("kill", name)["exit_code"] == 4
    assert holders.are_gone()


@pytest.mark.parametrize("limits", [{"reuse": "never"}, {"memory": "1G"}])
def test_a_sandbox_of_one_call_keeps_nothing(limits: dict[str, object], task: Task, holders: Holders) -> None:
    answer = task.answer("terminal", {"command": holding(holders, "(setsid sleep 60 &)")}, **limits)
    assert holders.are_gone()
    assert answer["exit_code"] == 0
    assert "session_id" not in answer


def test_its_state_lasts_too(task: Task, holders: Holders) -> None:
    name = task(holding(holders, "v=1; cd /usr; (setsid sleep 60 &)"))["session_id"]
    assert task.output("echo $v; pwd") == "1\n/usr\n"
    task.process("kill", name)
    assert holders.are_gone()
