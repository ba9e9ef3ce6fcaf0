"""Finds tool files without importing them.

A file of a tool folder is a tool module if its syntax tree mentions `register` of what it imported from
`tools.registry`, wherever in the file that is. The tree also names the siblings that the module imports, so that only
those travel to the worker with it. A name that begins with `_` is a sibling only. A file that cannot be read or parsed
is a problem with a reason.

The files are hostile, and the parser runs here: they are opened without waiting (a FIFO may be called x.py), only when
they are regular files, and parsed only when they are neither long nor dense: a megabyte of `a;a;a` would take 0.9 GB of
nodes, and one of `f"{a}{a}..."` half a minute. Many files together have a bound, too: what is beyond it is parsed at
the next start, when the others are in the cache. Whatever the parser raises is caught.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import msgspec

from hermes_sandbox.errors import Unavailable
from hermes_sandbox.files import read_whole, write_whole

MAX_SOURCE = 1 << 20  # bytes of one tool file
MAX_CACHE = 16 << 20  # bytes of one file of a cache
MAX_WORDS = 100_000  # words and signs of one; 300 kB of ordinary code
# Python 3.11 looks the place of each expression of an f-string up from the string's beginning: 0.4 ns for each brace
# and byte. The most that a file of the standard library or of a well-known package has is 4.9e8, and then 1.2e8.
MAX_BRACES = 500_000_000  # braces times bytes of one file; some 0.2 s
MAX_EFFORT = 5_000_000_000  # ns of parsing for all that is not in the cache
MAX_HINTS = 256
REGISTRY = "tools.registry"
TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


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

    def contents(self) -> dict[str, bytes]:
        """The text of its files, read as carefully as at discovery, and the same as then. Raises Unavailable."""
        found = {}
        for name, path in self.files().items():
            try:
                found[name] = read_whole(path, MAX_SOURCE)
            except OSError as error:
                raise Unavailable(f"{path} cannot be read any more: {error.strerror or error}") from None
        digests = {name.removesuffix(".py"): hashlib.sha256(text).hexdigest() for name, text in found.items()}
        if digest_of(digests) != self.digest:
            raise Unavailable(f"{self.key} was changed since it was described", hint="start again to take it as it is")
        return found


class Facts(msgspec.Struct, frozen=True):
    """What a file's text says. `problem`: why it says nothing."""

    registers: bool = False
    hints: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    problem: str = ""


class FactsCache:
    """Facts by the digest of the text, in one file: parsing every tool file at every start would cost some 10 ms each.

    `save` keeps those that were asked for since it was made. What another version of this file or of Python found, and
    a file that is damaged, count as absent."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._salt = f"{sys.version_info[:2]} {os.stat(__file__).st_mtime_ns} "
        self._used: dict[str, Facts] = {}
        self._effort = 0
        try:
            self._known = msgspec.json.decode(read_whole(path, MAX_CACHE), type=dict[str, Facts])
        except (OSError, msgspec.MsgspecError, RecursionError, UnicodeError):
            self._known = {}

    def facts(self, digest: str, text: bytes) -> Facts:
        key = self._salt + digest
        if key in self._used or key in self._known:
            found = self._used[key] = self._used.get(key) or self._known[key]
            return found
        words, braces = _dense(text)
        if words > MAX_WORDS:
            found = Facts(problem=f"it has more than {MAX_WORDS} words and signs")
        elif braces > MAX_BRACES:
            found = Facts(problem=f"its braces times its bytes are more than {MAX_BRACES}")
        elif self._effort > MAX_EFFORT:  # not kept: the next start has time for it
            return Facts(problem=f"it and the files before it take more than {MAX_EFFORT / 1e9:g} s to parse")
        else:
            self._effort += words * 3300 + braces  # ns, measured
            found = _facts(text)
        self._used[key] = found
        return found

    def save(self) -> None:
        """Never raises: what cannot be kept is found again."""
        if self._used != self._known:
            with contextlib.suppress(UnicodeError, ValueError, msgspec.MsgspecError):
                write_whole(self._path, msgspec.json.encode(self._used))


class _Folder:
    """The tool files of a folder, each looked at when it is first asked for. Digests are of the text."""

    def __init__(self, path: Path, cache: FactsCache) -> None:
        self._path = path
        self._cache = cache
        self._seen: dict[str, tuple[str, Facts]] = {}
        try:
            self.names = sorted(entry[:-3] for entry in os.listdir(path) if entry.endswith(".py"))
        except OSError:
            self.names = []
        # `tools.registry` is the worker's own, whatever lies in the folder.
        self.names = [name for name in self.names if name != "registry"]

    def look(self, name: str) -> tuple[str, Facts]:
        """The digest of a file, and what it says."""
        if name not in self._seen:
            try:
                text = read_whole(self._path / f"{name}.py", MAX_SOURCE)
            except OSError as error:
                self._seen[name] = "", Facts(problem=f"it cannot be read: {error.strerror or error}")
            else:
                digest = hashlib.sha256(text).hexdigest()
                self._seen[name] = digest, self._cache.facts(digest, text)
        return self._seen[name]


def discover(path: Path, cache: FactsCache) -> list[ModuleFile]:
    """The tool modules of a folder, by name; a folder that is not there has none."""
    folder = _Folder(path, cache)
    found = (_module(path, name, folder) for name in folder.names if not name.startswith(("_", ".")))
    return [module for module in found if module is not None]


def _module(path: Path, name: str, folder: _Folder) -> ModuleFile | None:
    facts = folder.look(name)[1]
    if facts.problem:
        return ModuleFile(folder=path, name=repr(name)[1:-1], problem=facts.problem)
    if not facts.registers:
        return None
    if not name.isidentifier():  # its name may hold anything, a terminal's control sequences included
        return ModuleFile(folder=path, name=repr(name)[1:-1], problem="its name is no name of a Python module")
    needed = _closure(name, folder)
    digest = digest_of({each: folder.look(each)[0] for each in {name, *needed}})
    siblings = tuple(sorted(needed - {name}))
    return ModuleFile(folder=path, name=name, siblings=siblings, digest=digest, hints=facts.hints)


def digest_of(digests: Mapping[str, str]) -> str:
    """One digest for a module and its siblings: name -> digest of its text."""
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _closure(name: str, folder: _Folder) -> set[str]:
    """The readable siblings that `name` imports, and those that they import."""
    found: set[str] = set()
    todo = [name]
    while todo:
        imports = folder.look(todo.pop())[1].imports
        present = [each for each in imports if each in folder.names and each not in found]
        new = [each for each in present if not folder.look(each)[1].problem]
        found.update(new)
        todo += new
    return found


def _dense(text: bytes) -> tuple[int, int]:
    """What a file costs to parse: its words and signs, and its braces times its bytes."""
    return len(re.findall(rb"\w+|[^\w\s]", text)), text.count(b"{") * len(text)


def _facts(text: bytes) -> Facts:
    try:
        with warnings.catch_warnings(action="ignore"):  # about a stranger's string escapes, on our stderr
            return _said(text, ast.parse(text))
    except SyntaxError as error:
        return Facts(problem=f"it is no Python: {error.msg} (line {error.lineno})")
    except ValueError as error:
        return Facts(problem=f"it is no Python: {error}")
    except (RecursionError, MemoryError):  # MemoryError is how the parser of 3.11 says so
        return Facts(problem="it is no Python that the parser can take: it is nested too deeply")
    except (
        Exception
    ) as error:  # a stranger's file is its own problem and nobody else's, whatever the parser makes of it
        return Facts(problem=f"it cannot be parsed: {type(error).__name__}")


def _said(text: bytes, tree: ast.Module) -> Facts:
    """Whether the module registers anything, the names that it gives literally, and what it imports."""
    imports: list[ast.Import | ast.ImportFrom] = []
    mentions: list[ast.Attribute] = []
    calls: list[ast.Call] = []
    assigned: list[ast.Assign] = []
    for node in ast.walk(tree) if b"register" in text else _statements(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.append(node)
        elif isinstance(node, ast.Attribute) and node.attr == "register":
            mentions.append(node)
        elif isinstance(node, ast.Call):
            calls.append(node)
        elif isinstance(node, ast.Assign):
            assigned.append(node)
    registries = set(_registries(imports))
    for each in assigned:  # reg = registry
        if _dotted(each.value) in registries:
            registries |= {target.id for target in each.targets if isinstance(target, ast.Name)}
    registering = {id(node) for node in mentions if _dotted(node.value) in registries}
    return Facts(
        registers=bool(registering),
        hints=tuple(islice(_literal_names(call for call in calls if id(call.func) in registering), MAX_HINTS)),
        imports=tuple(sorted(set(_siblings(imports)))),
    )


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """All statements, and no expressions: a tenth of the nodes, where only imports are of interest."""
    todo: list[ast.AST] = [tree]
    for node in todo:
        yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            if isinstance(children := getattr(node, field, None), list):
                todo += children


def _dotted(node: ast.expr) -> str:
    """`a.b.c` as text; "" for anything else, and for what is too long to name the registry."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < 2:
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _registries(imports: Iterable[ast.Import | ast.ImportFrom]) -> Iterator[str]:
    """The expressions by which the module may reach the registry: `registry`, an alias, `tools.registry.registry`."""
    for node in imports:
        for alias in node.names:
            if isinstance(node, ast.Import):
                if alias.name == REGISTRY and alias.asname:
                    yield f"{alias.asname}.registry"
                elif alias.name == "tools" or alias.name.startswith("tools."):
                    yield f"{alias.asname or 'tools'}.registry.registry"
            elif _origin(node) == REGISTRY and alias.name in ("registry", "*"):
                yield alias.asname or "registry"
            elif _origin(node) == "tools" and alias.name == "registry":
                yield f"{alias.asname or 'registry'}.registry"


def _origin(node: ast.ImportFrom) -> str:
    """The module of `from X import ...`, as an absolute name, for a file that lies in `tools`."""
    if node.level == 1:
        return f"tools.{node.module}" if node.module else "tools"
    return node.module or "" if node.level == 0 else ""


def _siblings(imports: Iterable[ast.Import | ast.ImportFrom]) -> Iterator[str]:
    for node in imports:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("tools."))
        elif (origin := _origin(node)) == "tools":
            yield from (alias.name for alias in node.names)
        elif origin.startswith("tools."):
            yield origin.split(".")[1]


def _literal_names(calls: Iterable[ast.Call]) -> Iterator[str]:
    for call in calls:
        for word in [word.value for word in call.keywords if word.arg == "name"] or call.args[:1]:
            if isinstance(word, ast.Constant) and isinstance(word.value, str) and TOOL_NAME.fullmatch(word.value):
                yield word.value
