"""Who a sandbox is, what it sees, and what it is refused: the local runner, asked from inside by `exec`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from hermes_sandbox import Supervisor
from hermes_sandbox.results import CallResult
from tests.support import asked

ROOT = Path(__file__).parents[1]
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
Run = Callable[..., CallResult]

LOOK = r"""
import json, os
def can_open(path, flags):
    try:
        os.close(os.open(path, flags))
        return True
    except OSError:
        return False
def statvfs(path):
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
print(json.dumps({
    "uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups(), "cwd": os.getcwd(), "env": dict(os.environ),
    "capabilities": [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "no_new_privs": status["NoNewPrivs"], "seccomp": status["Seccomp"],
    "pids": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
    "environ_of_1": [word for word in open("/proc/1/environ", "rb").read().decode().split("\0") if word] if os.access("/proc/1/environ", os.R_OK) else None,
    "sysctl": [can_open(path, os.O_WRONLY) for path in ("/proc/sys/kernel/hostname", "/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger")],
    "tmp": {path: statvfs(path) for path in ("/tmp", "/dev/shm", "/home/sandbox")},
    "made": [path for path in ("/new", "/etc/new", "/usr/new", "/dev/new", "/home/new", "/proc/new", "/root", "/var") if can_open(path, os.O_CREAT | os.O_WRONLY)],
    "interfaces": sorted(line.split(":")[0].strip() for line in open("/proc/net/dev").read().splitlines()[2:]),
    "root": sorted(os.listdir("/")), "hostname": os.uname().nodename, "passwd": open("/etc/passwd").read(),
    "session_leader": os.getsid(0) != 0, "fds": len(os.listdir("/proc/self/fd")),
}))
"""  # noqa: E501
PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))


@pytest.fixture
def run(workspace: Path, hermes_home: Path) -> Run:
    def one(*argv: str, where: Path = workspace, home: Path = hermes_home, **policy: object) -> CallResult:
        with Supervisor(workspace=where, home=home) as supervisor:
            return supervisor.exec(argv, policy=asked(timeout=20, **policy))

    return one


def seen(result: CallResult) -> dict[str, object]:
    assert result.outcome == "ok", result
    found: dict[str, object] = json.loads(result.stdout_tail)
    return found


def refusal(result: CallResult) -> tuple[str, str]:
    assert result.outcome == "refused", result
    assert result.error is not None
    return result.error.message, result.error.hint


# What is in sight -------------------------------------------------------------------------------------------------


def test_the_sandbox_has_nothing_that_it_was_not_given(
    run: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "secret")
    monkeypatch.setenv("GRANTED_NAME", "granted")
    inside = seen(run(PYTHON, "-c", LOOK, env=["GRANTED_NAME", "NOT_SET"]))
    env = inside["env"]
    assert isinstance(env, dict)
    assert env.pop("GRANTED_NAME") == "granted"
    assert env.keys() <= {"PATH", "LANG", "HOME", "TMPDIR", "PWD", "LC_CTYPE"}
    assert not inside["environ_of_1"]
    assert inside["capabilities"] == ["0000000000000000"] * 5
    assert (inside["no_new_privs"], inside["seccomp"]) == ("1", "2")
    assert inside["sysctl"] == [False] * 4
    assert inside["made"] == []
    assert inside["interfaces"] == ["lo"]
    assert inside["hostname"] == "sandbox"
    assert inside["cwd"] == str(workspace)
    assert inside["groups"] in ([], [inside["gid"]], [65534], [inside["gid"], 65534])
    pids = inside["pids"]
    assert isinstance(pids, list)
    assert pids[0] == 1
    assert len(pids) <= 4
    passwd = inside["passwd"]
    assert isinstance(passwd, str)
    assert {line.split(":")[0] for line in passwd.splitlines()} <= {"root", "sandbox"}


def test_what_is_memory_has_a_size(run: Run) -> None:
    sizes = seen(run(PYTHON, "-c", LOOK))["tmp"]
    assert sizes == {"/tmp": 512 << 20, "/dev/shm": 64 << 20, "/home/sandbox": 64 << 20}


def test_the_rest_of_the_machine_is_not_there(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("other", encoding="utf-8")
    for path in (str(tmp_path / "file"), "/etc/shadow", "/etc/hostname", "/etc/machine-id", "/sys/kernel", "/var/log"):
        assert run("/bin/cat", path).exit_code == 1, path
    visible = seen(run(PYTHON, "-c", LOOK))["root"]
    assert isinstance(visible, list)
    on_the_way = Path(sys.base_prefix).parts[1]  # the folders above the interpreter are there, and empty otherwise
    assert set(visible).isdisjoint({"root", "var", "sys", "run", "boot", "srv", "opt", "mnt"} - {on_the_way})


def test_the_workspace_can_be_written_and_a_read_grant_cannot(run: Run, workspace: Path, tmp_path: Path) -> None:
    granted = tmp_path / "granted"
    granted.mkdir()
    (granted / "data").write_text("data", encoding="utf-8")
    assert run("/bin/sh", "-c", "echo made > made && mkdir -p a/b && echo x > a/b/c").exit_code == 0
    assert (workspace / "made").read_text(encoding="utf-8") == "made\n"
    assert {(workspace / name).stat().st_uid for name in ("made", "a", "a/b/c")} == {os.getuid()}
    result = run("/bin/sh", "-c", f"cat {granted}/data; echo x > {granted}/new || echo refused", read=[str(granted)])
    assert result.stdout_tail == "datarefused\n"
    assert run("/bin/sh", "-c", f"echo x > {granted}/new", write=[str(granted)]).exit_code == 0
    assert (granted / "new").exists()


def test_network_host_is_the_hosts(run: Run) -> None:
    lines = Path("/proc/net/dev").read_text(encoding="ascii").splitlines()[2:]
    interfaces = [line.split(":")[0].strip() for line in lines]
    assert seen(run(PYTHON, "-c", LOOK, network="host"))["interfaces"] == sorted(interfaces)


# HERMES_HOME ------------------------------------------------------------------------------------------------------

FIND = "cat .hermes/.env; ls -A .hermes; mkdir -p .hermes/tools && echo planted > .hermes/toolsets.toml; true"


@pytest.fixture
def inner_home(workspace: Path) -> Path:
    home = workspace / ".hermes"
    home.mkdir()
    (home / ".env").write_text("SECRET", encoding="utf-8")
    return home


def test_the_home_is_hidden_even_inside_the_workspace(run: Run, inner_home: Path) -> None:
    assert run("/bin/sh", "-c", FIND, home=inner_home).stdout_tail == ""
    assert not (inner_home / "toolsets.toml").exists()


def test_so_it_is_when_it_is_named_by_a_link(run: Run, inner_home: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(inner_home)
    assert run("/bin/sh", "-c", FIND, home=link).stdout_tail == ""
    assert not (inner_home / "toolsets.toml").exists()


def test_so_it_is_below_a_granted_link(run: Run, tmp_path: Path) -> None:
    home = tmp_path / "user" / ".hermes"
    home.mkdir(parents=True)
    (home / ".env").write_text("SECRET", encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "user")
    for name in ("user", "link"):
        result = run("/bin/sh", "-c", f"cat {tmp_path}/{name}/.hermes/.env", home=home, read=[str(tmp_path / name)])
        assert "SECRET" not in result.stdout_tail


def test_one_that_is_not_there_yet_cannot_be_planted(run: Run, workspace: Path) -> None:
    """The user's first run, in the home folder: whoever could write ~/.hermes would be the operator of the next run."""
    run("/bin/sh", "-c", FIND, home=workspace / ".hermes")
    assert not (workspace / ".hermes" / "toolsets.toml").exists()
    assert not (workspace / ".hermes" / "tools").exists()


def test_a_workspace_inside_the_home_is_refused(run: Run, inner_home: Path) -> None:
    below = inner_home / "work"
    below.mkdir()
    message, hint = refusal(run("/bin/true", where=below, home=inner_home))
    assert "hidden" in message
    assert hint


# What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["/", "/usr", "/etc", "/tmp", "/proc"])
def test_the_machines_own_folders_are_no_workspace(run: Run, folder: str) -> None:
    message, hint = refusal(run("/bin/true", where=Path(folder)))
    assert folder in message
    assert "below" in hint


def test_a_folder_that_is_not_there_is_refused_by_its_name(run: Run, tmp_path: Path) -> None:
    assert str(tmp_path / "missing") in refusal(run("/bin/true", where=tmp_path / "missing"))[0]
    for key in ("read", "write"):
        assert str(tmp_path / "gone") in refusal(run("/bin/true", **{key: [str(tmp_path / "gone")]}))[0]


def test_without_bubblewrap_the_tier_is_refused_and_never_replaced(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from hermes_sandbox import bubblewrap

    monkeypatch.setenv("PATH", "/no/such/folder")
    monkeypatch.setattr(bubblewrap, "_packaged", lambda: None)
    message, hint = refusal(run("/bin/true"))
    assert "bubblewrap 0.8 or newer" in message
    assert "--tier process" in hint


@pytest.mark.parametrize("says", ["bubblewrap 0.4.1", "nonsense", ""])
def test_a_bubblewrap_that_is_too_old_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    from hermes_sandbox import bubblewrap

    old = tmp_path / "bwrap"
    old.write_text(f"#!/bin/sh\necho '{says}'\n", encoding="ascii")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(bubblewrap, "_packaged", lambda: None)
    assert f"{old} is " in refusal(run("/bin/true"))[0]


def test_tier_process_says_what_it_is_and_refuses_what_it_cannot(run: Run) -> None:
    result = run("/bin/true", tier="process")
    assert (result.outcome, result.tier) == ("ok", "process")
    assert any("no sandbox" in note for note in result.notes)
    assert "network" in refusal(run("/bin/true", tier="process", network="none"))[0]


# Who it is --------------------------------------------------------------------------------------------------------


@AS_ROOT
def test_root_with_roots_workspace_is_a_uid_that_nobody_else_has(run: Run, workspace: Path) -> None:
    (workspace / "own").write_text("own", encoding="utf-8")
    (workspace / "own").chmod(0o600)
    result = run("/bin/sh", "-c", "id -u; cat own; stat -c %u own; echo new > new")
    assert result.stdout_tail.split() == ["1000", "own1000"]
    assert (workspace / "new").stat().st_uid == 0
    uids: list[set[int]] = []

    def look(_stream: str, _data: bytes) -> None:
        """From outside: who the processes of the sandbox are."""
        uids.append({child.uids().real for child in psutil.Process().children(recursive=True)})

    for _ in range(2):
        with Supervisor(workspace=workspace) as supervisor:
            supervisor.exec(["/bin/echo", "x"], on_output=look)
    assert all(len(each) == 1 and min(each) >= 1_900_000_000 for each in uids), uids
    assert uids[0] != uids[1]  # a new one each time


@AS_ROOT
def test_root_with_somebodys_workspace_is_that_user(run: Run, workspace: Path) -> None:
    os.chown(workspace, 1000, 1000)
    (workspace / "roots").write_text("secret", encoding="utf-8")
    (workspace / "roots").chmod(0o600)
    result = run("/bin/sh", "-c", "id -u; id -g; echo new > new; cat roots || echo closed")
    assert result.stdout_tail.split() == ["1000", "1000", "closed"]
    found = (workspace / "new").stat()
    assert (found.st_uid, found.st_gid) == (1000, 1000)


@AS_ROOT
def test_somebody_elses_files_in_roots_workspace_stay_closed(run: Run, workspace: Path) -> None:
    theirs = workspace / "theirs"
    theirs.write_text("secret", encoding="utf-8")
    os.chown(theirs, 4242, 4242)
    theirs.chmod(0o600)
    assert run("/bin/sh", "-c", "cat theirs || echo closed").stdout_tail == "closed\n"
    assert run("/bin/sh", "-c", "echo x >> theirs || echo closed").stdout_tail == "closed\n"
    assert theirs.read_text(encoding="utf-8") == "secret"


AS_USER = """
import sys
sys.path[:0] = [{root!r}, {packages!r}]
from pathlib import Path
from hermes_sandbox import Supervisor
with Supervisor(workspace=Path({workspace!r}), home=Path({workspace!r}) / "home") as supervisor:
    print(supervisor.exec([sys.executable, "-c", {look!r}]).to_json())
    print(supervisor.exec(["/bin/sh", "-c", "echo new > new"]).to_json())
"""


def users_python() -> str:
    """An interpreter of our version that every user can reach; ours may lie in root's own folder."""
    for path in (PYTHON, f"/usr/bin/python3.{sys.version_info[1]}"):
        folders = Path(path).parents
        if os.path.exists(path) and all(folder.stat().st_mode & 0o001 for folder in folders):
            return path
    return ""


@AS_ROOT
@pytest.mark.skipif(not users_python(), reason="no Python of this version that a plain user can reach")
def test_a_plain_user_is_itself(workspace: Path) -> None:
    """In a child that gives its rights up before it is Python."""
    os.chown(workspace, 1000, 1000)
    packages = sysconfig.get_paths()["platlib"]
    code = AS_USER.format(root=str(ROOT), packages=packages, workspace=str(workspace), look=LOOK)
    env = {"PATH": os.environ["PATH"], "SECRET_TOKEN": "secret", "HOME": str(workspace), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [users_python(), "-c", code], capture_output=True, encoding="utf-8", env=env, cwd=workspace, timeout=50,
        check=False,
        user=1000, group=1000, extra_groups=[],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    looked, made = map(json.loads, done.stdout.splitlines())
    assert looked["outcome"] == "ok", looked
    inside = json.loads(looked["stdout_tail"])
    assert (inside["uid"], inside["gid"]) == (1000, 1000)
    assert "SECRET_TOKEN" not in inside["env"]
    assert not inside["environ_of_1"]
    assert inside["capabilities"] == ["0000000000000000"] * 5
    assert inside["sysctl"] == [False] * 4
    assert made["exit_code"] == 0
    assert (workspace / "new").stat().st_uid == 1000


# What is left -----------------------------------------------------------------------------------------------------


def test_nothing_of_a_sandbox_shows_in_the_hosts_mount_table(run: Run, workspace: Path) -> None:
    before = Path("/proc/self/mounts").read_text(encoding="utf-8")
    with Supervisor(workspace=workspace) as supervisor:
        during = ""

        def look(_stream: str, _data: bytes) -> None:
            nonlocal during
            during = Path("/proc/self/mounts").read_text(encoding="utf-8")

        assert supervisor.exec(["/bin/echo", "x"], on_output=look).outcome == "ok"
    assert during == before
    assert Path("/proc/self/mounts").read_text(encoding="utf-8") == before
