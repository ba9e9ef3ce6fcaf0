"""What an answer of the tool terminal holds: both streams, bounded, whatever bytes they are; folder, terminal, time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_sandbox import Supervisor
from tests.support import Holders, forget_peak, peak_rss, rss
from tests.terminals import Task, holding, opened

MB = 1 << 20
SHOWN = 50_000  # bytes of output in an answer, beside the line that says what is left out


@pytest.fixture(scope="module")
def task(supervisor: Supervisor, folder: Path) -> Iterator[Task]:
    """For tests that leave a shell's state as it was."""
    yield from opened(supervisor, folder)


# Streams ----------------------------------------------------------------------------------------------------------


def test_the_streams_are_in_order_and_apart(task: Task) -> None:
    answer = task("for i in 1 2 3; do echo out$i; sleep 0.02; echo err$i >&2; sleep 0.02; done")
    assert answer["output"] == "out1\nerr1\nout2\nerr2\nout3\nerr3\n"
    assert answer["stdout"] == "out1\nout2\nout3\n"
    assert answer["stderr"] == "err1\nerr2\nerr3\n"


def test_without_stderr_there_is_one_stream(task: Task) -> None:
    answer = task("echo out")
    assert answer == {"output": "out\n", "exit_code": 0, "cwd": str(task.folder), "duration_s": answer["duration_s"]}
    assert 0 < answer["duration_s"] < 5


def test_a_silent_command_has_an_answer(task: Task) -> None:
    assert task("true")["output"] == ""


def test_fifty_megabytes_are_bounded_everywhere(task: Task) -> None:
    task("true")
    before = rss()
    forget_peak()
    record = task.record("terminal", {"command": "echo first; yes 0123456789 | head -c 50M; echo last; echo no >&2"})
    assert peak_rss() - before < 20 * MB
    answer = json.loads(str(record.result))
    assert answer["exit_code"] == 0
    assert answer["output"].startswith("first\n0123456789\n")
    assert answer["output"].endswith("last\nno\n")
    assert len(answer["output"]) < SHOWN + 100
    left_out = 6 + 50 * MB + 5 + 3 - SHOWN
    assert f"\n[... {left_out} bytes left out ...]\n" in answer["output"]
    assert len(answer["stdout"]) < 11_000
    assert answer["stderr"] == "no\n"
    assert record.truncated
    assert record.stdout_tail.endswith("last\n")
    assert record.stderr_tail == "no\n"


def test_output_that_just_fits_is_whole(task: Task) -> None:
    assert len(task.output(f"head -c {SHOWN} /dev/zero | tr '\\0' x")) == SHOWN
    more = task.output(f"head -c {SHOWN + 1} /dev/zero | tr '\\0' x")
    assert "[... 1 bytes left out ...]" in more


@pytest.mark.parametrize(
    ("printf", "text"),
    [
        (r"\0\1\2\177", "\0\1\2\x7f"),
        (r"\200\377\376", "���"),
        (r"half \303", "half �"),
        (r"\303\244 ok", "ä ok"),
        (r"\355\240\200 surrogate", "��� surrogate"),
        (r"\033[31mred\r\n", "\x1b[31mred\r\n"),
    ],
    ids=["control", "invalid", "half a character", "utf-8", "surrogate", "escape"],
)
def test_any_bytes_are_an_answer(task: Task, printf: str, text: str) -> None:
    assert task.output(f"printf '{printf}'") == text


def test_random_bytes_are_an_answer(task: Task) -> None:
    assert "bytes left out" in task.output("head -c 1M /dev/urandom")
    assert task.output("echo fine") == "fine\n"


# The command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_command_of_a_megabyte(task: Task, shell: str) -> None:
    command = "v='" + ("x" * 100 + "'\\''y\n") * 10_000 + "'; echo ${#v}; unset v"
    assert len(command) > 1_000_000
    assert task.output(command, shell=shell) == "1030000\n"


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_command_travels_as_it_is(task: Task, shell: str) -> None:
    text = "a'b\"c$d`e\\f\tg!h#i ~ ä € 😀 {1,2} *"
    assert task.output(f"cat <<'end'\n{text}\nend", shell=shell) == text + "\n"


def test_a_surrogate_is_the_byte_that_it_stands_for(task: Task) -> None:
    """A file's name that is no UTF-8, as Python decodes it."""
    name = b"odd-\xff".decode("utf-8", "surrogateescape")
    record = task.record("terminal", {"command": f"touch '{name}'; ls odd-* | od -An -c; rm odd-*"})
    assert record.outcome in ("ok", "invalid_arguments")
    if record.outcome == "ok":
        assert "377" in str(record.result)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"command": ""}, "empty"),
        ({"command": " \n\t"}, "empty"),
        ({"command": "echo a\0b"}, "NUL"),
        ({"command": "true", "watch_patterns": ["x"]}, "watch_patterns only has a meaning with background=true"),
        ({"command": "true", "check_interval": 3}, "check_interval only"),
        ({"command": "true", "notify_on_complete": True}, "notify_on_complete only"),
        ({"command": "true", "workdir": "not/there"}, "workdir: "),
        ({"command": "true", "workdir": "/etc/passwd"}, "workdir: /etc/passwd is no folder"),
    ],
)
def test_what_cannot_be_run_is_told(task: Task, args: dict[str, object], words: str) -> None:
    answer = task.answer("terminal", args)
    assert words in answer["error"]
    assert task.output("echo well") == "well\n"


@pytest.mark.parametrize(
    ("args", "name"),
    [
        ({}, "command"),
        ({"command": ["true"]}, "command"),
        ({"command": "true", "timeout": 0}, "timeout"),
        ({"command": "true", "timeout": -1}, "timeout"),
        ({"command": "true", "shell": "zsh"}, "shell"),
        ({"command": "true", "background": True, "check_interval": 0}, "check_interval"),
        ({"command": "true", "background": True, "watch_patterns": [""]}, "watch_patterns"),
        ({"command": "true", "background": True, "watch_patterns": ["x"] * 33}, "watch_patterns"),
    ],
)
def test_arguments_that_do_not_fit_are_named(task: Task, args: dict[str, object], name: str) -> None:
    record = task.record("terminal", args)
    assert record.outcome == "invalid_arguments"
    assert record.error is not None
    assert name in record.error.message
    assert record.result is None


# Folder -----------------------------------------------------------------------------------------------------------


def test_the_folder_is_kept_and_told(task: Task) -> None:
    (task.folder / "sub").mkdir(exist_ok=True)
    assert task("cd sub")["cwd"] == str(task.folder / "sub")
    assert task.output("pwd; cd ..") == f"{task.folder / 'sub'}\n"
    assert task("true")["cwd"] == str(task.folder)


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_workdir_is_for_its_command_alone(task: Task, shell: str) -> None:
    (task.folder / "a" / "b").mkdir(parents=True, exist_ok=True)
    task("cd a", shell=shell)
    answer = task("pwd; echo $PWD", shell=shell, workdir="b")
    assert answer["output"] == f"{task.folder}/a/b\n" * 2
    assert answer["cwd"] == f"{task.folder}/a"
    assert task.output("pwd; cd ..", shell=shell) == f"{task.folder}/a\n"
    assert task.output("pwd", shell=shell, workdir="/usr") == "/usr\n"
    assert task.output("pwd", shell=shell) == f"{task.folder}\n"


def test_a_cd_from_a_workdir_is_kept(task: Task) -> None:
    (task.folder / "a" / "b").mkdir(parents=True, exist_ok=True)
    assert task("cd b", workdir="a")["cwd"] == f"{task.folder}/a/b"
    assert task.output(f"pwd; cd {task.folder}") == f"{task.folder}/a/b\n"


def test_workdir_may_be_the_home(task: Task) -> None:
    assert task.output("[ $PWD = $HOME ] && pwd", workdir="~").startswith("/")


def test_a_folder_that_is_gone_is_told(task: Task) -> None:
    task(f"cd {task.folder}; mkdir -p x/y; cd x/y")
    assert task("rm -r ../../x")["cwd"] == f"{task.folder}/x/y"
    answer = task("pwd; ls")
    assert answer["output"].startswith(f"{task.folder}\n")
    assert f"{task.folder}/x/y is gone" in answer["note"]
    assert "note" not in task("pwd")


# Terminal and none ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_terminal_of_the_right_size(task: Task, shell: str) -> None:
    command = "test -t 0 && test -t 1 && test -t 2 && stty size && tty && echo $TERM && : </dev/tty && echo mine"
    size, name, kind, mine = task.output(command, pty=True, shell=shell).splitlines()
    assert size == "40 120"
    assert name.startswith("/dev/pts/")
    assert (kind, mine) == ("xterm-256color", "mine")


def test_a_terminal_prints_plain_lines(task: Task) -> None:
    answer = task("echo one; echo two >&2; printf 'a\\tb\\n'", pty=True)
    assert answer["output"] == "one\ntwo\na\tb\n"
    assert "stderr" not in answer


def test_a_terminal_keeps_the_state_and_ends_with_its_time(task: Task, holders: Holders) -> None:
    task("kept=1", pty=True)
    begun = time.monotonic()
    assert task(holding(holders, "read line"), pty=True, timeout=0.3)["exit_code"] == 124
    assert time.monotonic() - begun < 3
    assert holders.are_gone()
    assert task.output("echo $kept; unset kept", pty=True) == "1\n"


def test_a_megabyte_on_a_terminal(task: Task, holders: Holders) -> None:
    text = task.output(holding(holders, "yes | head -c 1M; echo last; (sleep 60 &)"), pty=True)
    assert holders.are_gone()
    assert text.endswith("y\nlast\n")


def test_programs_that_ask_on_a_terminal_see_one(task: Task) -> None:
    assert task.output('python3 -c "import os; print(os.get_terminal_size())"', pty=True) == (
        "os.terminal_size(columns=120, lines=40)\n"
    )


def test_ctrl_c_and_job_control_are_there(task: Task) -> None:
    """It leads its session and owns its terminal: no `no job control` in a shell that is interactive."""
    text = task.output("bash --norc --noprofile -ic 'echo well; jobs' 2>&1 </dev/null", pty=True)
    assert "job control" not in text
    assert "well\n" in text


def test_without_a_terminal_nobody_can_ask(task: Task) -> None:
    begun = time.monotonic()
    assert task("tty")["output"] == "not a tty\n"
    assert task(": </dev/tty; echo here")["stdout"] == "here\n"
    assert task("echo word >/dev/tty")["exit_code"] == 1
    assert task("cat; wc -c; read x || echo none")["output"] == "0\nnone\n"
    assert task("stty size")["exit_code"] == 1
    assert task("python3 -c 'import os; os.open(\"/dev/tty\", os.O_RDWR)' 2>/dev/null")["exit_code"] == 1
    assert task("test -t 0 || test -t 1 || test -t 2")["exit_code"] == 1
    assert time.monotonic() - begun < 5


# Time -------------------------------------------------------------------------------------------------------------


def test_a_timeout_ends_the_tree_and_keeps_the_state(task: Task, holders: Holders) -> None:
    task("before=1; cd /tmp")
    command = "before=2; cd /; echo said; (setsid sleep 60 &); python3 -c 'import time; time.sleep(60)'"
    answer = task(holding(holders, command), timeout=0.4)
    assert holders.are_gone()
    assert (answer["exit_code"], answer["output"], answer["cwd"]) == (124, "said\n", "/tmp")
    assert "within 0.4 s" in answer["error"]
    assert task.output(f"echo $before; pwd; unset before; cd {task.folder}") == "1\n/tmp\n"


def test_a_command_may_clean_up_when_its_time_is_over(task: Task) -> None:
    """TERM comes first, and to all of it; KILL after the grace."""
    answer = task("trap 'echo cleaned; exit 0' TERM; sleep 60 & wait", timeout=0.4)
    assert (answer["output"], answer["exit_code"]) == ("cleaned\n", 124)


def test_without_a_timeout_a_command_has_its_calls_time(task: Task, holders: Holders) -> None:
    """It ends with its call, and the state stays."""
    task("before=1")
    record = task.record("terminal", {"command": holding(holders, "before=2; sleep 60")}, timeout=0.8)
    assert holders.are_gone()
    assert record.outcome == "timeout"
    assert record.usage.wall_s < 3
    assert task.output("echo $before; unset before") == "1\n"


def test_a_longer_timeout_lengthens_the_call(hermes_home: Path, folder: Path) -> None:
    """The policy has less time than the command asks for: the call gets more, up to the ceiling."""
    (hermes_home / "toolsets.toml").write_text(
        '[toolsets.terminal.policy]\ntimeout = "1s"\n[toolsets.terminal.ceiling]\ntimeout = "1m"\n', encoding="utf-8"
    )
    with Supervisor(workspace=folder) as supervisor:
        task = Task(supervisor, folder)
        assert task.output("sleep 1.2; echo done", timeout=5) == "done\n"
        record = task.record("terminal", {"command": "true", "timeout": 61})
    assert record.outcome == "invalid_arguments"


def test_a_timeout_beyond_the_ceiling_is_refused(task: Task) -> None:
    record = task.record("terminal", {"command": "true", "timeout": 3601})
    assert record.outcome == "invalid_arguments"
    assert record.error is not None
    assert "timeout = 3601 s" in record.error.message
    assert "ceiling.timeout" in record.error.hint


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_command_does_not_find_itself(task: Task, shell: str) -> None:
    """`pkill -f NAME` in a command that holds NAME would else end its own shell."""
    assert task.output("tr '\\0' ' ' </proc/$$/cmdline | grep -c marker || echo none", shell=shell) == "0\nnone\n"
