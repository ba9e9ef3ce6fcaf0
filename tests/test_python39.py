"""What travels runs on Python 3.9: the oldest that the other side of a runner may have.

A real 3.9 is asked where there is one. Everywhere the source is checked for newer syntax, and for names of the standard
library that are newer: that is all that a machine without a 3.9 can know.
"""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import vermin

from hermes_sandbox import bootstrap, discovery
from hermes_sandbox.worker import wire

ROOT = Path(__file__).parent.parent
WORKER = ROOT / "hermes_sandbox" / "worker"
TOOLS = ROOT / "tool_modules"
TRAVELS = sorted([*WORKER.glob("*.py"), *TOOLS.glob("*.py")])
NONCE = "0123456789abcdef"


@pytest.fixture(scope="module")
def python39() -> str:
    found = subprocess.check_output([ROOT / "scripts" / "find-python39.sh"], text=True, encoding="utf-8").strip()
    if not found:
        pytest.skip("no Python 3.9 on this machine; the source is checked for newer syntax and names all the same")
    return found


@pytest.mark.parametrize("path", TRAVELS, ids=lambda path: path.name)
def test_no_syntax_and_no_library_name_newer_than_39(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    ast.parse(source, path.name, feature_version=(3, 9))
    assert newer_than_39(source) == ""


def test_the_check_for_newer_names_notices_one() -> None:
    assert "itertools.pairwise" in newer_than_39("import itertools\nitertools.pairwise([])\n")


def newer_than_39(source: str) -> str:
    """What the names in a source need, in words, if that is more than Python 3.9."""
    config = vermin.Config()
    config.set_verbose(2)
    seen = vermin.visit(source, config)
    needs = seen.minimum_versions()[1]
    return seen.output_text() if needs and needs > (3, 9) else ""


@pytest.mark.parametrize("path", sorted(TOOLS.glob("*.py")), ids=lambda path: path.name)
def test_bundled_tools_need_nothing_installed(path: Path) -> None:
    names = {"tools", *(sibling.stem for sibling in TOOLS.glob("*.py"))} | sys.stdlib_module_names
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= names
        elif isinstance(node, ast.ImportFrom):
            assert node.level or (node.module or "").split(".")[0] in names


def test_every_file_of_the_worker_imports_under_39(python39: str, tmp_path: Path) -> None:
    shutil.copytree(WORKER, tmp_path / "hermes_worker", ignore=shutil.ignore_patterns("__pycache__"))
    names = [f"hermes_worker.{path.stem}" for path in WORKER.glob("*.py") if path.stem != "__init__"]
    program = f"import sys, importlib; sys.path.insert(0, {str(tmp_path)!r}); [*map(importlib.import_module, {names})]"
    argv = [python39, "-I", "-S", "-B", "-W", "error", "-c", program]
    ran = subprocess.run(argv, capture_output=True, text=True, encoding="utf-8", check=False)
    assert ran.returncode == 0, ran.stderr


def test_a_worker_under_39_loads_every_bundled_tool(python39: str, tmp_path: Path) -> None:
    """The real stub, the real bytes, and each module described as a supervisor would ask for it."""
    modules = [module.name for module in discovery.discover(TOOLS, discovery.FactsCache(tmp_path / "facts.json"))]
    files = {path.name: path.read_bytes() for path in TOOLS.glob("*.py")}
    payload = bootstrap.payload(wire.Boot(nonce=NONCE), files, same_python=False)
    frames = [request(number, wire.DESCRIBE, {"module": name}) for number, name in enumerate(modules, 1)]
    with subprocess.Popen(
        bootstrap.command(python39), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stderr is not None
        worker.stdin.write(payload + b"".join(frames))
        worker.stdin.flush()
        replies = [json.loads(worker.stdout.readline()) for _ in range(1 + len(modules))]
        worker.stdin.write(request(None, wire.BYE, {}))
        worker.stdin.flush()
        report = worker.stderr.read()  # to its end, with the pipe to the worker open: the worker leaves by itself
        worker.stdin.close()
    hello = replies[0]["params"]
    assert hello["nonce"] == NONCE
    assert hello["python"].startswith("3.9.")
    described = {name: reply["result"] for name, reply in zip(modules, replies[1:], strict=True)}
    assert {name: done["problem"] for name, done in described.items() if done["problem"]} == {}
    assert all(done["registrations"] for done in described.values())
    assert wire.ENDED.encode() in report
    assert worker.returncode == 0


def request(number: int | None, method: str, params: dict[str, Any]) -> bytes:
    frame = {"jsonrpc": "2.0", "method": method, "params": params, **({} if number is None else {"id": number})}
    return json.dumps(frame).encode() + b"\n"
