"""The prctl calls, each seen from outside in what /proc says of a child that made it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).parent.parent / "hermes_sandbox" / "worker"


@pytest.fixture
def python(tmp_path: Path) -> list[str]:
    """An argv that runs code with `kernel` at hand; the code follows."""
    (tmp_path / "hermes_worker").symlink_to(WORKER)
    prelude = f"import os, signal, sys; sys.path.insert(0, {str(tmp_path)!r}); from hermes_worker import kernel\n"
    return [sys.executable, "-I", "-S", "-c", f"{prelude}exec(sys.argv[1])"]


def run(python: list[str], code: str) -> str:
    done = subprocess.run([*python, code], capture_output=True, encoding="utf-8", timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


STATUS = "print(open('/proc/self/status').read())"


def status(text: str, field: str) -> str:
    return next(line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(f"{field}:"))


def test_no_new_privs(python: list[str]) -> None:
    assert status(run(python, STATUS), "NoNewPrivs") == "0"
    assert status(run(python, f"kernel.set_no_new_privs(); {STATUS}"), "NoNewPrivs") == "1"


def test_an_undumpable_process_keeps_its_environment_from_its_user(python: list[str]) -> None:
    owner = "print(os.stat('/proc/self/environ').st_uid)"
    drop = f"os.setresuid(65534, 65534, 65534) if os.geteuid() == 0 else None; kernel.set_dumpable(True); {owner}"
    assert int(run(python, drop)) == (65534 if os.geteuid() == 0 else os.getuid())
    assert int(run(python, drop.replace("True", "False"))) == 0


def test_an_orphan_comes_to_the_subreaper(python: list[str]) -> None:
    code = """
kernel.set_child_subreaper()
r, w = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.close(w); os.read(r, 1); os._exit(3)
    os._exit(0)
os.wait(); os.write(w, b"x")
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    assert run(python, code) == "3\n"


def test_the_death_signal_comes_when_the_parent_ends(python: list[str]) -> None:
    code = """
r, w = os.pipe()
if os.fork() == 0:
    kernel.set_parent_death_signal(signal.SIGKILL)
    os.write(w, b"x"); signal.pause()
os.read(r, 1)
"""
    with subprocess.Popen([*python, code], stdout=subprocess.PIPE) as child:
        assert child.wait(timeout=30) == 0
        assert child.stdout is not None
        assert child.stdout.read() == b""  # the grandchild held it too: the end of file is its death


def test_an_error_names_the_call(python: list[str]) -> None:
    code = """
try:
    kernel.set_parent_death_signal(9999)
except OSError as error:
    print(error)
"""
    assert run(python, code) == "[Errno 22] prctl(PR_SET_PDEATHSIG): Invalid argument\n"
