"""The state of a shell: what one command leaves is what the next one finds, bash and sh each in its own way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from hermes_sandbox import Supervisor
from tests.terminals import GRACE, Task


class Kept(NamedTuple):
    """`second` runs between the two: what lasts must last past a command that has nothing to do with it."""

    first: str
    last: str
    output: str
    second: str = "true"


BASH = {
    "a variable": Kept("v=1", "echo $v", "1\n"),
    "an exported one": Kept("export V=1", "printenv V", "1\n"),
    "one that is not exported": Kept("v=1", "printenv v; echo $?", "1\n"),
    "an unexported one": Kept("export -n HOME", "printenv HOME; echo ${HOME:+set}", "set\n"),
    "an inherited one that is unset": Kept("unset HOME", "echo ${HOME-none}; printenv HOME", "none\n"),
    "an inherited one that is changed": Kept(
        "PATH=$PATH:/x", "echo ${PATH##*:}; printenv PATH | tail -c 3", "/x\n/x\n"
    ),
    "newlines and quotes": Kept("v=$'a\\n\"b\\'`$x\\\\\\n\\t '", 'echo "[$v]"', "[a\n\"b'`$x\\\n\t ]\n"),
    "newlines that look like ours": Kept(
        "export v=$'x\\ndeclare -x PWD=/nowhere\\nset -o errexit\\ndeclare -ir UID=5\\numask 0'; umask 027",
        "printenv v; pwd -P >/dev/null; false; umask",
        "x\ndeclare -x PWD=/nowhere\nset -o errexit\ndeclare -ir UID=5\numask 0\n0027\n",
    ),
    "bytes that are no text": Kept("v=$'\\xff\\x80\\x01\\x7f'", 'printf %s "$v" | od -An -tx1', " ff 80 01 7f\n"),
    "emptiness": Kept("v=; w=''", "echo ${v-no}${w-no}.", ".\n"),
    "an array": Kept("a=(1 'two words' '' [7]=z)", 'echo "${#a[@]} ${!a[@]} ${a[1]}"', "4 0 1 2 7 two words\n"),
    "an associative array": Kept("declare -A m=([k]=v ['a b']=c)", 'echo "${m[k]} ${m[a b]}"', "v c\n"),
    "an integer": Kept("declare -i n=4", "n+=3; echo $n", "7\n"),
    "lower case": Kept("declare -l low", "low=ABC; echo $low", "abc\n"),
    "a name for another": Kept("x=5; declare -n ref=x", "ref=6; echo $x", "6\n"),
    "a readonly one": Kept("readonly r=1", "(r=2) 2>/dev/null || echo $r", "1\n", "r=2; true"),
    "IFS": Kept("IFS=:", "v=a:b; set -- $v; echo $#; for i in $v; do echo $i; done", "2\na\nb\n", "echo a:b"),
    "an odd IFS": Kept("IFS=$'seton-\\n '", 'printf %q "$IFS"', "$'seton-\\n '"),
    "a function": Kept("f() { echo f $1; }", "f x", "f x\n"),
    "an exported function": Kept("f() { echo f; }; export -f f", "bash -c f", "f\n"),
    "a function with a heredoc": Kept(
        "f() {\ncat <<end\nset -o errexit\ndeclare -x PWD=x\nalias a='b'\nend\nfalse\necho on\n}",
        "f; type f >/dev/null && pwd >/dev/null; echo $?",
        "set -o errexit\ndeclare -x PWD=x\nalias a='b'\non\n0\n",
    ),
    "a function with odd words": Kept(
        "f() { case $1 in (a) echo \"'\\\"\" ;; *) echo $'\\t';; esac; [[ x =~ ^(x)$ ]] && echo ${BASH_REMATCH[1]}; }",
        "f a",
        "'\"\nx\n",
    ),
    "a function that is unset": Kept("f() { :; }; unset -f f", "type f 2>/dev/null || echo none", "none\n"),
    "an alias": Kept("alias hello='echo hello you'", "hello", "hello you\n"),
    "an alias with quotes": Kept("alias q='echo \"it'\\''s\"'", "q", "it's\n"),
    "an alias that is gone": Kept("alias x='echo x'; unalias x", "x 2>/dev/null || echo none", "none\n"),
    "an alias for a builtin": Kept("alias echo='printf %s-' printf='printf a'", "\\echo well; unalias -a", "well\n"),
    "aliases of aliases": Kept("alias one='two ' two='echo 2' three=3", "one three", "2 3\n"),
    "aliases switched off": Kept("shopt -u expand_aliases; alias x='echo x'", "x 2>/dev/null; echo $?", "x\n0\n"),
    "extglob": Kept("shopt -s extglob; touch a1 b2", "echo !(b*|calls)", "a1\n", "rm -f calls"),
    "a function that needs extglob": Kept(
        "shopt -s extglob\nf() { case $1 in +([0-9])) echo number;; !(x)) echo other;; esac; }",
        "f 12; f y",
        "number\nother\n",
    ),
    "globstar": Kept("shopt -s globstar nullglob; mkdir -p p/q; touch p/q/r", "echo p/**/r; echo no*such", "p/q/r\n\n"),
    "nounset": Kept("set -u", "(: $no_such) 2>/dev/null; echo $?", "1\n", "echo ok"),
    "pipefail": Kept("set -o pipefail", "false | true; echo $?", "1\n"),
    "noglob": Kept("set -f", "echo *", "*\n"),
    "noclobber": Kept("set -C; rm -f n; echo 1 > n", "(echo 2 > n) 2>/dev/null; cat n", "1\n"),
    "umask": Kept("umask 027", "umask; rm -f u; touch u; stat -c %a u", "0027\n640\n"),
    "the folder": Kept("mkdir -p d; cd d", "basename $PWD; cd ..; basename $(pwd)", "d\nTASK\n"),
    "the folder before": Kept("cd /usr; cd /tmp", "cd - ", "/usr\n"),
    "a folder behind a link": Kept(
        "ln -sfn /usr/lib link; cd link", "basename $PWD; cd ..; basename $PWD", "link\nTASK\n"
    ),
    "an odd folder": Kept("mkdir -p $'o d\\n\"x'; cd $'o d\\n\"x'", 'basename "$PWD"', 'o d\n"x\n'),
    "errexit is not": Kept("set -e", "false; echo on", "on\n"),
    "a trap is not": Kept("trap 'echo bye' EXIT", "echo on", "on\n"),
    "jobs are not": Kept("sleep 60 &", "jobs; echo on", "on\n"),
    "a limit is not": Kept("ulimit -n 20", "[ $(ulimit -n) -gt 20 ] && echo on", "on\n"),
    "a descriptor is not": Kept("exec 7</dev/null", "( : <&7 ) 2>/dev/null || echo closed", "closed\n"),
    "positional arguments are not": Kept("set -- a b", "echo $# $0", "0 bash\n"),
    "the last status is not": Kept("(exit 7)", "echo $?", "0\n", "(exit 7)"),
    "state past exit": Kept("v=1; exit 3", "echo $v", "1\n"),
    "state past exit in a function": Kept("f() { v=2; exit 4; }; f", "echo $v", "2\n"),
    "state past an error": Kept("set -e; v=1; false; v=2", "echo $v", "1\n"),
    "state past a trap of the user's": Kept("trap 'echo bye; w=3' EXIT; v=1", "echo $v", "1\n"),
    "state past a broken command": Kept("v=1\nif then", "echo $v", "1\n"),
    "a subshell's is its own": Kept("v=1; (v=2; cd /; exit 3)", "echo $v; basename $PWD", "1\nTASK\n"),
    "xtrace": Kept("set -x", "set +x; echo on", "on\n", "set +x"),
    "nothing of ours reaches a program": Kept("v=1", "printenv | grep -c __hs; alias", "0\n"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state").resolve() / "TASK"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def supervisor(folder: Path) -> Iterator[Supervisor]:
    with Supervisor(workspace=folder, policy={"grace": GRACE}) as made:
        yield made


@pytest.mark.parametrize("name", BASH)
def test_what_lasts_in_bash(name: str, task: Task) -> None:
    case = BASH[name]
    first = task(case.first)
    assert "note" not in first or "ended" in first, first
    task(case.second)
    last = task(case.last)
    assert (last["output"], last.get("stderr", "")) == (case.output, "")


def test_states_do_not_mix(supervisor: Supervisor, folder: Path) -> None:
    one, two = Task(supervisor, folder), Task(supervisor, folder)
    one("export v=bash; cd /; f() { :; }")
    one("export v=sh; cd /usr", shell="sh")
    assert two.output("echo ${v-none}; basename $PWD") == "none\nTASK\n"
    assert two.output("echo ${v-none}; basename $PWD", shell="sh") == "none\nTASK\n"
    assert one.output("echo $v; pwd; type -t f") == "bash\n/\nfunction\n"
    assert one.output("echo $v; pwd; type f >/dev/null 2>&1 || echo none", shell="sh") == "sh\n/usr\nnone\n"
    one.close()
    two.close()


def test_a_task_that_is_closed_takes_its_state_with_it(supervisor: Supervisor, folder: Path) -> None:
    task = Task(supervisor, folder)
    task("v=1; cd /")
    task.close()
    assert task.output("echo ${v-none}; basename $PWD") == "none\nTASK\n"
    task.close()


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_the_background_starts_with_the_state_and_leaves_none(task: Task, shell: str) -> None:
    task("export v=1; alias al='echo aliased'; cd /usr", shell=shell)
    name = task.start("al; echo $v; pwd; v=2; cd /", shell=shell)
    assert task.process("wait", name)["output"] == "aliased\n1\n/usr\n"
    assert task.output("echo $v; pwd", shell=shell) == "1\n/usr\n"


SH = {
    "the folder": Kept("mkdir -p d; cd d", "basename $PWD; cd ..; basename $(pwd)", "d\nTASK\n"),
    "an exported variable": Kept("export V=1", "echo $V; printenv V", "1\n1\n"),
    "one that is not exported is not": Kept("v=1", "echo ${v-none}", "none\n"),
    "an inherited one that is unset": Kept("unset HOME", "echo ${HOME-none}", "none\n"),
    "quotes": Kept('export V="a\'b\'c\\"d"', 'echo "$V"', "a'b'c\"d\n"),
    "an alias": Kept("alias hello='echo hello you'", "hello", "hello you\n"),
    "an alias with quotes": Kept("alias q='echo \"it'\\''s\"'", "q", "it's\n"),
    "an alias of two lines": Kept("alias two='echo 1\nx='\\''2'\\''; echo 2'", "two", "1\n2\n"),
    "an alias that is gone": Kept("alias x='echo x'; unalias x", "x 2>/dev/null || echo none", "none\n"),
    "an option": Kept("set -f", "echo *", "*\n"),
    "nounset": Kept("set -u", "(: $no_such) 2>/dev/null; echo $?", "2\n"),
    "umask": Kept("umask 027", "umask", "0027\n"),
    "errexit is not": Kept("set -e", "false; echo on", "on\n"),
    "a trap is not": Kept("trap 'echo bye' EXIT", "echo on", "on\n"),
    "IFS, exported": Kept("export IFS=:", "V=a:b; set -- $V; echo $#", "2\n"),
    "state past exit": Kept("export V=1; exit 3", "echo $V", "1\n"),
    "state past an error": Kept("set -e; export V=1; false; V=2", "echo $V", "1\n"),
    "a subshell's is its own": Kept("export V=1; (V=2; cd /; exit 3)", "echo $V; basename $PWD", "1\nTASK\n"),
}


@pytest.mark.parametrize("name", SH)
def test_what_lasts_in_sh(name: str, task: Task) -> None:
    case = SH[name]
    first = task(case.first, shell="sh")
    assert "note" not in first
    task(case.second, shell="sh")
    last = task(case.last, shell="sh")
    assert (last["output"], last.get("stderr", "")) == (case.output, "")
