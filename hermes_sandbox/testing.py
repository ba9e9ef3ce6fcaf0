"""What every runner must do, as tests: subclass `RunnerConformance` in a test file, and pytest runs it on your runner.

    class TestMine(RunnerConformance):
        options = {"runner": "mine", "network": "host"}
        gaps = {"test_fork_bomb": "the engine has no limit of processes"}

`options` are keys of the policy that choose the runner and its tier; all the rest is the suite's. `gaps` names the
tests that the runner cannot pass, each with its reason: they are expected to fail, and one that passes after all is a
failure, so that the list stays true. Override `workspace` or `supervisor` where a runner needs something else.

The suite has a tool file of its own, written to a temporary folder: its code runs in workers only. Nothing is proved by
waiting a while: a process that must be dead held a FIFO, whose reader sees the end of file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from hermes_sandbox.policy import PolicyLayer, layer
from hermes_sandbox.results import CallResult
from hermes_sandbox.sync import Supervisor

TOOLS = """
import ctypes, os, signal, subprocess, sys, time
from tools.registry import registry, tool_error, tool_result

words = []

def hold(path):
    os.write(os.open(path, os.O_WRONLY), b"!")

def echo(args, **kw):
    return tool_result(args)

def remember(args, **kw):
    words.append(args["word"])
    return tool_result(words)

def where(args, **kw):
    return tool_result(cwd=os.getcwd(), env=sorted(os.environ), task=kw["task_id"])

def fails(args, **kw):
    return tool_error("no such thing")

def raises(args, **kw):
    raise ValueError("boom")

def leaves(args, **kw):
    sys.exit(7)

def gives_nothing(args, **kw):
    return None

def gives(args, **kw):
    return "x" * args["size"]

def prints(args, **kw):
    print("printed")
    os.write(1, b"written")
    os.write(2, b"complained")
    return "done"

def exits(args, **kw):
    os._exit(3)

def crashes(args, **kw):
    print("last words")
    ctypes.string_at(0)

def sleeps(args, **kw):
    time.sleep(10000)

async def sleeps_async(args, **kw):
    import asyncio
    await asyncio.sleep(10000)

def spins(args, **kw):
    while True:
        pass

def daemonises(args, **kw):
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            hold(args["hold"])
            os.write(writing, b"!")
            while True:
                time.sleep(1000)
        os._exit(0)
    os.read(reading, 1)
    time.sleep(args.get("then_sleep", 0))
    return "left"

def fills(args, **kw):
    pieces = [b"1" * (1 << 24) for _ in range(args["size"] >> 24)]
    return tool_result(len(pieces))

def forks(args, **kw):
    for _ in range(args["count"]):
        if os.fork() == 0:
            time.sleep(10000)
    return "forked"

def writes(args, **kw):
    with open(args["path"], "wb", buffering=0) as file:
        for _ in range(args["size"] >> 16):
            file.write(b"x" * (1 << 16))
    return "written"

def opens(args, **kw):
    return tool_result(len([open(os.devnull) for _ in range(args["count"])]))

for handler in list(globals().values()):
    if callable(handler) and getattr(handler, "__module__", "") == __name__ and handler is not hold:
        schema = {"name": handler.__name__, "parameters": {"type": "object"}}
        registry.register(handler.__name__, "conformance", schema, handler)
"""
TOOLS_THAT_DO_NOT_LOAD = {
    "exits_at_import": "import os\nos._exit(4)\n",
    "raises_at_import": "raise ValueError('not today')\n",
    "crashes_at_import": "import ctypes\nctypes.string_at(0)\n",
}
REGISTERS = "from tools.registry import registry\n{0}registry.register('{1}', 'bad', {{}}, print)\n"
STOP: dict[str, Any] = {"timeout": 0.5, "grace": 0.2}  # s


class RunnerConformance:
    options: ClassVar[Mapping[str, Any]] = {}
    gaps: ClassVar[Mapping[str, str]] = {}

    @pytest.fixture(autouse=True)
    def _gap(self, request: pytest.FixtureRequest) -> None:
        reason = self.gaps.get(request.node.originalname)
        if reason is not None:
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))

    @pytest.fixture(scope="class")
    @classmethod
    def workspace(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The folder that the tools work in, on this machine."""
        return tmp_path_factory.mktemp("conformance").resolve()

    @pytest.fixture(scope="class")
    @classmethod
    def supervisor(cls, tmp_path_factory: pytest.TempPathFactory, workspace: Path) -> Iterator[Supervisor]:
        """One supervisor for all tests of the class: each must leave it as good as before."""
        tools, home = tmp_path_factory.mktemp("tools"), tmp_path_factory.mktemp("home")
        (tools / "conformance.py").write_text(TOOLS, encoding="utf-8")
        for name, source in TOOLS_THAT_DO_NOT_LOAD.items():
            (tools / f"{name}.py").write_text(REGISTERS.format(source, name), encoding="utf-8")
        policy = layer(cls.options, "conformance")
        with Supervisor(tool_folders=[tools], home=home, workspace=workspace, policy=policy) as supervisor:
            yield supervisor

    @pytest.fixture
    def task(self, supervisor: Supervisor, request: pytest.FixtureRequest) -> Iterator[Task]:
        """A task of this test's own. When the test is over, it must still be served."""
        task = Task(supervisor, request.node.originalname)
        yield task
        assert task.call("echo", {"still": "here"}).result == '{"still": "here"}'
        supervisor.close_task(task.name)

    @pytest.fixture
    def held(self, workspace: Path) -> Iterator[Held]:
        held = Held(workspace)
        yield held
        held.close()

    def test_every_gap_names_a_test(self) -> None:
        assert not {name for name in self.gaps if not hasattr(self, name)}

    # Answers ------------------------------------------------------------------------------------------------------

    def test_answer(self, task: Task) -> None:
        result = task.call("echo", {"text": "\u00e4\u4e2d\U0001f600", "number": 1.5, "none": None})
        assert msgspec.json.decode(str(result.result)) == {
            "text": "\u00e4\u4e2d\U0001f600",
            "number": 1.5,
            "none": None,
        }
        assert result.usage.wall_s > 0
        assert result.tier

    def test_a_large_answer(self, task: Task) -> None:
        assert task.call("gives", {"size": 8 << 20}).result == "x" * (8 << 20)

    def test_large_arguments(self, task: Task) -> None:
        assert msgspec.json.decode(str(task.call("echo", {"text": "x" * (4 << 20)}).result))["text"] == "x" * (4 << 20)

    def test_the_tools_place(self, task: Task, workspace: Path) -> None:
        told = msgspec.json.decode(str(task.call("where").result))
        assert (told["cwd"], told["task"]) == (str(workspace), task.name)
        assert "HERMES_HOME" not in told["env"]

    def test_prints_are_captured(self, task: Task) -> None:
        result = task.call("prints")
        assert (result.result, result.stdout_tail, result.stderr_tail) == ("done", "printed\nwritten", "complained")

    def test_state_is_kept_in_a_task_and_not_shared(self, task: Task, supervisor: Supervisor) -> None:
        task.call("remember", {"word": "one"})
        assert task.call("remember", {"word": "two"}).result == '["one", "two"]'
        assert supervisor.call("remember", {"word": "other"}, task_id="another").result == '["other"]'
        supervisor.close_task("another")

    # Failures -----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("tool", "outcome"),
        [
            ("fails", "tool_error"),
            ("raises", "tool_error"),
            ("leaves", "tool_error"),
            ("gives_nothing", "bad_result"),
            ("no_such_tool", "unavailable"),
        ],
    )
    def test_failure(self, task: Task, tool: str, outcome: str) -> None:
        result = task.call(tool)
        assert result.outcome == outcome
        assert result.error is not None

    @pytest.mark.parametrize("name", TOOLS_THAT_DO_NOT_LOAD)
    def test_a_tool_that_does_not_load(self, task: Task, supervisor: Supervisor, name: str) -> None:
        assert any(name in module for module in supervisor.problems())
        assert task.call(name).outcome == "unavailable"

    def test_exit(self, task: Task) -> None:
        result = task.call("exits")
        assert (result.outcome, result.exit_code) == ("crashed", 3)

    def test_crash(self, task: Task) -> None:
        result = task.call("crashes")
        assert (result.outcome, result.signal, result.stdout_tail) == ("crashed", 11, "last words\n")
        assert "in crashes" in result.stderr_tail

    # The clock ----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("tool", ["sleeps", "sleeps_async", "spins"])
    def test_timeout(self, task: Task, tool: str) -> None:
        assert task.call(tool, **STOP).outcome == "timeout"

    def test_a_daemon_is_dead_when_its_call_returns(self, task: Task, held: Held) -> None:
        assert task.call("daemonises", {"hold": held.name, "then_sleep": 10000}, **STOP).outcome == "timeout"
        assert held.is_free()

    def test_what_a_call_leaves_running_is_ended(self, task: Task, held: Held) -> None:
        assert task.call("daemonises", {"hold": held.name}).outcome == "ok"
        assert held.is_free()

    def test_idle_timeout(self, task: Task) -> None:
        result = task.exec(["sh", "-c", "echo one; sleep 1000"], idle_timeout=0.5, grace=0.2, timeout=30)
        assert (result.outcome, result.stdout_tail) == ("timeout", "one\n")

    # Limits -------------------------------------------------------------------------------------------------------

    def test_memory(self, task: Task) -> None:
        assert limit_of(task.call("fills", {"size": 8 << 30}, memory="128M", timeout=60)) == "memory"

    def test_pids(self, task: Task) -> None:
        assert limit_of(task.call("forks", {"count": 100}, pids=32, timeout=30)) == "pids"

    def test_file_size(self, task: Task, workspace: Path) -> None:
        assert limit_of(task.call("writes", {"path": "large", "size": 8 << 20}, file_size="1M")) == "file_size"
        assert (workspace / "large").stat().st_size == 1 << 20

    def test_open_files(self, task: Task) -> None:
        assert limit_of(task.call("opens", {"count": 300}, open_files=256)) == "open_files"

    def test_cpu_time(self, task: Task) -> None:
        assert limit_of(task.call("spins", cpu_time=0.5, timeout=60, grace=0.2)) == "cpu_time"

    def test_result(self, task: Task) -> None:
        assert limit_of(task.call("gives", {"size": 2 << 20}, result="1M")) == "result"

    def test_output(self, task: Task) -> None:
        assert limit_of(task.exec(["yes"], output="1M", grace=0.2, timeout=30)) == "output"

    # Commands and files -------------------------------------------------------------------------------------------

    def test_command(self, task: Task) -> None:
        result = task.exec(["sh", "-c", "cat; echo err >&2; exit 3"], stdin=b"in\n")
        assert (result.outcome, result.exit_code) == ("ok", 3)
        assert (result.stdout_tail, result.stderr_tail) == ("in\n", "err\n")

    def test_a_command_that_is_not_there(self, task: Task) -> None:
        assert task.exec(["no-such-program"]).exit_code == 127

    def test_much_goes_through_a_command(self, task: Task) -> None:
        got: list[int] = []
        result = task.exec(
            ["cat"], stdin=bytes(4 << 20), timeout=60, on_output=lambda _stream, data: got.append(len(data))
        )
        assert (result.outcome, sum(got)) == ("ok", 4 << 20)

    def test_files_belong_to_the_workspaces_owner(self, task: Task, workspace: Path) -> None:
        task.call("writes", {"path": "made", "size": 1 << 16})
        task.exec(["sh", "-c", "mkdir folder; echo x >folder/made"])
        owner = workspace.stat()
        for path in ("made", "folder", "folder/made"):
            found = (workspace / path).lstat()
            assert (found.st_uid, found.st_gid) == (owner.st_uid, owner.st_gid), path


class Task:
    """One task of a supervisor, with limits as keywords."""

    def __init__(self, supervisor: Supervisor, name: str) -> None:
        self._supervisor = supervisor
        self.name = name

    def call(self, tool: str, args: dict[str, Any] | None = None, **limits: Any) -> CallResult:
        return self._supervisor.call(tool, args or {}, task_id=self.name, policy=_asked(limits))

    def exec(self, argv: list[str], *, stdin: bytes | None = None, on_output: Any = None, **limits: Any) -> CallResult:
        policy = _asked(limits)
        return self._supervisor.exec(argv, stdin=stdin, on_output=on_output, task_id=self.name, policy=policy)


class Held:
    """A FIFO in the workspace that a process holds open: `is_free` when the kernel says that none does any more."""

    name = "held"

    def __init__(self, workspace: Path) -> None:
        self._path = workspace / self.name
        os.mkfifo(self._path, 0o600)
        if os.geteuid() == 0:
            os.chown(self._path, workspace.stat().st_uid, workspace.stat().st_gid)
        self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)

    def is_free(self) -> bool:
        """Whether a process held it, and none does now."""
        try:
            return os.read(self._fd, 1) == b"!" and os.read(self._fd, 1) == b""
        except BlockingIOError:
            return False

    def close(self) -> None:
        os.close(self._fd)
        self._path.unlink()


def _asked(limits: Mapping[str, Any]) -> PolicyLayer | None:
    return layer(limits, "conformance") if limits else None


def limit_of(result: CallResult) -> str:
    """The name of the limit that ended a call. Fails for any other end."""
    assert result.outcome == "limit", result
    assert result.limit is not None
    return result.limit.name
