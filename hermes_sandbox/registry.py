"""Metadata of tools. Holds no callable: handlers exist in workers only.

What a module says of itself, by way of `describe`, is a stranger's word: names, sizes and depths are bounded, control
characters go, and a schema that is not sound makes a problem of that tool alone. Both shapes of a schema that real tool
files use, the bare one and the nested `{"type": "function", "function": {...}}`, give the same definition.

Conflicts are decided in file order: a name belongs to the first that registered it; within one toolset the later one
replaces it, as does one that says `override` in the same folder. A user's file never replaces a bundled tool unless the
operator's toolsets.toml says so: `[tools.NAME] module = "user:FILE"`. A name that toolsets.toml grants something to is
nobody's when two files of a folder want it, since a file may ask for a name to get at what is granted.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import os
import re
import sys
import time
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hermes_sandbox.bundled import bundled
from hermes_sandbox.config import FILE, USER, Config, Toolset
from hermes_sandbox.discovery import MAX_CACHE, TOOL_NAME, ModuleFile
from hermes_sandbox.errors import Unavailable
from hermes_sandbox.files import read_whole, write_whole
from hermes_sandbox.schemas import BadSchema, parameters_of
from hermes_sandbox.worker import wire

MAX_TOOLS = 256  # of one module
MAX_DESCRIPTION = 32 << 10  # characters
MAX_REASON = 2000  # characters of a problem
DEAR = 1.0  # s; a failure that took longer to find is kept
FAILURE_HOLDS = 3600.0  # s
MAX_CACHED = 512  # reports on disk; the oldest go
_TOOLSET = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Registration(msgspec.Struct, frozen=True):
    """One `registry.register` call as the worker reports it."""

    name: str
    toolset: str
    schema: dict[str, Any]
    requires_env: list[str] = []
    is_async: bool = False
    has_check: bool = False
    has_overrides: bool = False
    description: str = ""
    emoji: str = ""
    max_result_size_chars: float | None = None
    override: bool = False
    extra: list[str] = []


class DescribeReport(msgspec.Struct, frozen=True):
    """What a module registers, or why it did not load. `seconds`: how long that took."""

    registrations: list[dict[str, Any]]
    problem: str = ""
    seconds: float = 0.0


class ToolInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A tool. `module` is the key of its file, `group` names those that share a worker, `extra` the keywords of
    `register` that we do not know."""

    name: str
    toolset: str
    description: str
    parameters: dict[str, Any]
    requires_env: tuple[str, ...]
    is_async: bool
    has_check: bool
    has_overrides: bool
    emoji: str
    max_result_size_chars: float | None
    extra: tuple[str, ...]
    module: str
    group: str


class Registry:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._tools: dict[str, ToolInfo] = {}
        self._problems: dict[str, str] = {}
        self._claims: dict[str, list[ModuleFile]] = {}  # the files that want a name
        self._expected: dict[str, str] = {}  # names that a module which did not load seems to register

    def load(self, modules: Sequence[ModuleFile], reports: Mapping[str, DescribeReport]) -> None:
        """Take in what the modules said, in their order."""
        self._claims = _claims(modules, reports)
        for module in modules:
            report = reports[module.key]
            if report.problem:
                self._problems[module.key] = _clean(report.problem, MAX_REASON)
                self._expected.update(dict.fromkeys(module.hints, module.key))
            elif len(report.registrations) > MAX_TOOLS:
                self._problems[module.key] = (
                    f"it registers more than {MAX_TOOLS} tools: the first {MAX_TOOLS} are there"
                )
            for raw in report.registrations[:MAX_TOOLS]:
                try:
                    entry = msgspec.convert(raw, Registration)
                    info = self._info(module, entry)
                except Exception as error:  # a stranger's word: whatever is wrong with it is that tool's problem alone
                    name = " ".join(_clean(str(raw.get("name", "?")), 64).split())  # a line of `tools list` stays one
                    self._problems[f"{module.key}: {name}"] = _clean(str(error), MAX_REASON)
                    continue
                if (wrong := self._bad_time_argument(info)) is not None:
                    self._problems[wrong[0]] = wrong[1]
                    self._expected.setdefault(info.name, wrong[0])
                elif (reason := self._conflict(module, entry)) is not None:
                    self._problems[f"{module.key}: {info.name}"] = reason
                    self._expected.setdefault(info.name, f"{module.key}: {info.name}")
                else:
                    self._tools[info.name] = info
        self._check_pins()
        self._check_names()

    def _check_pins(self) -> None:
        """A name that the operator gave to a file: that ours is not there is what was asked for, that the file's is not
        is the trouble."""
        for name, own in self._config.tools.items():
            if not own.module.startswith(USER):
                continue
            ours = f"{bundled('tool_modules')}/"
            for key in [key for key in self._problems if key.startswith(ours) and key.endswith(f".py: {name}")]:
                del self._problems[key]
            if name not in self._tools:
                where = f"{'config.yaml' if name in self._config.operator.tools else FILE}: tools.{name}.module"
                file = own.module.removeprefix(USER)
                self._problems[where] = f"{file}.py of the user's tools is not there, or does not register {name}"
                self._expected[name] = where

    def _check_names(self) -> None:
        """Names in the operator's files that are nothing's: what they were to grant or to bound would silently not be
        so."""
        tools = {*self._tools, *self._expected}
        toolsets = {*self._config.toolsets, *(tool.toolset for tool in self._tools.values())}
        aliases: dict[str, str] = {}
        operator = self._config.operator
        for name in sorted(self._config.tools.keys() - tools - set(self._config.core)):  # our own may be left out
            file = "config.yaml" if name in operator.tools else "toolsets.toml"
            self._problems[f"{file}: tools.{name}"] = _nothing("tool", name, tools)
        listed = {name for entry in self._config.toolsets.values() for name in entry.tools}
        for name in sorted(set(self._config.core) - tools - listed):
            self._problems[f"toolsets.toml: core: {name}"] = _nothing("tool", name, tools)
        used = {tool.toolset for tool in self._tools.values()}
        for key, entry in self._config.toolsets.items():
            where = f"toolsets.toml: toolsets.{key}"
            if key not in used and not entry.tools and not entry.includes:  # what it says holds for nothing
                file = "config.yaml" if entry == Toolset() and key in operator.toolsets else "toolsets.toml"
                self._problems[f"{file}: toolsets.{key}"] = _nothing("toolset", key, toolsets - {key})
            for name in set(entry.tools) - tools - set(self._config.core):  # our own may be left out, folder and all
                self._problems[f"{where}.tools: {name}"] = _nothing("tool", name, tools)
            for name in set(entry.includes) - toolsets - {a for e in self._config.toolsets.values() for a in e.aliases}:
                self._problems[f"{where}.includes: {name}"] = _nothing("toolset", name, toolsets)
            for name in entry.aliases:
                if name in self._config.toolsets or aliases.setdefault(name, key) != key:
                    taken = name if name in self._config.toolsets else aliases[name]
                    self._problems[f"{where}.aliases: {name}"] = f"the name is taken by toolset {taken}"

    def _bad_time_argument(self, tool: ToolInfo) -> tuple[str, str] | None:
        """Where the operator names an argument for time that is no number, and words on it."""
        own = self._config.tools.get(tool.name)
        if own is None or not own.timeout_argument:
            return None
        node = tool.parameters["properties"].get(own.timeout_argument)
        kinds = [node, *(node.get("anyOf") or ())] if isinstance(node, dict) else []
        if any(isinstance(kind, dict) and kind.get("type") in ("number", "integer") for kind in kinds):
            return None
        said = self._config.operator.tools.get(tool.name, {})
        file = "config.yaml" if "timeout_argument" in said else "toolsets.toml"
        why = f"the tool has no argument {own.timeout_argument} that is a number: name one that is, or take it out"
        return f"{file}: tools.{tool.name}.timeout_argument", why

    def _info(self, module: ModuleFile, entry: Registration) -> ToolInfo:
        if not TOOL_NAME.fullmatch(entry.name):
            raise BadSchema("a tool's name is 1 to 64 letters, digits, dashes and underscores")
        if not _TOOLSET.fullmatch(entry.toolset):
            raise BadSchema("a toolset's name is 1 to 64 letters, digits, dots, dashes and underscores")
        description, parameters = parameters_of(entry.schema)
        own = self._config.tools.get(entry.name)
        return ToolInfo(
            name=entry.name,
            toolset=entry.toolset,
            description=_clean(entry.description or description, MAX_DESCRIPTION),
            parameters=parameters,
            requires_env=tuple(_clean(name, 128) for name in entry.requires_env[:64]),
            is_async=entry.is_async,
            has_check=entry.has_check,
            has_overrides=entry.has_overrides,
            emoji=_clean(entry.emoji, 16),
            max_result_size_chars=entry.max_result_size_chars,
            extra=tuple(_clean(name, 64) for name in entry.extra[:64]),
            module=module.key,
            group=f"{module.folder}:{own.group}" if own is not None and own.group else module.key,
        )

    def _conflict(self, module: ModuleFile, entry: Registration) -> str | None:
        """Why this registration may not have its name, or None if it may."""
        pinned = self._config.tools[entry.name].module if entry.name in self._config.tools else ""
        is_user = module.folder != bundled("tool_modules")
        if pinned.startswith("user:"):
            wanted = pinned.removeprefix("user:")
            return (
                None
                if is_user and module.name == wanted
                else f"toolsets.toml gives this name to {wanted}.py of the user's"
            )
        if self._config.grants(entry.name):
            claims = self._claims[entry.name]
            owners = [each for each in claims if each.folder == claims[0].folder]
            if len(owners) > 1:
                return (
                    f"toolsets.toml names this tool, and {len(owners)} files want the name: "
                    f"{', '.join(each.name for each in owners[:8])}; say which may have it: "
                    f'[tools.{entry.name}] module = "user:FILE"'
                )
            if module.key != owners[0].key:
                return _taken(owners[0].key, module, entry)
        known = self._tools.get(entry.name)
        if known is None:
            return None
        same_folder = Path(known.module).parent == module.folder
        if same_folder and (known.toolset == entry.toolset or entry.override):
            return None
        if same_folder:
            return f"the name belongs to toolset {known.toolset} already; to replace it register with override=True"
        return _taken(known.module, module, entry)

    def get(self, name: str) -> ToolInfo:
        """Raises Unavailable, with the nearest names, or with the reason why its module did not load."""
        if (tool := self._tools.get(name)) is not None:
            return tool
        if (module := self._expected.get(name)) is not None:
            raise Unavailable(f"the tool {name!r} did not load: {self._problems[module]}", hint=f"see {module}")
        near = difflib.get_close_matches(name, self._tools, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "see what there is with: hermes-sandbox tools list"
        raise Unavailable(f"there is no tool {name!r}", hint=hint)

    def tools(self) -> list[ToolInfo]:
        return [self._tools[name] for name in sorted(self._tools)]

    def problems(self) -> dict[str, str]:
        """Module, or module and tool -> why it is not there."""
        return dict(self._problems)

    def definitions(
        self, names: Sequence[str], overrides: Mapping[str, Mapping[str, Any]] | None = None
    ) -> list[dict[str, Any]]:
        """The tools for a model, by name, in OpenAI's shape. `overrides` are merged over a tool's own, at their top
        level, and left out where that makes an unsound schema."""
        found = []
        for name in sorted(names):
            tool = self._tools[name]
            function = {"name": name, "description": tool.description, "parameters": tool.parameters}
            if overrides and name in overrides:
                with contextlib.suppress(BadSchema):
                    description, parameters = parameters_of({**function, **overrides[name]})
                    function.update(description=_clean(description, MAX_DESCRIPTION), parameters=parameters)
            found.append({"type": "function", "function": function})
        return found


def _nothing(kind: str, name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"there is no such {kind}" + (f": did you mean {near[0]}?" if near else "")


def _claims(modules: Sequence[ModuleFile], reports: Mapping[str, DescribeReport]) -> dict[str, list[ModuleFile]]:
    """Which files want a name, in their order: those that register it, and those that did not load but seem to."""
    found: dict[str, list[ModuleFile]] = {}
    for module in modules:
        report = reports[module.key]
        said = [raw.get("name") for raw in report.registrations[:MAX_TOOLS]]
        for name in {each for each in said if isinstance(each, str)}.union(module.hints if report.problem else ()):
            found.setdefault(name, []).append(module)
    return found


def _taken(owner: str, module: ModuleFile, entry: Registration) -> str:
    pin = f'[tools.{entry.name}] module = "user:{module.name}"'
    return f"the name is taken by {owner}; to replace it write {pin} in your toolsets.toml"


class DescribeCache:
    """What modules said of themselves, on disk, by what they and we are. A file that is damaged counts as absent."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "cache" / "describe"
        shim = os.stat(Path(wire.__file__).with_name("tools_shim.py")).st_mtime_ns  # what makes a report of a module
        self._salt = f"{wire.VERSION} {shim} {sys.version_info[:3]} local"

    def _path(self, module: ModuleFile) -> Path:
        # With the folder: the same text beside other files is another module, which they may have spoken for.
        said = f"{self._salt} {module.key} {module.digest}".encode(errors="surrogateescape")
        name = hashlib.sha256(said).hexdigest()[:32]
        return self.folder / f"{name}.json"

    def read(self, module: ModuleFile) -> DescribeReport | None:
        path = self._path(module)
        try:
            report = msgspec.json.decode(read_whole(path, MAX_CACHE), type=DescribeReport)
            old = time.time() - path.stat().st_mtime > FAILURE_HOLDS
        except (OSError, msgspec.MsgspecError, RecursionError, UnicodeError):
            return None
        return None if report.problem and old else report

    def write(self, module: ModuleFile, report: DescribeReport) -> None:
        """Keep a success, and for an hour a failure that each start would pay dearly for: others are looked at again,
        since they may have been the machine's. Written whole or not at all; never raises."""
        if report.problem and report.seconds < DEAR:
            return
        with contextlib.suppress(OSError, UnicodeError, ValueError, TypeError, RecursionError, msgspec.MsgspecError):
            write_whole(self._path(module), msgspec.json.encode(report))
            kept = sorted(self.folder.glob("?" * 32 + ".json"), key=os.path.getmtime)
            for path in kept[:-MAX_CACHED]:
                path.unlink()


def _clean(text: str, limit: int) -> str:
    """Without control characters, which could paint a terminal or hide text, and not longer than `limit`."""
    text = text[:limit]
    if text.replace("\n", "").replace("\t", "").isprintable():  # nearly always, and much faster
        return text
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co"))
