"""Finds tool files without importing them.

A file of a tool folder is a tool module if its syntax tree holds a call of `register` on what it imported from
`tools.registry`, wherever in the file that is. The tree also names the siblings that the module imports, so that only
those travel to the worker with it. A file that cannot be read or parsed is a problem with a reason.

The files are hostile: they are only opened without waiting (a FIFO may be called x.py), only when they are regular
files of a bounded size, and the parser's own failures on nested input are caught.
"""

from __future__ import annotations

import ast
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

MAX_SOURCE = 1 << 20  # bytes of one tool file
REGISTRY = "tools.registry"


class ModuleFile(msgspec.Struct, frozen=True, kw_only=True):
    """A tool module. `siblings` are the modules of its folder that it needs, itself not among them. `digest` covers all
    of their text. `hints`: names that it seems to register. `problem`: why it cannot be described, else ""."""

    folder: Path
    name: str
    siblings: tuple[str, ...] = ()
    digest: str = ""
    hints: tuple[str, ...] = ()
    problem: str = ""

    @property
    def key(self) -> str:
        """Its path, as a string: unique among modules."""
        return str(self.folder / f"{self.name}.py")

    def files(self) -> dict[str, Path]:
        """What has to travel to a worker for it: path below `tools/` -> file."""
        return {f"{name}.py": self.folder / f"{name}.py" for name in (self.name, *self.siblings)}


class _Source(msgspec.Struct, frozen=True):
    text: bytes
    registers: bool
    hints: tuple[str, ...]
    imports: frozenset[str]


def discover(folder: Path) -> list[ModuleFile]:
    """The tool modules of a folder, by name; a folder that is not there has none."""
    try:
        names = sorted(
            entry[:-3] for entry in os.listdir(folder) if entry.endswith(".py") and not entry.startswith(".")
        )
    except OSError:
        return []
    sources: dict[str, _Source | str] = {name: _look(folder / f"{name}.py") for name in names if name.isidentifier()}
    return [module for name in sources if (module := _module(folder, name, sources)) is not None]


def _module(folder: Path, name: str, sources: dict[str, _Source | str]) -> ModuleFile | None:
    source = sources[name]
    if isinstance(source, str):
        return ModuleFile(folder=folder, name=name, problem=source)
    if not source.registers:
        return None
    needed = _closure(name, sources)
    digest = hashlib.sha256()
    for each in sorted({name, *needed}):
        found = sources[each]
        assert isinstance(found, _Source)
        digest.update(each.encode() + b"\0" + hashlib.sha256(found.text).digest())
    return ModuleFile(
        folder=folder, name=name, siblings=tuple(sorted(needed - {name})), digest=digest.hexdigest(), hints=source.hints
    )


def _closure(name: str, sources: dict[str, _Source | str]) -> set[str]:
    """The readable siblings that `name` imports, and those that they import."""
    found: set[str] = set()
    todo = [name]
    while todo:
        source = sources[todo.pop()]
        if isinstance(source, _Source):
            new = {each for each in source.imports if isinstance(sources.get(each), _Source)} - found
            found |= new
            todo += new
    return found


def _look(path: Path) -> _Source | str:
    """What a file says, or why that cannot be known."""
    try:
        text = _read(path)
        tree = ast.parse(text)
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"
    except SyntaxError as error:
        return f"it is no Python: {error.msg} (line {error.lineno})"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"it is no Python: {str(error) or type(error).__name__}"
    return _Source(text, *_registrations(tree), frozenset(_sibling_imports(tree)))


def _read(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "it is no regular file")
        if found.st_size > MAX_SOURCE:
            raise OSError(0, f"it has {found.st_size} bytes, more than {MAX_SOURCE}")
        return file.read(MAX_SOURCE)


def _registrations(tree: ast.Module) -> tuple[bool, tuple[str, ...]]:
    """Whether the module registers anything, and the names that it gives literally."""
    names = _registry_names(tree)
    found, hints = False, []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "register"):
            continue
        if ast.unparse(node.func.value) not in names:
            continue
        found = True
        given = [word.value for word in node.keywords if word.arg == "name"] or node.args[:1]
        hints += [word.value for word in given if isinstance(word, ast.Constant) and isinstance(word.value, str)]
    return found, tuple(hints)


def _registry_names(tree: ast.Module) -> set[str]:
    """The expressions by which the module may call the registry: `registry`, an alias, `tools.registry.registry`."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if (isinstance(node, ast.ImportFrom) and node.module == REGISTRY) or _is_relative(node, "registry"):
            names |= {alias.asname or alias.name for alias in node.names if alias.name == "registry"}  # type: ignore[attr-defined]
        elif isinstance(node, ast.ImportFrom) and (node.module == "tools" or _is_relative(node, None)):
            names |= {f"{a.asname or a.name}.registry" for a in node.names if a.name == "registry"}
        elif isinstance(node, ast.Import):
            names |= {f"{a.asname or a.name}.registry" for a in node.names if a.name == REGISTRY}
    return names


def _is_relative(node: ast.AST, module: str | None) -> bool:
    return isinstance(node, ast.ImportFrom) and node.level == 1 and node.module == module


def _sibling_imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("tools."))
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level == 1:
                module = f"tools.{module}" if module else "tools"
            if module == "tools":
                yield from (alias.name for alias in node.names)
            elif module.startswith("tools."):
                yield module.split(".")[1]
