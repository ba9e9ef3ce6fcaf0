"""The three ways to have hermes_sandbox: a wheel, an editable install, a bare checkout.

Each must find the folders beside the package, and a runner in them must have one name. No network: the wheel is built
with the hatchling of the test environment, and the fresh environments see its packages through a .pth file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("runners", "tool_modules", "images")
LOOK = """
import importlib.util, json
from hermes_sandbox import bundled, runners
from hermes_sandbox.runners import local
names = ("runners", "tool_modules", "images", "toolsets.toml")
print(json.dumps({
    "package": bundled.__file__,
    "found": {name: [str(bundled.bundled(name)), bundled.bundled(name).exists()] for name in names},
    "runner": [local.__name__, local.__file__, runners.load("local") is local.Runner],
    "top_level": [name for name in names if importlib.util.find_spec(name.partition(".")[0])],
}))
"""


def run(*argv: str | Path, cwd: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ran = subprocess.run(argv, capture_output=True, text=True, encoding="utf-8", check=False, cwd=cwd, env=clean)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def build(kind: str, source: Path, into: Path) -> Path:
    run(sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", into, cwd=source)
    (made,) = into.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


def install(environment: Path, *what: str | Path) -> Path:
    """A fresh environment with `what` in it; its interpreter."""
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=ROOT)
    python = environment / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=ROOT).strip())
    ours = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    (site / "dependencies.pth").write_text("\n".join(ours), encoding="utf-8")
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, *what, cwd=ROOT)
    return python


def check(seen: dict[str, Any], folder: Path) -> None:
    """`seen` is what LOOK printed; `folder` is where the package and what is bundled must come from."""
    assert Path(seen["package"]).is_relative_to(folder)
    assert all(there and Path(path).is_relative_to(folder) for path, there in seen["found"].values()), seen["found"]
    assert seen["runner"] == ["hermes_sandbox.runners.local", f"{seen['found']['runners'][0]}/local.py", True]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def sources() -> set[str]:
    """What a wheel must hold, as paths in it."""
    package = {str(path.relative_to(ROOT)) for path in (ROOT / "hermes_sandbox").rglob("*.py")}
    beside = {path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()}
    kept = {str(path) for path in beside if "__pycache__" not in path.parts}
    return package | {f"hermes_sandbox/_bundled/{name}" for name in {*kept, "toolsets.toml"}}


def test_the_wheel_holds_everything_below_one_name(wheel: Path) -> None:
    names = names_in(wheel)
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"hermes_sandbox"}
    assert sources() <= names
    strange = {name for name in names if "__pycache__" in name or "/tests/" in name}
    assert not strange


def test_a_wheel_out_of_the_source_archive_is_the_same(wheel: Path, tmp_path: Path) -> None:
    archive = build("sdist", ROOT, tmp_path / "sdist")
    # Not with tarfile: how it wants to be called differs between the Pythons that we support.
    run("tar", "--extract", "--gzip", "--file", archive, cwd=tmp_path)
    (source,) = (path for path in tmp_path.glob("hermes_sandbox-*") if path.is_dir())
    assert names_in(build("wheel", source, tmp_path / "again")) == names_in(wheel)


def test_installed_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    python = install(tmp_path / "environment", wheel)
    seen = json.loads(run(python, "-W", "error", "-c", LOOK, cwd=tmp_path))
    check(seen, tmp_path / "environment")
    assert seen["top_level"] == []
    assert "Usage: hermes-sandbox" in run(python.with_name("hermes-sandbox"), "--help", cwd=tmp_path)


def test_installed_editable(tmp_path: Path) -> None:
    python = install(tmp_path / "environment", "--editable", ROOT)
    check(json.loads(run(python, "-W", "error", "-c", LOOK, cwd=tmp_path)), ROOT)
    assert "Usage: hermes-sandbox" in run(python.with_name("hermes-sandbox"), "--help", cwd=tmp_path)


def test_a_bare_checkout(tmp_path: Path) -> None:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{LOOK}"
    check(json.loads(run(sys.executable, "-W", "error", "-c", program, cwd=tmp_path)), ROOT)
