"""The command line: what scripts rely on. stdout is data, stderr is talk, and the exit code names the end.

What streams, signals and exit codes do is tried with real processes; what help says, with click's own runner.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import click
import pytest
from click.testing import CliRunner

from hermes_sandbox.cli import COMMANDS, main
from hermes_sandbox.config import FILE
from tests.support import HOSTILE_TOOLS, Holders, holders_in, wait_until

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-m", "hermes_sandbox"]
ENV = {"PYTHONPATH": str(ROOT)}


@pytest.fixture(autouse=True)
def hostile_tools(hermes_home: Path) -> None:
    """The hostile tools are the user's own here."""
    (hermes_home / "tools").mkdir()
    for path in HOSTILE_TOOLS.glob("*.py"):
        (hermes_home / "tools" / path.name).symlink_to(path)


def start(*words: str, cwd: Path, **options: Any) -> subprocess.Popen[bytes]:
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen([*COMMAND, *words], cwd=cwd, env={**os.environ, **ENV}, **pipes)


def run(*words: str, cwd: Path, stdin: bytes = b"") -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    process = start(*words, cwd=cwd, stdin=subprocess.PIPE)
    out, err = process.communicate(stdin, timeout=50)
    return process.returncode, out.decode(), err.decode()


def read_until(process: subprocess.Popen[bytes], end: bytes) -> bytes:
    """What comes on its stdout up to `end`, while it runs."""
    assert process.stdout is not None
    found = b""
    while not found.endswith(end):
        ready, _, _ = select.select([process.stdout], [], [], 30)
        assert ready, f"nothing more after {found!r}"
        piece = os.read(process.stdout.fileno(), 1)
        assert piece, f"it ended after {found!r}"
        found += piece
    return found


# call -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def hello(workspace: Path) -> Path:
    (workspace / "hello.txt").write_text("hello\nworld\n", encoding="utf-8")
    return workspace


@pytest.mark.parametrize(
    ("words", "stdin"),
    [
        (["path=hello.txt", "limit=1"], b""),
        (["--args", '{"path": "hello.txt", "limit": 1}'], b""),
        (["--args", "@args.json"], b""),
        (["--args", "-"], b'{"path": "hello.txt", "limit": "1"}'),
        (["--args", '{"path": "other", "limit": 1}', "path=hello.txt"], b""),
        (["path=hello.txt", "limit=1", "--timeout", "20", "--memory", "256M"], b""),
    ],
)
def test_arguments_in_each_of_their_forms(hello: Path, words: list[str], stdin: bytes) -> None:
    (hello / "args.json").write_text('{"path": "hello.txt", "limit": 1}', encoding="utf-8")
    code, out, _err = run("call", "read_file", *words, cwd=hello, stdin=stdin)
    assert code == 0
    assert "hello" in out
    assert "world" not in json.loads(out)["content"]


def test_json_is_the_whole_record(hello: Path) -> None:
    code, out, err = run("call", "read_file", "path=hello.txt", "--json", cwd=hello)
    record = json.loads(out)
    assert (code, err) == (0, "")
    assert (record["v"], record["tool"], record["outcome"], record["runner"]) == (1, "read_file", "ok", "local")
    assert record["usage"]["wall_s"] > 0
    assert "hello" in record["result"]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["give", "what=error"], 1, '"error": "it is not there"'),
        (["raise_value_error"], 1, "hermes-sandbox: tool_error: ValueError: boom"),
        ([], 2, "Missing argument 'TOOL'"),
        (["echo", "--no-such-option"], 2, "--no-such-option"),
        (["read_file"], 3, "invalid_arguments"),
        (["read_file", "path"], 3, "'path' is not NAME=VALUE"),
        (["read_file", "--args", "[1]"], 3, "no JSON object"),
        (["read_file", "--args", "{"], 3, "--args is no JSON"),
        (["read_file", "--args", "@missing.json"], 3, "@missing.json: No such file"),
        (["raed_file"], 4, "did you mean read_file"),
        (["give", "what=dict"], 5, "bad_result"),
        (["speak_out_of_turn", "hex=0a5b5d0a"], 76, "protocol"),
        (["echo", "--timeout", "2h"], 78, "beyond the ceiling 3600"),
        (["echo", "--memory", "lots"], 78, "256M"),
        (["echo", "--network", "host"], 78, "beyond the ceiling none"),
        (["sleep_for_ever", "--timeout", "0.3", "--grace", "0.1"], 124, "did not end within 0.3 s (timeout)"),
        (["allocate", "--args", '{"size": 536870912}', "--memory", "64M"], 137, "memory = 64M"),
        (["exit_3"], 139, "exited with code 3"),
        (["segfault"], 139, "SIGSEGV"),
    ],
)
def test_each_end_has_its_exit_code_and_its_words(workspace: Path, words: list[str], code: int, told: str) -> None:
    found, out, err = run("call", *words, cwd=workspace)
    assert (found, told in out + err) == (code, True), (found, out, err)
    assert "Traceback" not in out
    if code not in (0, 1):
        assert out == ""  # stdout is data


def test_ctrl_c_cancels_a_call(workspace: Path) -> None:
    holders = Holders(workspace)
    process = start("call", "refuse_to_stop", "hold=held", "--grace", "0.2", cwd=workspace)
    holders.wait_for(1)
    process.send_signal(signal.SIGINT)
    _out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"cancelled" in err
    assert b"Traceback" not in err
    assert holders.are_gone()
    holders.close()


# exec -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def holders(workspace: Path) -> Iterator[Holders]:
    yield from holders_in(workspace)


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 42", 42), ("exit 124", 124), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_the_commands_own_exit_code_is_passed_through(workspace: Path, script: str, code: int) -> None:
    assert run("exec", "--", "sh", "-c", script, cwd=workspace)[0] == code


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--timeout", "0.3", "--grace", "0.1", "--", "sleep", "100"], 124, "0.3 s (timeout)"),
        (["--timeout", "20", "--idle-timeout", "0.3", "--grace", "0.1", "--", "sleep", "100"], 124, "idle_timeout"),
        (["--output", "64K", "--grace", "0.1", "--", "yes"], 137, "output = 64K"),
        (["--file-size", "1M", "--", "dd", "if=/dev/zero", "of=big", "bs=1M", "count=3"], 137, "file_size = 1M"),
        (["--cpu-time", "0.3", "--grace", "0.1", "--", "sh", "-c", "while :; do :; done"], 137, "cpu_time = 0.3s"),
        (["--", "no-such-program"], 127, "no-such-program"),
        (["--", "/etc"], 126, "cannot start"),
        (["--read", "/no/such/path", "--", "true"], 78, "/no/such/path"),
        (["--runner", "nowhere", "--", "true"], 78, "local"),
        ([], 2, "Missing argument"),
        (["--timeout", "soon", "--", "true"], 78, "90s"),
        (["--report", "/no/such/folder/report.json", "--", "true"], 2, "/no/such/folder"),
        (["--junit", "/no/such/folder/run.xml", "--", "true"], 2, "/no/such/folder"),
    ],
)
def test_ends_that_the_sandbox_caused(workspace: Path, words: list[str], code: int, told: str) -> None:
    found, out, err = run("exec", *words, cwd=workspace)
    assert (found, told in err) == (code, True), (found, out[:500], err)
    assert "Traceback" not in err
    if code not in (2, 126, 127):
        assert err.splitlines()[-2:][0].startswith("hermes-sandbox: ") or err.startswith("hermes-sandbox: ")


def test_output_comes_while_the_command_runs_and_in_order(workspace: Path) -> None:
    """The command waits for our answer to its first line: it could not come to its end if the line were kept back."""
    script = "echo one; read word; echo $word; echo two"
    process = start("exec", "--", "sh", "-c", script, cwd=workspace, stdin=subprocess.PIPE)
    assert read_until(process, b"\n") == b"one\n"
    assert process.stdin is not None
    process.stdin.write(b"answer\n")
    process.stdin.flush()
    out, _err = process.communicate(timeout=20)
    assert (out, process.returncode) == (b"answer\ntwo\n", 0)


def test_stdin_passes_through_whole(workspace: Path) -> None:
    data = os.urandom(1 << 20)
    process = start("exec", "--", "cat", cwd=workspace, stdin=subprocess.PIPE)
    out, _err = process.communicate(data, timeout=30)
    assert out == data


def test_a_closed_stdin_is_an_empty_one(workspace: Path) -> None:
    closed = "exec <&-; exec " + " ".join(COMMAND) + " exec -- cat"
    done = subprocess.run(["sh", "-c", closed], cwd=workspace, env={**os.environ, **ENV}, timeout=30, check=False)
    assert done.returncode == 0


def test_stdout_and_stderr_stay_apart(workspace: Path) -> None:
    assert run("exec", "--", "sh", "-c", "echo data; echo talk >&2", cwd=workspace) == (0, "data\n", "talk\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_and_the_command_ends_itself(workspace: Path, number: signal.Signals) -> None:
    script = f"trap 'echo cleaned; exit 5' {number.name[3:]}; echo ready; while :; do sleep 0.05; done"
    process = start("exec", "--grace", "20", "--", "sh", "-c", script, cwd=workspace)
    read_until(process, b"ready\n")
    process.send_signal(number)
    out, _err = process.communicate(timeout=15)
    assert (out, process.returncode) == (b"cleaned\n", 5)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_deaf_gets_the_ladder_after_the_grace(
    workspace: Path, holders: Holders, number: signal.Signals
) -> None:
    script = "trap '' INT TERM; exec 3>held; printf ! >&3; while :; do sleep 1; done"
    process = start("exec", "--grace", "0.3", "--", "sh", "-c", script, cwd=workspace)
    holders.wait_for(1)
    process.send_signal(number)
    process.communicate(timeout=15)
    assert process.returncode == 130
    assert holders.are_gone()


def test_a_second_signal_does_not_wait_for_the_grace(workspace: Path, holders: Holders) -> None:
    script = "trap '' INT TERM; exec 3>held; printf ! >&3; while :; do sleep 1; done"
    process = start("exec", "--timeout", "50", "--grace", "3", "--", "sh", "-c", script, cwd=workspace)
    holders.wait_for(1)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=15)
    assert process.returncode == 130
    assert time.monotonic() - began < 5  # the second cancels: one grace of the ladder's, and not two
    assert holders.are_gone()


@pytest.mark.parametrize("times", [1, 2])
def test_a_signal_while_the_sandbox_starts_is_not_lost(workspace: Path, times: int) -> None:
    process = start("exec", "--timeout", "20", "--grace", "0.02", "--", "sleep", "50", cwd=workspace)
    status = Path(f"/proc/{process.pid}/status")
    caught = 1 << (signal.SIGTERM - 1)
    assert wait_until(
        lambda: bool(int(status.read_text(encoding="ascii").partition("SigCgt:")[2].split()[0], 16) & caught)
    )
    for _ in range(times):
        process.send_signal(signal.SIGTERM)
    _out, err = process.communicate(timeout=15)
    assert process.returncode in (130, 143)
    assert b"Traceback" not in err


def test_a_reader_that_closes_early_ends_the_command(workspace: Path, holders: Holders) -> None:
    process = start("exec", "--", "sh", "-c", "exec 3>held; printf ! >&3; yes", cwd=workspace)
    read_until(process, b"y\n")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr:
        err = process.stderr.read()
    assert process.wait(20) != 0
    assert b"Traceback" not in err
    assert holders.are_gone()


def test_a_reader_that_never_reads_does_not_stop_the_deadline(workspace: Path, holders: Holders) -> None:
    script = "exec 3>held; printf ! >&3; yes"
    process = start("exec", "--timeout", "1", "--grace", "0.2", "--", "sh", "-c", script, cwd=workspace)
    holders.wait_for(1)
    assert process.wait(15) == 124  # its pipe is full all the time
    assert holders.are_gone()
    process.communicate()


def test_report_and_junit(workspace: Path) -> None:
    files = ["--report", "run.json", "--junit", "run.xml"]
    assert run("exec", *files, "--", "sh", "-c", "echo out; printf 'a\\001b' >&2; exit 3", cwd=workspace)[0] == 3
    record = json.loads((workspace / "run.json").read_text(encoding="utf-8"))
    assert (record["outcome"], record["exit_code"], record["stdout_tail"]) == ("ok", 3, "out\n")
    suite = ET.parse(workspace / "run.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("1", "1", "0")
    case = suite.find("testcase")
    assert case is not None
    assert str(case.get("name")).startswith("sh -c")
    assert case.findtext("system-out") == "out\n"
    assert case.findtext("system-err") == "a\ufffdb"
    run("exec", *files, "--timeout", "0.2", "--grace", "0.1", "--", "sleep", "50", cwd=workspace)
    assert json.loads((workspace / "run.json").read_text(encoding="utf-8"))["outcome"] == "timeout"
    suite = ET.parse(workspace / "run.xml").getroot()
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")
    error = suite.find("testcase/error")
    assert error is not None
    assert error.get("type") == "timeout"
    run("exec", *files, "--", "true", cwd=workspace)
    assert ET.parse(workspace / "run.xml").getroot().get("failures") == "0"


def test_exec_with_json_prints_the_record_alone(workspace: Path) -> None:
    code, out, err = run("exec", "--json", "--", "sh", "-c", "echo hidden; exit 4", cwd=workspace)
    assert (code, err) == (4, "")
    assert json.loads(out)["stdout_tail"] == "hidden\n"


def test_options_behind_the_dashes_are_the_commands(workspace: Path) -> None:
    assert run("exec", "--", "echo", "--timeout", "--json", "-x", cwd=workspace)[1] == "--timeout --json -x\n"


# tools and toolsets -----------------------------------------------------------------------------------------------


def ask(*words: str, cwd: Path) -> Any:
    code, out, err = run(*words, cwd=cwd)
    assert code == 0, err
    return json.loads(out)


def test_tools_list(workspace: Path, hermes_home: Path) -> None:
    (hermes_home / "tools" / "bad.py").write_text(
        "from tools.registry import registry\nregistry.register(1/0)\n", encoding="utf-8"
    )
    found = ask("tools", "list", "--json", cwd=workspace)
    assert {"read_file", "patch", "echo"} <= {tool["name"] for tool in found["tools"]}
    assert "ZeroDivisionError" in found["problems"][str(hermes_home / "tools" / "bad.py")]
    code, out, err = run("tools", "list", cwd=workspace)
    assert code == 0
    assert any(line.startswith("read_file ") for line in out.splitlines())
    assert "bad.py" in err
    assert "bad.py" not in out


def test_tools_show(workspace: Path, hermes_home: Path) -> None:
    (hermes_home / FILE).write_text("[tools.patch.policy]\ntimeout = 7\n", encoding="utf-8")
    _code, out, _err = run("tools", "show", "patch", cwd=workspace)
    assert "patch  (toolset file" in out
    timeout = next(line for line in out.splitlines() if line.strip().startswith("timeout"))
    assert " ".join(timeout.split()).startswith("timeout 7s (tools.patch of your toolsets.toml)")
    found = ask("tools", "show", "patch", "--json", cwd=workspace)
    assert found["tool"]["name"] == "patch"
    assert found["policy"]["sources"]["timeout"] == "tools.patch of your toolsets.toml"
    code, _out, err = run("tools", "show", "pach", cwd=workspace)
    assert code == 4
    assert "patch" in err


def test_tools_schema(workspace: Path) -> None:
    found = ask("tools", "schema", "read_file", "echo", cwd=workspace)
    assert [each["function"]["name"] for each in found] == ["echo", "read_file"]
    assert ask("tools", "schema", "--json", "file", cwd=workspace) == ask(
        "tools", "schema", "file_tools", cwd=workspace
    )
    assert run("tools", "schema", "fiel", cwd=workspace)[0] == 4


def test_toolsets(workspace: Path) -> None:
    found = ask("toolsets", "--json", cwd=workspace)
    assert {"read_file", "patch"} <= set(found["file"]["tools"])
    assert found["file"]["aliases"] == ["file_tools"]
    _code, out, _err = run("toolsets", cwd=workspace)
    assert "file (also file_tools)" in out


def test_the_filter_bounds_every_command(workspace: Path) -> None:
    listed = ask("--tools", "file,echo", "tools", "list", "--json", cwd=workspace)["tools"]
    assert {tool["name"] for tool in listed} == {"read_file", "write_file", "patch", "search_files", "echo"}
    code, _out, err = run("--tools", "file", "call", "echo", cwd=workspace)
    assert code == 4
    assert "--tools hostile" in err
    assert run("--tools", "fiel", "tools", "list", cwd=workspace)[0] == 4


def test_a_profile_has_its_own_tools(workspace: Path, hermes_home: Path) -> None:
    tools = hermes_home / "profiles" / "work" / "tools"
    tools.mkdir(parents=True)
    (tools / "w.py").write_text(
        "from tools.registry import registry\nregistry.register('w', 'w', {}, lambda a, **k: 'w')\n",
        encoding="utf-8",
    )
    listed = {tool["name"] for tool in ask("--profile", "work", "tools", "list", "--json", cwd=workspace)["tools"]}
    assert "w" in listed
    assert "echo" not in listed
    code, _out, err = run("--profile", "../x", "tools", "list", cwd=workspace)
    assert code == 78
    assert "no name of a profile" in err


def test_a_bad_toolsets_toml_is_one_line_with_a_hint(workspace: Path, hermes_home: Path) -> None:
    (hermes_home / FILE).write_text("[toolsets.x.policy]\nmemry = 1\n", encoding="utf-8")
    code, out, err = run("tools", "list", cwd=workspace)
    assert (code, out) == (78, "")
    assert "toolsets.x.policy.memry" in err
    assert "did you mean memory?" in err


# Help and start-up ------------------------------------------------------------------------------------------------


def pages(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from pages(below, (*words, name))


@pytest.mark.parametrize("words", list(pages(main)), ids=" ".join)
def test_each_page_of_help_has_an_example_that_begins_with_the_command(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, [*words, "--help"], prog_name="hermes-sandbox")
    assert done.exit_code == 0
    assert "Example:" in done.output
    example = done.output.split("Example:")[1].split("\n")[1].strip()
    assert example.startswith("hermes-sandbox ")
    assert all(word in example for word in words)
    assert max(map(len, done.output.splitlines())) <= 110


def test_an_unknown_command_is_told_the_known_ones() -> None:
    done = CliRunner().invoke(main, ["cal"])
    assert done.exit_code == 2
    assert all(name in done.output for name in COMMANDS)


def imported(*words: str, cwd: Path) -> set[str]:
    """The modules that a run of the command line has in the end."""
    code = (
        "import sys, atexit; atexit.register(lambda: sys.stderr.write('\\n'.join(sys.modules)));"
        "from hermes_sandbox.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, encoding="utf-8", cwd=cwd, env={**os.environ, **ENV},
        timeout=30, check=True,
    )  # fmt: skip
    return set(done.stderr.splitlines())


def test_help_loads_next_to_nothing(workspace: Path) -> None:
    assert imported("--help", cwd=workspace).isdisjoint({"asyncio", "msgspec", "docker", "psutil", "jsonschema_rs"})


def test_a_call_loads_no_engine(hello: Path) -> None:
    found = imported("call", "read_file", "path=hello.txt", cwd=hello)
    assert "asyncio" in found
    assert found.isdisjoint({"docker", "psutil", "requests", "xml.etree.ElementTree", "hypothesis"})


def test_listing_tools_loads_no_validator(workspace: Path) -> None:
    run("tools", "list", cwd=workspace)  # describes them
    assert imported("tools", "list", cwd=workspace).isdisjoint({"docker", "psutil"})


def test_a_report_never_follows_what_the_command_planted(workspace: Path, tmp_path: Path) -> None:
    """The command puts a link, or a FIFO that nobody reads, at the report's name, and swaps the folder above it."""
    target = tmp_path / "target"
    target.write_text("untouched", encoding="utf-8")
    (workspace / "sub").mkdir()
    plants = [f"ln -s {target} run.json", "mkfifo run.json", f"mv sub sub2; ln -s {tmp_path} sub"]
    for plant, report in zip(plants, ["run.json", "run.json", "sub/run.json"], strict=True):
        code, _out, err = run("exec", "--report", report, "--junit", "run.xml", "--", "sh", "-c", plant, cwd=workspace)
        assert (code, err) == (0, "")
        assert target.read_text(encoding="utf-8") == "untouched"
        found = workspace / report.replace("sub/", "sub2/")
        assert found.is_file()
        assert not found.is_symlink()
        found.unlink()
    assert not (tmp_path / "run.json").exists()


def test_a_report_at_a_special_file_is_refused_before_the_start(workspace: Path) -> None:
    os.mkfifo(workspace / "fifo")
    code, out, err = run("exec", "--report", "fifo", "--", "echo", "ran", cwd=workspace)
    assert (code, out) == (2, "")
    assert "regular file" in err


def test_closed_streams_do_not_become_ours(workspace: Path) -> None:
    command = " ".join([*COMMAND, "exec", "--", "sh", "-c", "'echo hi; exit 3'"])
    shell = ["sh", "-c", f"{command} >&- 2>&- <&-"]
    ended = subprocess.run(shell, cwd=workspace, env={**os.environ, **ENV}, timeout=50, check=False)
    assert ended.returncode == 3


def test_what_is_said_on_the_terminal_cannot_drive_it(workspace: Path) -> None:
    code, _out, err = run("call", "no\x1b[31mtool", cwd=workspace)
    assert code == 4
    assert "\x1b" not in err


def test_a_profile_that_is_not_there_is_refused(workspace: Path) -> None:
    code, _out, err = run("--profile", "nope", "tools", "list", cwd=workspace)
    assert code == 78
    assert "mkdir" in err


def test_what_was_never_started_has_a_record_too(workspace: Path, hermes_home: Path) -> None:
    (hermes_home / FILE).write_text("[toolsets.file.policy]\ntimeout = 'soon'\n", encoding="utf-8")
    record = workspace / "run.json"
    code, _out, err = run("exec", "--report", str(record), "--junit", "run.xml", "--", "true", cwd=workspace)
    assert (code, "timeout" in err) == (78, True)
    found = json.loads(record.read_text(encoding="utf-8"))
    assert (found["tool"], found["outcome"]) == ("exec", "refused")
    assert "refused" in (workspace / "run.xml").read_text(encoding="utf-8")
    code, out, _err = run("call", "read_file", "path=a", "--json", cwd=workspace)
    assert (code, json.loads(out)["outcome"]) == (78, "refused")
