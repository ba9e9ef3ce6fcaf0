"""The same promises for whoever runs the supervisor, and whoever owns the workspace.

As root, the workspace of a plain user gives files to that user, and a workspace of root's, behind folders that nobody
else may enter, gives them to root. The plain user himself is tried by running this machine's own tests again as uid
65534, in a process that root starts: where root's tests have control groups, that user has none, so that it is init's
watch and the kernel's per-user counts that hold there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_sandbox import Supervisor
from hermes_sandbox.testing import RunnerConformance
from tests.support import HOSTILE_TOOLS, Holders, asked

ROOT = Path(__file__).parent.parent
PLAIN, NOBODY = 1000, 65534
SYSTEM_PYTHON = "/usr/bin/python3"
SHIPPED = ("hermes_sandbox", "runners", "tool_modules", "tests", "toolsets.toml", "pyproject.toml")
PACKAGES = "msgspec jsonschema_rs click pytest _pytest pluggy iniconfig packaging pygments".split()
MODULES = ("py.py", "pytest_timeout.py")  # of the same libraries

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


class TestWorkspaceOfAPlainUser(RunnerConformance):
    options = {"tier": "namespaces"}

    @pytest.fixture(scope="class")
    @classmethod
    def workspace(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("plain").resolve()
        os.chown(folder, PLAIN, PLAIN)
        return folder


@pytest.mark.parametrize("owner", [0, PLAIN])
def test_files_belong_to_the_owner_behind_closed_folders(tmp_path: Path, owner: int) -> None:
    workspace = tmp_path / "closed" / "workspace"
    workspace.mkdir(parents=True)
    for folder in (workspace, workspace.parent):
        os.chown(folder, owner, owner)
        folder.chmod(0o700)
    (workspace / "given").write_text("given", encoding="utf-8")
    os.chown(workspace / "given", owner, owner)
    policy = asked(tier="namespaces")
    with Supervisor(tool_folders=[HOSTILE_TOOLS], workspace=workspace.resolve(), policy=policy) as supervisor:
        assert supervisor.call("write_file", {"path": "made", "text": "made"}).ok
        script = "cat given; echo more >>given; ln -s given link; mkdir -p a/b; mkfifo pipe; id -u"
        result = supervisor.exec(["sh", "-c", script])
        assert result.outcome == "ok"
        assert result.exit_code == 0, result.stderr_tail
        assert result.stdout_tail == f"given{PLAIN}\n"
    for name in ("given", "made", "link", "a", "a/b", "pipe"):
        found = (workspace / name).lstat()
        assert (found.st_uid, found.st_gid) == (owner, owner), name


@pytest.mark.parametrize("owner", [0, PLAIN])
def test_a_fork_bomb_of_roots_supervisor(workspace: Path, owner: int) -> None:
    os.chown(workspace, owner, owner)
    holders = Holders(workspace)
    policy = asked(tier="namespaces", pids=64, timeout=0.5, grace=0.1)
    with Supervisor(tool_folders=[HOSTILE_TOOLS], workspace=workspace, policy=policy) as supervisor:
        assert supervisor.call("fork_bomb", {"hold": holders.name}).outcome == "timeout"
        assert holders.are_gone()
        assert 0 < len(holders.seen) < 64
        assert supervisor.call("echo", {}).ok
    holders.close()


# A plain user -----------------------------------------------------------------------------------------------------

CONFORMANCE = """
from hermes_sandbox.testing import RunnerConformance

class TestNamespaces(RunnerConformance):
    options = {"tier": "namespaces"}

class TestProcess(RunnerConformance):
    options = {"tier": "process"}
    gaps = {"test_pids": "a plain user has no control group, and RLIMIT_NPROC would count all that he runs"}
"""


def same_python() -> bool:
    """Whether the system's interpreter can use the packages that this one has."""
    if not os.access(SYSTEM_PYTHON, os.X_OK):
        return False
    words = "import sys; print(*sys.version_info[:2])"
    found = subprocess.run([SYSTEM_PYTHON, "-I", "-c", words], capture_output=True, check=True).stdout
    return found.split() == [b"%d" % number for number in sys.version_info[:2]]


@pytest.fixture(scope="module")
def plain_copy() -> Iterator[Path]:
    """This project and what its tests need, where everybody can read it: not among pytest's folders, which it closes
    to others whenever it starts."""
    if not same_python():
        pytest.skip(f"{SYSTEM_PYTHON} is no Python {sys.version_info[0]}.{sys.version_info[1]}")
    with tempfile.TemporaryDirectory(prefix="hermes-sandbox-plain-") as name:
        _copy(Path(name).resolve())
        yield Path(name).resolve()


def _copy(folder: Path) -> None:
    libraries = {Path(sysconfig.get_paths()[name]) for name in ("purelib", "platlib")}
    sources = [ROOT / name for name in SHIPPED]
    sources += [library / name for library in libraries for name in (*PACKAGES, *MODULES) if (library / name).exists()]
    for source in sources:
        if source.is_dir():
            shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / source.name)
    (folder / "tests" / "test_plain.py").write_text(CONFORMANCE, encoding="utf-8")
    for each in ("run", "home"):
        (folder / each).mkdir()
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "selection",
    [
        ["tests/test_plain.py"],
        ["tests/test_hostile.py", "-k", "namespaces and (fork_bomb or 8_gb or cpu_time or timed_out)"],
        ["tests/test_death.py", "-k", "9 or swept"],
    ],
    ids=["conformance", "hostile", "death"],
)
def test_a_plain_user_has_the_same(plain_copy: Path, selection: list[str]) -> None:
    env = {
        "PATH": os.defpath + ":/usr/sbin",
        "HOME": str(plain_copy / "home"),
        "TMPDIR": str(plain_copy / "run"),
        "PYTHONPATH": str(plain_copy),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    argv = [SYSTEM_PYTHON, "-m", "pytest", "-q", "-p", "pytest_timeout", "-p", "no:cacheprovider", *selection]
    done = subprocess.run(
        argv, cwd=plain_copy, env=env, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout.decode()[-6000:] + done.stderr.decode()[-2000:]
    assert b"passed" in done.stdout
