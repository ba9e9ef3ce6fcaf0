"""How long background commands live: past their call and the task's other calls, to the end of their task and no
longer; how many there may be; and where there can be none.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from hermes_sandbox import AsyncSupervisor, Supervisor
from tests.support import Holders, forget_peak, holders_in, peak_rss, rss, wait_until
from tests.terminals import GRACE, Task, holding

MOST = 64  # background commands at once
KEPT_TAIL = 200_000  # bytes of output
MB = 1 << 20


# Past the other calls ---------------------------------------------------------------------------------------------


def test_other_calls_spare_it_and_end_their_own(task: Task, folder: Path) -> None:
    background = Holders(folder, "background")
    name = task.start(f"exec 9>{background.path}; printf x >&9; (setsid sleep 60 &); sleep 60")
    background.wait_for(1)
    for command in ("true", "(sleep 60 &)", "setsid sleep 60 >/dev/null 2>&1 &", "kill -9 $$", "exit 3"):
        for own in holders_in(folder):
            task(holding(own, command))
            assert own.are_gone()
    assert not background.are_gone()
    assert task.process("poll", name)["status"] == "running"
    task.process("kill", name)
    assert background.are_gone()
    background.close()


def test_a_timeout_in_front_spares_it(task: Task, folder: Path, holders: Holders) -> None:
    background = Holders(folder, "background")
    name = task.start(f"exec 9>{background.path}; printf x >&9; sleep 60")
    background.wait_for(1)
    assert task(holding(holders, "trap '' TERM; sleep 60; sleep 60"), timeout=0.3)["exit_code"] == 124
    assert holders.are_gone()
    assert not background.are_gone()
    assert task.process("poll", name)["status"] == "running"
    background.close()


def test_a_cancel_in_front_spares_it(task: Task, supervisor: Supervisor, folder: Path, holders: Holders) -> None:
    background = Holders(folder, "background")
    name = task.start(f"exec 9>{background.path}; printf x >&9; sleep 60")
    background.wait_for(1)
    task("state=kept")

    def cancel() -> None:
        holders.wait_for(1)
        supervisor.cancel(task.name)

    thread = threading.Thread(target=cancel)
    thread.start()
    record = task.record("terminal", {"command": holding(holders, "sleep 60")})
    thread.join()
    assert record.outcome == "cancelled"
    assert holders.are_gone()
    assert not background.are_gone()
    assert task.process("poll", name)["status"] == "running"
    assert task.output("echo $state") == "kept\n"
    background.close()


def test_a_deadline_of_a_process_call_spares_it(task: Task) -> None:
    name = task.start("sleep 60")
    answer = task.answer("process", {"action": "wait", "session_id": name}, timeout=1.2)
    assert answer["timed_out"]
    assert task.process("poll", name)["status"] == "running"


def test_the_file_tools_do_not_see_it(task: Task, folder: Path) -> None:
    """Another module has another worker: its sweep reaches nothing of this one's."""
    name = task.start("sleep 60")
    (folder / "file").write_text("text\n", encoding="utf-8")
    assert task.record("read_file", {"path": "file"}).ok
    assert task.process("poll", name)["status"] == "running"


# To the task's end ------------------------------------------------------------------------------------------------


def test_it_dies_with_its_task(supervisor: Supervisor, folder: Path, holders: Holders) -> None:
    task = Task(supervisor, folder)
    task.start(holding(holders, "trap '' TERM HUP INT; (setsid sleep 60 &); while :; do sleep 60; done"))
    holders.wait_for(1)
    task.close()
    assert holders.are_gone()
    assert task.process("list")["processes"] == []
    task.close()


def test_it_may_tidy_up_when_its_task_ends(supervisor: Supervisor, folder: Path, holders: Holders) -> None:
    task = Task(supervisor, folder)
    name = task.start(holding(holders, f"trap 'echo bye > {folder}/bye; exit' TERM; echo ready; sleep 60 & wait"))
    assert wait_until(lambda: "ready" in task.process("log", name)["lines"])
    task.close()
    assert holders.are_gone()
    assert (folder / "bye").read_text(encoding="utf-8") == "bye\n"


def test_it_dies_with_its_supervisor(tier: str, folder: Path, holders: Holders) -> None:
    with Supervisor(workspace=folder, policy={"tier": tier, "grace": GRACE}) as supervisor:
        task = Task(supervisor, folder)
        task.start(holding(holders, "trap '' TERM HUP; (setsid sleep 60 &); sleep 60; sleep 60"))
        holders.wait_for(1)
    assert holders.are_gone()


def test_it_dies_with_a_supervisor_that_is_killed(tier: str, folder: Path, holders: Holders) -> None:
    program = (
        "import json, sys, time\n"
        "from hermes_sandbox import Supervisor\n"
        "s = Supervisor(workspace=sys.argv[1], policy={'tier': sys.argv[2]})\n"
        "print(s.call('terminal', {'command': sys.argv[3], 'background': True}).outcome, flush=True)\n"
        "time.sleep(60)\n"
    )
    argv = [sys.executable, "-c", program, str(folder), tier, holding(holders, "trap '' TERM HUP; sleep 60; sleep 60")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ok\n"
        holders.wait_for(1)
        process.send_signal(signal.SIGKILL)
    assert holders.are_gone(within=5)


async def _with_async(folder: Path, holders: Holders) -> None:
    async with AsyncSupervisor(workspace=folder, policy={"grace": GRACE}) as supervisor:
        args = {"command": holding(holders, "sleep 60"), "background": True}
        assert (await supervisor.call("terminal", args)).ok


def test_it_dies_with_an_asynchronous_supervisor(folder: Path, holders: Holders) -> None:
    asyncio.run(_with_async(folder, holders))
    assert not holders.seen or holders.are_gone()


# How many ---------------------------------------------------------------------------------------------------------


def test_sixty_four_at_once_and_no_more(task: Task, holders: Holders) -> None:
    names = [task.start(holding(holders, f"echo number {number}; sleep 60")) for number in range(MOST)]
    assert len(set(names)) == MOST
    holders.wait_for(MOST)
    refused = task("true", background=True)
    assert "64 background commands are running, which is the most" in refused["error"]
    assert task.output("echo in front") == "in front\n"
    listed = task.process("list")["processes"]
    assert [each["session_id"] for each in listed] == names
    assert {each["status"] for each in listed} == {"running"}
    for number in (0, 31, 63):
        assert task.process("log", names[number])["lines"] == [f"number {number}"]
    begun = time.monotonic()
    assert task.process("kill", names[5])["status"] == "exited"
    assert task.start("true")
    for name in names:
        task.process("kill", name)
    assert holders.are_gone()
    assert time.monotonic() - begun < 20


def test_ended_ones_are_forgotten_when_they_are_many(task: Task) -> None:
    first = task.start("echo first")
    task.process("wait", first)
    last = ""
    for _ in range(MOST):
        last = task.start("true")
        task.process("wait", last)
    answer = task.process("poll", first)
    assert "no background command" in answer["error"]
    assert "30 minutes" in answer["hint"]
    assert task.process("poll", last)["status"] == "exited"
    assert len(task.process("list")["processes"]) == MOST


def test_a_gigabyte_from_one(task: Task) -> None:
    """Neither the supervisor nor the worker grows, and the end of it is there."""
    task("true")
    before = rss()
    forget_peak()
    name = task.start("head -c 1G /dev/zero; echo; echo last")
    ended = task.process("wait", name, timeout=40)
    assert peak_rss() - before < 10 * MB
    assert ended["exit_code"] == 0
    assert ended["output"].endswith("\nlast\n")
    log = task.process("log", name, limit=1)
    assert log["lines"] == ["last"]
    assert log["omitted_bytes"] == 1024 * MB + 6 - KEPT_TAIL


# Where there can be none ------------------------------------------------------------------------------------------


def test_a_sandbox_of_one_call_has_no_background(task: Task, tier: str, folder: Path, holders: Holders) -> None:
    command = {"command": holding(holders, "sleep 60"), "background": True}
    for limits in ({"reuse": "never"}, {"memory": "1G"}):
        answer = task.answer("terminal", command, **limits)
        assert "this sandbox ends with the call" in answer["error"]
        assert "hint" in answer
    with Supervisor(workspace=folder, policy={"tier": tier, "reuse": "never"}) as supervisor:
        answer = Task(supervisor, folder).answer("terminal", command)
        assert "this sandbox ends with the call" in answer["error"]
    assert holders.seen == b""


def test_the_command_line_has_no_background(folder: Path) -> None:
    argv = [sys.executable, "-m", "hermes_sandbox", "call", "terminal", "command=sleep 60", "background=true"]
    done = subprocess.run(argv, cwd=folder, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 1
    assert "this sandbox ends with the call" in done.stdout
    assert "Supervisor that lives on" in done.stdout
