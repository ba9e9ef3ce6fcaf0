"""Every way of misbehaving that is known, through the real supervisor with real workers, in both tiers of the machine.

After each the same supervisor must serve the next call: `after` asserts it. What a tool started is proved dead by the
kernel at the moment its call has returned (support.Holders).
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hermes_sandbox import Supervisor
from hermes_sandbox.results import CallResult
from tests.support import HOSTILE_TOOLS, TIERS, Holders, asked, holders_in

QUICK = {"timeout": 0.4, "grace": 0.1}  # for those that never come back

NUMBERS = itertools.count(1)
Call = Callable[..., CallResult]


@pytest.fixture(scope="module", params=TIERS)
def supervisor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervisor]:
    workspace = tmp_path_factory.mktemp("hostile").resolve()
    home = tmp_path_factory.mktemp("home")
    policy = asked(tier=request.param, pids=64)
    with Supervisor(tool_folders=[HOSTILE_TOOLS], home=home, workspace=workspace, policy=policy) as made:
        made.workspace_path = workspace  # type: ignore[attr-defined]
        yield made


@pytest.fixture
def folder(supervisor: Supervisor) -> Path:
    found: Path = supervisor.workspace_path  # type: ignore[attr-defined]
    return found


@pytest.fixture
def holders(folder: Path) -> Iterator[Holders]:
    yield from holders_in(folder)


@pytest.fixture
def call(supervisor: Supervisor) -> Iterator[Call]:
    """Call a tool in a task of this test's own; when the test is over, the same task must still be served."""
    task = f"task-{next(NUMBERS)}"

    def run(name: str, args: dict[str, object] | None = None, **limits: object) -> CallResult:
        return supervisor.call(name, args or {}, task_id=task, policy=asked(**limits) if limits else None)

    yield run
    after = run("echo", {"still": "here"})
    assert (after.outcome, after.result) == ("ok", '{"still": "here"}')
    supervisor.close_task(task)


# It does not come back --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sleep_for_ever", "sleep_for_ever_async", "backtrack", "burn", "refuse_to_stop"])
def test_a_tool_that_never_returns_times_out(call: Call, name: str) -> None:
    result = call(name, **QUICK)
    assert result.outcome == "timeout"
    assert result.error is not None
    assert "0.4 s (timeout)" in result.error.message
    assert result.usage.wall_s < 2


@pytest.mark.parametrize("name", ["stop_itself", "stop_the_parent"])
def test_a_tool_that_stops_processes_times_out(call: Call, name: str) -> None:
    assert call(name, **QUICK).outcome == "timeout"


def test_a_sleeping_tool_keeps_its_worker_when_it_obeys(call: Call) -> None:
    call("remember", {"word": "one"})
    assert call("sleep_for_ever", **QUICK).outcome == "timeout"
    result = call("remember", {"word": "two"})
    assert json.loads(result.result or "") == ["one", "two"]


@pytest.mark.parametrize("name", ["refuse_to_stop", "daemonise_and_sleep", "fork_bomb"])
def test_nothing_of_a_timed_out_call_is_alive_when_it_returns(call: Call, holders: Holders, name: str) -> None:
    result = call(name, {"hold": holders.name}, **QUICK)
    assert result.outcome == "timeout"
    assert holders.are_gone(), "a process of the call outlived it"


# It ends its process ----------------------------------------------------------------------------------------------


def test_os_exit(call: Call) -> None:
    result = call("exit_3")
    assert (result.outcome, result.exit_code, result.signal) == ("crashed", 3, None)


def test_segfault_leaves_its_stack(call: Call) -> None:
    result = call("segfault")
    assert (result.outcome, result.signal) == ("crashed", 11)
    assert result.stdout_tail == "last words\n"
    assert "hostile.py" in result.stderr_tail
    assert "in segfault" in result.stderr_tail


def test_kill(call: Call) -> None:
    result = call("kill_itself")
    assert (result.outcome, result.signal) == ("crashed", 9)


def test_a_crash_is_told_to_the_next_call_once(call: Call) -> None:
    call("remember", {"word": "one"})
    call("exit_3")
    second, third = call("echo"), call("echo")
    assert any("state" in note and "lost" in note for note in second.notes)
    assert not any("lost" in note for note in third.notes)


@pytest.mark.parametrize(
    ("name", "words"),
    [("sys_exit_7", "SystemExit: 7"), ("interrupt", "KeyboardInterrupt"), ("recurse", "RecursionError")],
)
def test_what_is_no_ordinary_exception_is_the_tools_error(call: Call, name: str, words: str) -> None:
    result = call(name)
    assert result.outcome == "tool_error"
    assert result.error is not None
    assert words in result.error.message


def test_an_exception_has_its_message_and_its_stack(call: Call) -> None:
    result = call("raise_value_error", {"text": "\u00e4"})
    assert result.outcome == "tool_error"
    assert result.error is not None
    assert result.error.message == "ValueError: boom </tool_call> \u00e4"
    assert "in raise_value_error" in result.stderr_tail


def test_an_exception_without_a_readable_message(call: Call) -> None:
    result = call("raise_nonsense")
    assert result.outcome == "tool_error"
    assert result.error is not None
    assert "Nonsense" in result.error.message


# What it returns --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["dict", "none", "bytes", "number", "bad_multimodal"])
def test_what_is_no_string_is_a_bad_result(call: Call, what: str) -> None:
    result = call("give", {"what": what})
    assert (result.outcome, result.result) == ("bad_result", None)


@pytest.mark.parametrize(
    ("what", "outcome", "answer"),
    [
        ("text", "ok", "plain words, \u00e4\u4e2d\U0001f600 and a \x00"),
        ("surrogate", "ok", "half ? a character"),
        ("error", "tool_error", '{"error": "it is not there", "code": 404}'),
        ("falsy_error", "ok", '{"error": null, "done": true}'),
        ("multimodal", "ok", {"_multimodal": True, "content": [{"type": "text", "text": "seen"}]}),
    ],
)
def test_an_answer_passes_unchanged(call: Call, what: str, outcome: str, answer: object) -> None:
    result = call("give", {"what": what})
    assert (result.outcome, result.result) == (outcome, answer)


def test_a_result_at_its_limit_passes_and_one_beyond_does_not(call: Call) -> None:
    assert call("give_much", {"size": 1 << 20}, result=1 << 20).outcome == "ok"
    result = call("give_much", {"size": (1 << 20) + 1}, result=1 << 20)
    assert result.outcome == "limit"
    assert result.limit is not None
    assert (result.limit.name, result.limit.value, result.limit.observed) == ("result", 1 << 20, (1 << 20) + 1)


def test_a_result_of_50_mb(call: Call) -> None:
    result = call("give_much", {"size": 50_000_000})
    assert result.outcome == "limit"
    assert result.limit is not None
    assert result.limit.name == "result"


# What it prints ---------------------------------------------------------------------------------------------------


def test_prints_are_kept_apart_from_the_answer(call: Call) -> None:
    result = call("print_to_fd_1")
    assert (result.outcome, result.result) == ("ok", "done")
    assert result.stdout_tail == "printed\n\ufffd\ufffdwritten\nby a child\n"
    assert result.stderr_tail == "complained\n"
    assert call("echo").stdout_tail == ""


def test_the_tail_of_much_output_is_kept(call: Call) -> None:
    result = call("print_much", {"size": 3 << 20})
    assert result.outcome == "ok"
    assert result.truncated
    assert set(result.stdout_tail) == {"x"}
    assert len(result.stdout_tail) == 16 << 10


def test_the_output_limit(call: Call) -> None:
    result = call("print_much", {"size": 64 << 20}, output="1M")
    assert result.outcome == "limit"
    assert result.limit is not None
    assert result.limit.name == "output"
    assert result.limit.observed is not None
    assert 1 << 20 < result.limit.observed < 4 << 20


def test_closing_the_standard_streams(call: Call) -> None:
    assert call("close_fd_1").result == "closed"
    result = call("print_to_fd_1")
    assert result.stdout_tail.startswith("printed\n")


def test_closing_every_descriptor_is_a_crash(call: Call) -> None:
    assert call("close_everything", timeout=5).outcome == "crashed"


@pytest.mark.parametrize(
    "data",
    [
        b'{"jsonrpc":"2.0","id":999,"result":{}}\n',
        b'{"jsonrpc":"2.0","method":"hello","params":{"wire":1,"nonce":"x","python":"3","uid":0}}\n',
        b'{"jsonrpc":"2.0","id":1,"result":{"text":NaN,"cost":{"cpu_s":0,"peak_bytes":0}}}\n',
        b'{"jsonrpc":"2.0","method":"log","params":{"level":1,"name":"\\ud800","message":""}}\n',
        b"[" * 5000 + b"\n",
        b'"\xed\xa0\x80"\n',
        b"no JSON at all\n",
    ],
    ids=["foreign-id", "second-hello", "nan", "escaped-surrogate", "brackets", "surrogate", "words"],
)
def test_a_tool_that_writes_on_the_workers_pipe(call: Call, data: bytes) -> None:
    result = call("speak_out_of_turn", {"hex": data.hex()}, timeout=10)
    assert result.outcome == "protocol"


def test_half_a_frame_is_no_answer(call: Call) -> None:
    """Only the deadline tells it from a slow one."""
    half = b'{"jsonrpc":"2.0","id":1,"result":{"text":"'
    assert call("speak_out_of_turn", {"hex": half.hex()}, **QUICK).outcome in ("timeout", "protocol")


# What it leaves behind --------------------------------------------------------------------------------------------


def test_changes_of_the_process_stay_in_the_worker(call: Call, folder: Path) -> None:
    assert call("change_the_process").result == "changed"
    here = json.loads(call("where_am_i").result or "")
    assert here["cwd"] == str(folder)
    assert call("print_to_fd_1").stdout_tail.startswith("printed\n")
    assert call("sleep_for_ever", **QUICK).outcome == "timeout"


def test_a_fork_that_returns_is_not_a_second_worker(call: Call, holders: Holders) -> None:
    result = call("fork_and_return", {"hold": holders.name})
    assert (result.outcome, result.result) == ("ok", "forked")
    assert holders.are_gone() or not holders.seen  # it may have been ended before it came to hold anything
    for number in range(3):
        assert call("echo", {"n": number}).result == '{"n": %d}' % number


def test_a_child_left_running_is_ended_and_reported(call: Call, holders: Holders) -> None:
    result = call("leave_a_child", {"hold": holders.name})
    assert (result.outcome, result.result) == ("ok", "left")
    assert holders.are_gone()
    assert "1 process(es) that it had left running were ended" in result.notes


# How it uses up what there is -------------------------------------------------------------------------------------


def limit_of(result: CallResult) -> str:
    assert result.outcome == "limit", result
    assert result.limit is not None
    assert result.limit.mechanism
    return result.limit.name


@pytest.mark.parametrize("name", ["allocate", "allocate_in_children"])
def test_8_gb_of_memory(call: Call, name: str) -> None:
    result = call(name, {"size": 8 << 30}, memory="128M", timeout=20)
    assert limit_of(result) == "memory"
    assert result.limit is not None
    assert result.limit.value == 128 << 20


def test_a_fork_bomb_is_stopped(call: Call, holders: Holders) -> None:
    result = call("fork_until_refused", {"tell": True})
    assert result.outcome == "ok"
    told = json.loads(result.result or "")
    assert told["forked"] < 64
    assert limit_of(call("fork_until_refused")) == "pids"
    began = time.monotonic()
    assert call("fork_bomb", {"hold": holders.name}, **QUICK).outcome == "timeout"
    assert holders.are_gone()
    assert time.monotonic() - began < 5


def test_threads_count_as_processes(call: Call) -> None:
    assert limit_of(call("start_many_threads", {"count": 100}, timeout=5)) == "pids"


def test_file_size(call: Call, folder: Path) -> None:
    assert limit_of(call("write_much", {"size": 8 << 20}, file_size="1M")) == "file_size"
    assert (folder / "much").stat().st_size == 1 << 20


def test_open_files(call: Call) -> None:
    assert limit_of(call("open_many", {"count": 300}, open_files=256)) == "open_files"


@pytest.mark.parametrize("name", ["burn", "burn_in_children"])
def test_cpu_time(call: Call, name: str) -> None:
    result = call(name, cpu_time=0.5, timeout=20, grace=0.1)
    assert limit_of(result) == "cpu_time"
    assert result.usage.wall_s < 5


def test_many_loggers_are_no_trouble(call: Call) -> None:
    assert call("log_much", {"count": 200}).result == "logged"


# Tasks and limits -------------------------------------------------------------------------------------------------


def test_state_is_kept_in_a_task_and_not_shared(supervisor: Supervisor) -> None:
    words = [supervisor.call("remember", {"word": task}, task_id=task).result for task in ("one", "two", "one")]
    assert [json.loads(word or "") for word in words] == [["one"], ["two"], ["one", "one"]]
    for task in ("one", "two"):
        supervisor.close_task(task)


def test_limits_of_a_calls_own_run_in_a_fresh_worker(call: Call) -> None:
    call("remember", {"word": "kept"})
    result = call("remember", {"word": "fresh"}, memory="256M")
    assert json.loads(result.result or "") == ["fresh"]
    assert any("fresh worker" in note for note in result.notes)
    assert json.loads(call("remember", {"word": "again"}).result or "") == ["kept", "again"]


def test_limits_above_the_ceiling_are_refused(call: Call) -> None:
    result = call("echo", timeout=10**6)
    assert result.outcome == "refused"
    assert result.error is not None
    assert "timeout = 1e+06" in result.error.message or "timeout = 1000000" in result.error.message
    assert "3600" in result.error.message


@pytest.mark.parametrize("task", ["", "a/b", "a b", "x" * 65, "../up", "(describe)", "new\nline"])
def test_a_strange_task_id_is_refused(supervisor: Supervisor, task: str) -> None:
    assert supervisor.call("echo", {}, task_id=task).outcome == "refused"


def test_unknown_tools_and_wrong_arguments_start_nothing(call: Call) -> None:
    assert call("no_such_tool").outcome == "unavailable"
    assert call("echo", ["a"]).outcome == "invalid_arguments"  # type: ignore[arg-type]


def test_dispatch_gives_an_error_as_json(supervisor: Supervisor) -> None:
    answer = supervisor.dispatch("exit_3", {}, task_id="dispatched")
    assert isinstance(answer, str)
    told = json.loads(answer)
    assert (told["error_type"], told["exit_code"]) == ("crashed", 3)
    assert supervisor.dispatch("echo", {"a": 1}, task_id="dispatched") == '{"a": 1}'
    supervisor.close_task("dispatched")
