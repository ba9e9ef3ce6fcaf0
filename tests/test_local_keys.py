"""The policy's keys on the local runner, one by one: what enforces each, asked from inside, and what is refused."""

from __future__ import annotations

import asyncio
import glob
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermes_sandbox import Supervisor, cgroups, interpreters
from hermes_sandbox.config import load
from hermes_sandbox.policy import OPTIONS, Layer, Policy, resolve
from hermes_sandbox.pool import policy_digest
from hermes_sandbox.results import CallResult
from hermes_sandbox.trial import Trials
from tests.support import TIERS, asked
from tests.test_local_runner import AS_ROOT, ROOT, users_python

PYTHON = str(interpreters.own().path)
Run = Callable[..., CallResult]


@pytest.fixture
def run(workspace: Path) -> Run:
    def one(*argv: str, **policy: object) -> CallResult:
        with Supervisor(workspace=workspace) as supervisor:
            return supervisor.exec(argv, policy=asked(timeout=30, **policy))

    return one


def refusal(result: CallResult) -> tuple[str, str]:
    assert result.outcome == "refused", result
    assert result.error is not None
    return result.error.message, result.error.hint


# What this runner has not -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    ("policy", "shown", "hint"),
    [
        ({"disk": "1G"}, "disk = 1G", "use file_size"),
        ({"image": "python:3.12"}, "image = python:3.12", "a runner that has"),
        ({"network": ["a.org:443", "*.b.org"]}, "network = a.org:443, *.b.org", '"none" or "host"'),
        ({"reuse": "process"}, "reuse = process", '"session" or "never"'),
        ({"may_call": ["patch"]}, "may_call = patch", "take it out"),
    ],
)
def test_what_it_cannot_enforce_is_refused_by_name(
    run: Run, workspace: Path, tier: str, policy: dict[str, object], shown: str, hint: str
) -> None:
    message, said = refusal(run("/bin/sh", "-c", "echo ran > ran", tier=tier, **policy))
    assert message.startswith(f"{shown} (exec) cannot be had: ")
    assert hint in said
    assert not (workspace / "ran").exists()


def test_a_refusal_names_the_layer_that_set_the_key(workspace: Path) -> None:
    with Supervisor(workspace=workspace, policy={"disk": "2G"}) as supervisor:
        result = supervisor.call("read_file", {"path": "x"})
    assert refusal(result)[0].startswith("disk = 2G (supervisor) cannot be had")


# hide ---------------------------------------------------------------------------------------------------------------

LOOK = "cat .env; cat priv/key; ls -A priv; echo x > .env; mv priv away; mv .env away; rm -rf priv .env; ls -A"


def test_what_is_hidden_is_not_in_sight_and_cannot_be_moved_away(run: Run, workspace: Path) -> None:
    (workspace / ".env").write_text("SECRET", encoding="utf-8")
    (workspace / "priv").mkdir()
    (workspace / "priv" / "key").write_text("SECRET", encoding="utf-8")
    result = run("/bin/sh", "-c", LOOK, hide=[str(workspace / ".env"), str(workspace / "priv")])
    assert "SECRET" not in result.stdout_tail + result.stderr_tail
    assert sorted(result.stdout_tail.split()) == [".env", "priv"]  # their names are there, and stay
    assert (workspace / "priv" / "key").read_text(encoding="utf-8") == "SECRET"
    assert (workspace / ".env").read_text(encoding="utf-8") == "SECRET"


def test_deep_below_the_workspace_the_way_there_cannot_be_moved_either(run: Run, workspace: Path) -> None:
    deep = workspace / "a" / "b" / "priv"
    deep.mkdir(parents=True)
    (deep / "key").write_text("SECRET", encoding="utf-8")
    result = run("/bin/sh", "-c", "mv a/b a/c; mv a z; cat */*/priv/key; echo x > a/b/new", hide=[str(deep)])
    assert "SECRET" not in result.stdout_tail
    assert sorted(path.name for path in (workspace / "a" / "b").iterdir()) == ["new", "priv"]


def test_it_is_hidden_in_every_folder_that_shows_it(run: Run, workspace: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "key").write_text("SECRET", encoding="utf-8")
    (folder / "plain").write_text("plain ", encoding="utf-8")
    (tmp_path / "link").symlink_to(folder)
    (folder / "to_key").symlink_to(folder / "key")
    names = [str(tmp_path / name) for name in ("data", "link")]
    for hidden in (folder / "key", tmp_path / "link" / "key", folder / "to_key"):
        for grant in ("read", "write"):
            files = " ".join(f"{name}/{file}" for name in names for file in ("plain", "key", "to_key"))
            result = run("/bin/sh", "-c", f"cat {files}", hide=[str(hidden)], **{grant: names})
            assert result.stdout_tail == "plain plain "


def test_of_the_system_too(run: Run) -> None:
    """/etc/ssl holds what the sandbox shows, /usr/share/doc lies in it, and /etc/localtime is a link into it."""
    zones = Path("/usr/share/zoneinfo")
    look = "ls -A /usr/share/zoneinfo /usr/share/doc /etc/ssl/certs 2>&1 | grep -v :; head -c1 /etc/localtime"
    hidden = [str(path) for path in (zones, Path("/usr/share/doc"), Path("/etc/ssl")) if path.exists()]
    result = run("/bin/sh", "-c", look, hide=hidden)
    assert result.stdout_tail.split() == []


def test_one_in_the_other_and_one_that_is_nowhere(run: Run, workspace: Path, tmp_path: Path) -> None:
    (workspace / "a" / "b").mkdir(parents=True)
    hidden = [str(workspace / "a" / "b"), str(workspace / "a"), "/no/such/folder", str(tmp_path)]
    result = run("/bin/sh", "-c", "ls -A a", hide=hidden)
    assert (result.exit_code, result.stdout_tail) == (0, "")


@pytest.mark.parametrize("below", ["", "..", "../.."])
def test_the_workspace_cannot_be_hidden_nor_what_it_lies_in(run: Run, workspace: Path, below: str) -> None:
    message, hint = refusal(run("/bin/true", hide=[str(workspace / below)]))
    assert f"is, or holds, the workspace {workspace}" in message
    assert "below it" in hint


def test_nor_what_the_sandbox_needs_or_is_to_show(run: Run, tmp_path: Path) -> None:
    for path in ("/", "/usr", os.path.realpath("/lib")):
        assert "which the sandbox needs" in refusal(run("/bin/true", hide=[path]))[0]
    (tmp_path / "granted" / "data").mkdir(parents=True)
    granted, above = str(tmp_path / "granted" / "data"), str(tmp_path / "granted")
    for key in ("read", "write", "packages"):
        message = refusal(run("/bin/true", hide=[above], **{key: [granted]}))[0]
        assert f"{granted}, which the sandbox is to show" in message
    assert "has its own" in refusal(run("/bin/true", hide=["/proc/cpuinfo"]))[0]


def test_what_is_not_there_is_refused_where_it_would_show(run: Run, workspace: Path) -> None:
    message, hint = refusal(run("/bin/true", hide=[str(workspace / "later")]))
    assert f"{workspace}/later is not there" in message
    assert "make it" in hint
    assert not (workspace / "later").exists()


def test_tier_process_hides_nothing_and_says_so(run: Run, workspace: Path) -> None:
    (workspace / ".env").touch()
    message, hint = refusal(run("/bin/true", tier="process", hide=[str(workspace / ".env")]))
    assert "hide = " in message
    assert "tier process shows everything" in message
    assert "namespaces" in hint


# python -------------------------------------------------------------------------------------------------------------

OTHERS = sorted(
    path
    for pattern in ("/usr/bin", "/usr/local/bin", "/opt/*/bin", os.path.expanduser("~/.pyenv/versions/*/bin"))
    for path in glob.glob(f"{pattern}/python3.[0-9]*")
    if Path(path).name.removeprefix("python3.").isdigit() and Path(path).name != f"python3.{sys.version_info[1]}"
)


def supported(path: str) -> bool:
    try:
        return interpreters.find(path).version >= interpreters.OLDEST
    except interpreters.NoInterpreter:
        return False


EXE = "readlink /proc/$PPID/exe"


@pytest.mark.parametrize("tier", TIERS)
def test_the_worker_runs_on_the_interpreter_that_was_named(run: Run, tier: str, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(PYTHON)
    assert run("/bin/sh", "-c", EXE, tier=tier, python=str(link)).stdout_tail == f"{PYTHON}\n"


def test_our_own_may_be_installed_behind_a_link(workspace: Path, tmp_path: Path) -> None:
    """As where `current` leads to a version: it runs by its real path, and what names it by the link finds it too."""
    link = tmp_path / "current"
    link.symlink_to(interpreters.own().prefix)
    python = str(link / "bin" / Path(PYTHON).name)
    code = f"""
import sys
from hermes_sandbox import Supervisor
with Supervisor(workspace={str(workspace)!r}) as supervisor:
    print(supervisor.exec(["/bin/sh", "-c", {EXE!r}]).stdout_tail, end="")
    print(supervisor.exec([{python!r}, "-c", "print(42)"]).stdout_tail, end="")
"""
    env = {"PYTHONPATH": f"{ROOT}:{sysconfig.get_paths()['purelib']}", "PATH": os.environ["PATH"]}
    out = subprocess.check_output([python, "-c", code], encoding="utf-8", env=env, cwd=workspace, timeout=50)
    assert out.split() == [PYTHON, "42"]


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("python", list(filter(supported, OTHERS)) or [pytest.param("", marks=pytest.mark.skip)])
def test_an_interpreter_of_another_version_runs_tools(workspace: Path, tier: str, python: str) -> None:
    (workspace / "file").write_text("content", encoding="utf-8")
    with Supervisor(workspace=workspace) as supervisor:
        policy = {"python": python, "tier": tier}
        assert supervisor.exec(["/bin/sh", "-c", EXE], policy=policy).stdout_tail.strip() == os.path.realpath(python)
        result = supervisor.call("read_file", {"path": "file"}, policy=policy)
    assert result.outcome == "ok", result
    assert "content" in str(result.result)


def test_what_cannot_run_a_worker_is_refused(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "python3"
    script.write_text('#!/bin/sh\nexec python3 "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    for path, why in ((tmp_path / "gone", "is not there"), (script, "is a script"), (Path("/bin/sh"), "no standard")):
        message, hint = refusal(run("/bin/true", python=str(path)))
        assert message.startswith(f"python = {path} (exec) cannot be had: ")
        assert why in message
        assert hint


@pytest.mark.parametrize("tier", TIERS)
def test_one_that_a_tool_may_have_put_there_is_refused(run: Run, workspace: Path, tmp_path: Path, tier: str) -> None:
    """A link in the workspace, as virtual environments have, and a whole installation."""
    (workspace / "bin").mkdir()
    (workspace / "bin" / "python").symlink_to(PYTHON)
    (workspace / "lib" / "python3.12").mkdir(parents=True)
    (workspace / "lib" / "python3.12" / "os.py").touch()
    planted = workspace / "bin" / "python3.12"
    planted.write_bytes(b"\x7fELF")
    planted.chmod(0o755)
    outside = tmp_path / "python"
    outside.symlink_to(planted)
    for path in (workspace / "bin" / "python", planted, outside):
        message, hint = refusal(run("/bin/true", tier=tier, python=str(path)))
        assert f"lies in {workspace}, where a tool may have put it" in message
        assert "packages" in hint


# cpus ---------------------------------------------------------------------------------------------------------------

# Burns on four processes for a second, and prints the CPU time of all of them in s.
BURN = """
import os, time
until = time.monotonic() + 1
mine = not any(os.fork() == 0 for _ in range(3))
while time.monotonic() < until: pass
if not mine: os._exit(0)
for _ in range(3): os.wait()
spent = os.times()
print(spent.user + spent.system + spent.children_user + spent.children_system)
"""


@pytest.fixture(scope="module")
def groups() -> cgroups.Cgroups:
    return cgroups.probe()


@pytest.mark.parametrize("tier", TIERS)
def test_cpus_bound_what_the_tree_uses_at_once(run: Run, groups: cgroups.Cgroups, tier: str) -> None:
    if not groups.can("cpus"):
        pytest.skip("no cgroup for CPUs is writable here")
    result = run(PYTHON, "-c", BURN, tier=tier, cpus=0.3)
    assert result.outcome == "ok", result
    assert 0.05 < float(result.stdout_tail) < 0.45


AS_USER = """
import sys
sys.path[:0] = [{root!r}, {packages!r}]
from hermes_sandbox import Supervisor
with Supervisor(workspace={workspace!r}) as supervisor:
    for tier in {tiers!r}:
        print(supervisor.exec(["/bin/true"], policy={{"tier": tier, "cpus": 1.5}}).to_json())
"""


@AS_ROOT
@pytest.mark.skipif(not users_python(), reason="no Python of this version that a plain user can reach")
def test_where_no_group_can_bound_them_cpus_are_refused(workspace: Path) -> None:
    """As a plain user, to whom no group is delegated."""
    os.chown(workspace, 1000, 1000)
    packages = sysconfig.get_paths()["platlib"]
    code = AS_USER.format(root=str(ROOT), packages=packages, workspace=str(workspace), tiers=TIERS)
    env = {"PATH": os.environ["PATH"], "HOME": str(workspace), "PYTHONDONTWRITEBYTECODE": "1"}
    out = subprocess.check_output(
        [users_python(), "-c", code], encoding="utf-8", env=env, cwd=workspace, timeout=50,
        user=1000, group=1000, extra_groups=[],
    )  # fmt: skip
    for line in out.splitlines():
        result = json.loads(line)
        assert result["outcome"] == "refused"
        assert result["error"]["message"] == (
            "cpus = 1.5 (exec) cannot be had: no cgroup that limits CPUs is writable here"
        )
        assert "take cpus out" in result["error"]["hint"]
    assert len(out.splitlines()) == len(TIERS)


def test_what_bounds_the_cpus_is_named(workspace: Path, groups: cgroups.Cgroups) -> None:
    if not groups.can("cpus"):
        pytest.skip("no cgroup for CPUs is writable here")

    async def mechanisms(**policy: Any) -> dict[str, str]:
        async with Trials(load(workspace), workspace) as trials:
            return dict((await trials.judge(Policy(**policy))).mechanisms)

    assert asyncio.run(mechanisms(cpus=1.5))["cpus"] == groups.mechanism("cpus")
    assert "cpus" not in asyncio.run(mechanisms())


# Whose worker it is ---------------------------------------------------------------------------------------------------

PER_CALL: dict[str, object] = {
    "timeout": 5,
    "idle_timeout": 5,
    "grace": 5,
    "cpu_time": None,
    "output": "1M",
    "result": "1M",
    "reuse": "never",
}
WHOLE_LIFE: dict[str, object] = {
    "cpus": 1.5,
    "memory": "64M",
    "pids": 9,
    "file_size": "1M",
    "disk": "1M",
    "open_files": 99,
    "network": ["a.org"],
    "read": ["/srv"],
    "write": ["/srv"],
    "hide": ["/srv"],
    "env": ["KEY"],
    "packages": ["/srv"],
    "python": "/usr/bin/python3",
    "may_call": ["patch"],
    "tier": "process",
    "runner": "docker",
    "image": "x",
}


def test_what_holds_for_a_workers_life_is_part_of_its_name() -> None:
    assert PER_CALL.keys() | WHOLE_LIFE.keys() == OPTIONS.keys()
    digests = {
        policy_digest(resolve([Layer("x", asked(**{name: value}), bounded=False)]))
        for name, value in WHOLE_LIFE.items()
    }
    assert len(digests) == len(WHOLE_LIFE)
    plain = policy_digest(Policy())
    assert plain not in digests
    for name, value in PER_CALL.items():
        if value is not None:
            assert policy_digest(resolve([Layer("x", asked(**{name: value}), bounded=False)])) == plain
    limited = [policy_digest(resolve([Layer("x", asked(cpu_time=seconds), bounded=False)])) for seconds in (1, 2)]
    assert limited[0] == limited[1] != plain  # whether it is watched is the worker's matter, and not the figure
