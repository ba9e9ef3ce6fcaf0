"""The tool terminal in front: whatever a command does, its call is back in time, and the next one finds the shell's
state as it should be. What a command started is proved dead by the kernel when its call returns (support.Holders).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from hermes_sandbox import Supervisor
from tests.support import Holders
from tests.terminals import GRACE, Task, holding, opened

STATE = "shopt -s expand_aliases; alias al='echo an alias'; fn() { echo \"a function $1\"; }; variable='a value'"
SHOWN = 'al\nfn x\necho "$variable"\npwd'
SLACK = 1.5  # s that a call may take on top of its command's time and grace, on a machine that does other things too
DAEMON = (
    "import os, time\n"
    "os.fork() and os._exit(0)\n"
    "os.setsid()\n"
    "os.fork() and os._exit(0)\n"
    "os.chdir('/')\n"
    "null = os.open('/dev/null', os.O_RDWR)\n"
    "for fd in range(3): os.dup2(null, fd)\n"
    "time.sleep(60)\n"
)


class Case(NamedTuple):
    """`within`: the command's own timeout, for those that would never end."""

    command: str
    code: int
    output: str = ""
    within: float | None = None
    ended: int | None = 0  # how many processes it left running; None: as the kernel happens to run them


CASES = {
    "a loop": Case("while :; do :; done", 124, within=0.4),
    "deaf to TERM": Case("trap '' INT TERM; echo deaf; sleep 100", 124, "deaf\n", within=0.4),
    "exec": Case("exec sleep 1000", 124, within=0.4),
    "exec that ends": Case("exec echo replaced", 0, "replaced\n"),
    "exit": Case("exit 3", 3),
    "errexit": Case("set -e; false; echo not here", 1),
    "an unmatched quote": Case("echo 'oops", 2, "bash: eval: line N: unexpected EOF while looking for matching `''\n"),
    "cat": Case("cat", 0),
    "a daemon by the shell": Case("(sleep 60 &)", 0, ended=1),
    "setsid": Case("setsid sleep 60 </dev/null >/dev/null 2>&1 &", 0, ended=1),
    "a launcher": Case("sh -c 'sleep 60 & sleep 60 & echo started'", 0, "started\n", ended=2),
    "a launcher of talkers": Case("sh -c 'yes & yes >&2 &' >/dev/null 2>&1", 0, ended=2),
    "it daemonises itself": Case(f'python3 -c "{DAEMON}"', 0, ended=1),
    "a job that is disowned": Case("nohup sleep 60 >/dev/null 2>&1 & disown", 0, ended=1),
    "read": Case('read line; echo "$? [$line]"', 0, "1 []\n"),
    "a prompt on the terminal": Case("read -rsp Password: word 2>&- </dev/tty; echo $?", 0, "1\n"),
    "getpass": Case("python3 -W ignore -c 'import getpass; getpass.getpass()' 2>/dev/null", 1),
    "a killed shell": Case("kill -9 $$", 137),
    "a child that kills its shell": Case("python3 -c 'import os; os.kill(os.getppid(), 9)'", 137, ended=None),
    "a subshell that kills its parent": Case("(kill -9 $$; sleep 60)", 137, ended=None),
    "TERM for its group": Case("sleep 60 & kill -TERM 0", 143, ended=None),
    "it stops itself": Case("kill -STOP $$", 124, within=0.4),
    "it stops a child": Case("sleep 60 & kill -STOP $!", 0, ended=1),
    "ulimit": Case("ulimit -n 16 -f 0 -u 1; ulimit -n", 0, "16\n"),
    "no output": Case("exec >&- 2>&-", 0),
    "all descriptors closed": Case("exec <&- >&- 2>&- 9>&-; exit 4", 4),
    "return": Case("return 3", 2, "bash: line N: return: can only `return' from a function or sourced script\n"),
    "a subshell that exits": Case("(exit 5); echo $?", 0, "5\n"),
    "a folder that is deleted": Case("mkdir d && cd d && rmdir ../d; echo done", 0, "done\n"),
    "not found": Case("no-such-command 2>/dev/null", 127),
    "a fork bomb that is small": Case("f() { sleep 60 & }; for i in 1 2 3 4 5 6 7 8; do f; done", 0, ended=8),
    "traps": Case("trap 'echo bye' EXIT; trap 'echo error' ERR; false; exit 6", 6, "error\nbye\n"),
    "xtrace": Case("set -x; :; set +x", 0, "++ :\n++ set +x\n"),
    "the last job wins": Case("false | true", 0),
}


@pytest.fixture(scope="module")
def shared(supervisor: Supervisor, folder: Path) -> Iterator[Task]:
    """One task for a whole row of commands, each of which would poison a shell."""
    yield from opened(supervisor, folder)


def numberless(text: str) -> str:
    """What a shell says without its numbers of lines: `holding` has put one before the command."""
    return re.sub(r"line \d+", "line N", text)


@pytest.mark.parametrize("name", CASES)
def test_no_command_hangs_its_call_or_poisons_the_next(name: str, shared: Task, holders: Holders) -> None:
    case = CASES[name]
    shared(f"{STATE}; cd {shared.folder}")
    begun = time.monotonic()
    answer = shared(holding(holders, case.command), **({"timeout": case.within} if case.within else {}))
    took = time.monotonic() - begun
    assert holders.are_gone()
    assert took < (case.within + GRACE if case.within else 0) + SLACK
    assert (answer["exit_code"], numberless(answer["output"])) == (case.code, case.output)
    assert case.ended in (None, len(answer.get("ended", [])))
    assert ("error" in answer) == (case.within is not None)
    assert shared.output(SHOWN) == f"an alias\na function x\na value\n{shared.folder}\n"


SH_CASES = {
    "a loop": Case("while :; do :; done", 124, within=0.4),
    "deaf to TERM": Case("trap '' INT TERM; echo deaf; sleep 100", 124, "deaf\n", within=0.4),
    "exec": Case("exec sleep 1000", 124, within=0.4),
    "exit": Case("exit 3", 3),
    "errexit": Case("set -e; false; echo not here", 1),
    "a special builtin that fails": Case("shift 3 2>/dev/null; echo not here", 2),
    "an unmatched quote": Case("echo 'oops", 2, "sh: N: eval: Syntax error: Unterminated quoted string\n"),
    "cat": Case("cat", 0),
    "a daemon by the shell": Case("(sleep 60 &)", 0, ended=1),
    "setsid": Case("setsid sleep 60 </dev/null >/dev/null 2>&1 &", 0, ended=1),
    "read": Case('read line; echo "$? [$line]"', 0, "1 []\n"),
    "a killed shell": Case("kill -9 $$", 137),
    "ulimit": Case("ulimit -n 16; ulimit -f 0; ulimit -n", 0, "16\n"),
    "no output": Case("exec >&- 2>&-", 0),
    "traps": Case("trap 'echo bye' EXIT; exit 6", 6, "bye\n"),
    "unset variables are errors": Case("set -u; echo $no_such_variable 2>/dev/null; echo not here", 2, "sh: N: "),
}


@pytest.mark.parametrize("name", SH_CASES)
def test_nor_in_sh(name: str, shared: Task, holders: Holders) -> None:
    case = SH_CASES[name]
    shared(f"alias al='echo an alias'; export variable='a value'; set +u; cd {shared.folder}", shell="sh")
    begun = time.monotonic()
    more = {"timeout": case.within} if case.within else {}
    answer = shared(holding(holders, case.command), shell="sh", **more)
    took = time.monotonic() - begun
    assert holders.are_gone()
    assert took < (case.within + GRACE if case.within else 0) + SLACK
    assert answer["exit_code"] == case.code
    assert re.sub(r"sh: \d+", "sh: N", answer["output"]).startswith(case.output)
    assert case.ended in (None, len(answer.get("ended", [])))
    assert answer["shell"] == "sh"
    assert shared.output('set +u\nal\necho "$variable"\npwd', shell="sh") == f"an alias\na value\n{shared.folder}\n"
