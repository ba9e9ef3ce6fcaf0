"""Who may import whom, where each dangerous thing lives, and how long a file may be: read from the source, never run.

A new file of the package needs a row in IMPORTS; that is the moment to think about where it belongs.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "hermes_sandbox"
MAX_FILE = 400  # lines: what can be held in the head
MAX_FUNCTION = 40

# Module of hermes_sandbox -> what it may import from the package.
EVERYWHERE = {"errors", "worker.wire"}
IMPORTS = {
    "__init__": "",  # loads what is asked for by name, so that `--help` pays for none of it
    "__main__": "cli",
    "arguments": "",
    "bootstrap": "",
    "bubblewrap": "",
    "bundled": "",
    "catalog": "config discovery exchange registry",
    "cgroup_places": "process",
    "cgroups": "cgroup_places process",
    "config": "config_checks dotenv hermes_config policy state toolsets_file",
    "config_checks": "policy",
    "discovery": "files",
    "driver": "events exchange protocol runners session text",
    "dotenv": "files",
    "environment": "policy",
    "errors": "",
    "files": "",
    "findings": "",
    "events": "text",
    "exchange": "session",
    "gates": "arguments catalog config environment policy pool registry toolsets",
    "hermes_config": "config_checks files hermes_terminal policy strict_yaml",
    "hermes_terminal": "config_checks policy",
    "home": "",
    "keys": "config environment findings policy registry",
    "hosts": "",
    "interpreters": "",
    "mounts": "",
    "outcomes": "exchange policy protocol results runners session",
    "policy": "hosts units",
    "pool": "bootstrap driver events policy presence runners session",
    "presence": "events files home process",
    "process": "",
    "protocol": "",
    "record": "driver exchange outcomes policy results runners",
    "registry": "bundled config discovery files schemas",
    "results": "",
    "runners": "bundled policy",
    "schemas": "arguments",
    "session": "protocol text",
    "sight": "bubblewrap policy runners",
    "supervisor": (
        "bundled catalog config discovery environment events exchange gates home outcomes policy pool record registry "
        "results toolsets workspace"
    ),
    "text": "",
    "state": "files",
    "strict_yaml": "",
    "toolsets_file": "bundled config_checks files",
    "sync": "config events exchange gates policy registry results supervisor",
    "toolcheck": (
        "bundled catalog config discovery exchange files findings gates keys policy registry supervisor toolsource "
        "trial workspace"
    ),
    "toolsets": "config registry",
    "units": "",
    "toolsource": "environment findings",
    "trial": "config driver environment home policy pool workspace",
    "workspace": "home process",
    # Whole folders: the command line, and the suite that third parties run on their runners.
    "doctor": (
        "doctor bubblewrap cgroups config environment findings hermes_config home interpreters keys mounts policy pool "
        "process registry runners supervisor trial"
    ),
    "cli": (
        "cli bundled config doctor dotenv environment findings home policy presence record registry results runners "
        "state supervisor sync text toolcheck toolsets"
    ),
    "testing": "testing bootstrap bundled driver exchange home policy pool results runners session supervisor sync",
}

# A name that only these files may use, where they are: the one home of each dangerous thing, and of each heavy package.
WORKER_FORKS = "worker/init.py worker/calls.py worker/commands.py worker/guard.py worker/program.py"
HOMES = {
    "subprocess": "process.py mounts.py bubblewrap.py",  # processes; a helper that holds a user namespace; --version
    "os.fork": WORKER_FORKS,
    "os.forkpty": "",
    "os.posix_spawn": "worker/program.py",
    "os.system": "",
    "os.popen": "",
    "os.execvpe": "worker/commands.py",
    "os.kill": "process.py worker/calls.py worker/guard.py worker/tree.py",
    "os.killpg": "worker/commands.py",
    "signal.pidfd_send_signal": "process.py",
    "asyncio.create_subprocess_exec": "",
    "asyncio.create_subprocess_shell": "",
    "ctypes": "mounts.py",
    "_ctypes": "worker/kernel.py",
    "tomllib": "toolsets_file.py",
    "yaml": "strict_yaml.py",
    "msgspec.json.Decoder": "protocol.py",  # bytes of a worker become messages here and nowhere else
    "json": "worker",  # the supervisor has msgspec, which validates while it reads
    "marshal.loads": "",
    "importlib.import_module": "__init__.py cli/__init__.py runners.py",
    "builtins.eval": "",
    "builtins.exec": "",
    "builtins.compile": "",
    "builtins.__import__": "worker/calls.py",
    "click": "cli",
    "docker": "runners/docker.py",
    "jsonschema_rs": "arguments.py",
}

# Files that pass frames on: here a method is wire.CALL, never "call".
FRAME_FILES = "protocol.py session.py driver.py worker/main.py worker/channel.py worker/init.py".split()


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported(path: Path) -> set[str]:
    """Dotted names that a file imports, wherever in it: `from a import b` is a.b, relative ones start with a dot."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def ours(path: Path) -> set[str]:
    """The modules of hermes_sandbox that a file imports, without the package's name: `policy`, `worker.wire`, `cli`."""
    found = set()
    for name in imported(path):
        if name.startswith("hermes_sandbox."):
            first, *rest = name.split(".")[1:]
            found.add(".".join([first, *rest[:1]]) if first == "worker" else first)
    return found


def row(path: Path) -> str:
    """The row of IMPORTS for a file of the package: its own name, or that of its folder."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def used(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of what a file imports, of attributes of plain names, and of builtins that it calls."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.lineno, f"builtins.{node.func.id}"


PACKAGE_FILES = [path for path in files(PACKAGE) if "worker" not in path.relative_to(PACKAGE).parts[:1]]
WORKER_FILES = files(PACKAGE / "worker")
WORKER_EXCEPTIONS = {"wire.py": {"msgspec"}}  # on our side of it only: test_protocol runs it as the worker does
RUNNER_FILES = files(ROOT / "runners")
TOOL_FILES = files(ROOT / "tool_modules")
SHIPPED = [*PACKAGE_FILES, *WORKER_FILES, *RUNNER_FILES, *TOOL_FILES]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def each(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=name_of)


@each(PACKAGE_FILES)
def test_the_package_imports_only_downwards(path: Path) -> None:
    assert row(path) in IMPORTS, f"{name_of(path)} is new: give it a row in IMPORTS of {Path(__file__).name}"
    extra = ours(path) - EVERYWHERE - set(IMPORTS[row(path)].split())
    assert not extra, f"{name_of(path)} may not import {', '.join(sorted(extra))}"


def test_imports_form_no_circle() -> None:
    left = {name: set(allowed.split()) - {name} for name, allowed in IMPORTS.items()}
    while leaves := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in leaves:
            del left[name]
    assert not left, f"these import each other: {', '.join(left)}"


@each(WORKER_FILES)
def test_the_worker_imports_only_its_siblings_and_the_standard_library(path: Path) -> None:
    allowed = sys.stdlib_module_names | {"hermes_worker"} | WORKER_EXCEPTIONS.get(path.name, set())
    foreign = {name for name in imported(path) if name.split(".")[0] not in allowed}
    assert not foreign


@each(TOOL_FILES)
def test_tool_modules_import_nothing_of_ours(path: Path) -> None:
    assert not [name for name in imported(path) if name.split(".")[0] in ("hermes_sandbox", "hermes_worker", "runners")]


@each(RUNNER_FILES)
def test_a_runner_imports_no_sibling(path: Path) -> None:
    siblings = {sibling.stem for sibling in RUNNER_FILES}
    names = {name.removeprefix("hermes_sandbox.").split(".")[:2][-1] for name in imported(path) if "runners." in name}
    assert not names & siblings
    assert not [name for name in imported(path) if name.split(".")[0] in ("runners", "tool_modules") or name[0] == "."]


@each(PACKAGE_FILES)
def test_nothing_of_the_package_names_a_runner(path: Path) -> None:
    """It is chosen at run time: load(name)."""
    names = {name for name in imported(path) for runner in RUNNER_FILES if name.endswith(f"runners.{runner.stem}")}
    assert not names


@pytest.mark.parametrize("name", HOMES)
def test_each_dangerous_thing_has_its_home(name: str) -> None:
    strays = []
    for path in [*PACKAGE_FILES, *WORKER_FILES, *RUNNER_FILES]:
        at = str(path.relative_to(ROOT)).removeprefix("hermes_sandbox/")
        if not any(at == home or at.startswith(f"{home}/") for home in HOMES[name].split()):
            strays += [f"{name_of(path)}:{line}" for line, found in used(path) if f"{found}.".startswith(f"{name}.")]
    assert not strays, f"{name} belongs to {HOMES[name] or 'nobody'}"


@pytest.mark.parametrize("name", FRAME_FILES)
def test_method_names_are_written_in_the_wire_file_only(name: str) -> None:
    wire = tree(PACKAGE / "worker" / "wire.py")
    methods = {
        node.value.value
        for node in wire.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    assert {"describe", "call", "hello", "ended"} <= methods
    nodes = list(ast.walk(tree(PACKAGE / name)))
    # The members of an Enum are words of their own.
    bodies = [item for node in nodes if isinstance(node, ast.ClassDef) for item in node.body]
    members = {id(item.value) for item in bodies if isinstance(item, ast.Assign)}
    strings = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in members]
    assert not [f"{node.lineno}: {node.value!r}" for node in strings if node.value in methods]


@each(SHIPPED)
def test_files_and_functions_stay_short(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_FILE
    long = {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    }
    assert not {name: length for name, length in long.items() if length > MAX_FUNCTION}
