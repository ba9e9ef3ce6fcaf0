"""What would poison a shell's state: names that our own words have too, modes that change what a shell reads, too much
of everything. None of it may cost a later command anything, and what cannot be kept is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_sandbox import Supervisor
from tests.terminals import GRACE, Task, opened

OUR_WORDS = "alias builtin case declare eval exit export if printf set shopt trap umask unset".split()


@pytest.fixture(scope="module")
def supervisor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervisor]:
    with Supervisor(workspace=tmp_path_factory.mktemp("poison"), policy={"grace": GRACE}) as made:
        yield made


@pytest.fixture
def task(supervisor: Supervisor, tmp_path: Path) -> Iterator[Task]:
    yield from opened(supervisor, tmp_path)


@pytest.mark.parametrize("word", OUR_WORDS)
def test_an_alias_may_be_called_like_a_word_of_ours(word: str, task: Task) -> None:
    assert task.output(f"v=1; alias {word}='echo oops;'") == ""
    assert task.output("\\echo $v") == "1\n"
    assert task(f"{word}")["output"].startswith("oops\n")
    assert task(f"v=2; \\unalias {word}; \\exit 3")["exit_code"] == 3
    assert task.output("echo $v") == "2\n"


@pytest.mark.parametrize("word", [word for word in OUR_WORDS if word not in ("builtin", "case", "if")])
def test_a_function_may_be_called_like_a_word_of_ours(word: str, task: Task) -> None:
    assert task.output(f"v=1; {word}() {{ echo a function; }}") == ""
    assert task.output("echo $v") == "1\n"
    assert task.output(word) == "a function\n"
    assert task(f"v=2; builtin unset -f {word}; builtin exit 3")["exit_code"] == 3
    assert task.output("echo $v") == "2\n"


def test_a_function_that_cannot_be_kept_costs_one_state_and_says_so(task: Task) -> None:
    """`builtin` is what our own words are safe by."""
    task("v=1")
    assert "state was not written" in task("v=2; builtin() { echo oops; }")["note"]
    assert task.output("echo $v; type -t builtin") == "1\nbuiltin\n"


def test_what_is_too_large_is_not_kept_and_that_is_said(task: Task) -> None:
    task("v=small")
    answer = task("v=$(head -c 5M /dev/zero | tr '\\0' x); echo ${#v}")
    assert answer["output"] == "5242880\n"
    assert "larger than 4194304 bytes" in answer["note"]
    assert task.output("echo $v") == "small\n"
    assert "note" not in task("v=$(head -c 3M /dev/zero | tr '\\0' x)")
    assert task.output("echo ${#v}") == "3145728\n"


def test_a_syntax_error_shows_the_users_line_alone(task: Task) -> None:
    answer = task("v=1; if then")
    assert answer["exit_code"] == 2
    assert "`v=1; if then'" in answer["stderr"]


@pytest.mark.parametrize("option", ["-x", "-v", "-xv"])
def test_traces_show_no_line_of_ours(option: str, task: Task) -> None:
    for command in (f"set {option}; v=1", "v=2", "(exit 3)", "exit 4"):
        assert "__hs" not in task(command)["output"]
    assert "2\n" in task.output("set +xv; echo $v")


def test_posix_mode_and_names_that_it_refuses(task: Task) -> None:
    task("a-b() { echo a-b; }; v=1; set -o posix")
    assert task.output("echo $v") == "1\n"
    assert task.output("set +o posix; a-b") == "a-b\n"


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_trap_at_the_exit_runs(shell: str, task: Task) -> None:
    """And the state is kept. With an `exit` too the trap takes the place of ours: then it is not, which is said."""
    answer = task("trap 'echo bye' EXIT; export v=1", shell=shell)
    assert (answer["output"], answer["exit_code"]) == ("bye\n", 0)
    assert task.output("echo ${v-lost}", shell=shell) == "1\n"
    answer = task("trap 'echo bye' EXIT; export v=2; exit 3", shell=shell)
    assert (answer["output"], answer["exit_code"]) == ("bye\n", 3)
    assert "state was not written" in answer["note"]
    assert task.output("echo ${v-lost}", shell=shell) == "1\n"


def test_values_of_sh_may_look_like_commands(task: Task) -> None:
    task("export V='x\nexport PWD=/nowhere\nset -o errexit\nalias a=b\numask 0'", shell="sh")
    assert task.output('echo "$V"', shell="sh") == "x\nexport PWD=/nowhere\nset -o errexit\nalias a=b\numask 0\n"


@pytest.mark.parametrize("word", ["case", "eval", "exit", "export", "printf", "set", "trap", "umask", "unset"])
def test_an_alias_of_sh_may_be_called_like_a_word_of_ours(word: str, task: Task) -> None:
    assert task.output(f"export V=1; alias {word}='echo oops;'", shell="sh") == ""
    assert task.output("echo $V", shell="sh") == "1\n"
    if word != "case":  # a reserved word is no alias where a command begins
        assert task(word, shell="sh")["output"].startswith("oops\n")


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_shell_that_exports_everything(shell: str, task: Task) -> None:
    """Ours too, for as long as a command runs; none of it comes back."""
    task("set -a; v=1", shell=shell)
    assert task.output("w=2; echo $v", shell=shell) == "1\n"
    assert task.output("set +a; echo $v $w", shell=shell) == "1 2\n"
