"""Looks at a tool file for its author: is it found, does it load, is what it registers sound, what does it need?

The file is parsed here, and imported in a worker of its own, as at every start; a handler is never called. It is looked
at in a scratch folder, with a copy of those files beside it that it imports, so that nothing is kept of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hermes_sandbox import config as configuration
from hermes_sandbox import keys
from hermes_sandbox.bundled import bundled
from hermes_sandbox.catalog import Catalog
from hermes_sandbox.config import Config
from hermes_sandbox.discovery import MAX_SOURCE, FactsCache, ModuleFile
from hermes_sandbox.errors import SandboxError, Unavailable
from hermes_sandbox.exchange import Exchange, Watch
from hermes_sandbox.files import read_whole
from hermes_sandbox.findings import Finding, of_error
from hermes_sandbox.gates import Gates
from hermes_sandbox.policy import PolicyLayer, resolve
from hermes_sandbox.registry import DescribeCache, ToolInfo
from hermes_sandbox.supervisor import AsyncSupervisor
from hermes_sandbox.toolsource import Source
from hermes_sandbox.trial import Trials
from hermes_sandbox.worker import wire
from hermes_sandbox.workspace import Workspaces

SLOW = 1.0  # s of an import: each cold start of a worker of this tool takes that longer


async def check(path: Path, home: Path) -> list[Finding]:
    """What there is to say of a tool file, under the operator's configuration. Raises Refused where that is not
    sound."""
    config = configuration.load(home)
    try:
        text = read_whole(path, MAX_SOURCE)
    except OSError as error:
        return [Finding("file", str(path), "FAIL", f"cannot be read: {error.strerror or error}")]
    if (wrong := _name(path)) is not None:
        return [wrong]
    async with Workspaces(None).temporary() as scratch:
        cache = FactsCache(scratch / "facts.json")
        facts = cache.facts(_digest(text), text)
        if facts.problem:
            return [Finding("file", path.name, "FAIL", facts.problem)]
        if not facts.registers:
            return [_registers_nothing(path)]
        _copy(path, text, scratch, cache)
        source = Source(text, _beside(path))
        loader = _Loader(path.stem, scratch, config)
        async with Trials(config, home) as trials:
            tools, loading = await loader.load(trials)
    there = await _there(home)
    found = [*source.registering(), *source.handlers(), *loading]
    granted: set[str] = set()
    for tool in tools:
        found += _conflicts(tool, config, there, path)
        try:
            policy = resolve(config.layers(tool.toolset, tool.name))
            granted.update(policy.packages)
            found += keys.look("tool", tool, policy, config)
        except SandboxError as error:  # layers that do not agree, a .env that others can read
            found.append(of_error("tool", tool.name, error))
    asked = {name for tool in tools for name in tool.requires_env}
    wanted = source.environment(asked) if tools else ()  # what one that did not load asks for is not known
    return [*found, *source.imports(sorted(granted)), *wanted, *source.age()]


# Before anything is started -------------------------------------------------------------------------------------------


def _name(path: Path) -> Finding | None:
    """What is wrong with the file's name: then it is never looked at as a tool."""
    if path.suffix != ".py":
        why, hint = "only files that end with .py are looked at", f"mv {path.name} {path.stem}.py"
    elif path.stem.startswith("_"):
        why, hint = "a name that begins with _ is for files that tools import, and is no tool", "take the _ away"
    elif path.stem == "registry":
        why, hint = "tools.registry is the worker's own", "choose another name"
    elif not path.stem.isidentifier():
        why, hint = "it is no name of a Python module", "use letters, digits and underscores"
    else:
        return None
    return Finding("file", path.name, "FAIL", f"would not be found: {why}", hint)


def _registers_nothing(path: Path) -> Finding:
    message = "would not be found: it mentions no `register` of the registry that it imports from tools.registry"
    hint = "write at the top level:\nfrom tools.registry import registry\nregistry.register(name=..., toolset=..., ...)"
    return Finding("file", path.name, "FAIL", message, hint)


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _beside(path: Path) -> set[str]:
    with contextlib.suppress(OSError):  # a folder that may be passed, and not read
        return {name.removesuffix(".py") for name in os.listdir(path.parent) if name.endswith(".py")}
    return set()


def _copy(path: Path, text: bytes, scratch: Path, cache: FactsCache) -> None:
    """The file, and what it imports of the files beside it: others there are nobody's business. One that cannot be read
    is not copied, and missing when it is imported."""
    todo = [(path.stem, text)]
    done = {"registry"}
    while todo:
        name, text = todo.pop()
        (scratch / f"{name}.py").write_bytes(text)
        done.add(name)
        for other in set(cache.facts(_digest(text), text).imports) & _beside(path) - done:
            done.add(other)
            try:
                todo.append((other, read_whole(path.with_name(f"{other}.py"), MAX_SOURCE)))
            except OSError:
                continue


async def _there(home: Path) -> dict[str, ToolInfo]:
    """The tools that there are already; none where no worker can be had to describe them, which is told elsewhere."""
    async with AsyncSupervisor(home=home) as supervisor:
        try:
            return {tool.name: tool for tool in await supervisor.tools()}
        except SandboxError:
            return {}


# In a worker ----------------------------------------------------------------------------------------------------------


class _Loader:
    """Describes the module `name` of the folder `scratch` as the catalog does, and keeps how that went."""

    def __init__(self, name: str, scratch: Path, config: Config) -> None:
        self._name = name
        self._scratch = scratch
        self._config = config
        self._exchange: Exchange | None = None

    async def load(self, trials: Trials) -> tuple[list[ToolInfo], list[Finding]]:
        """The tools that it registers, and what there is to say of them; no tools where no worker can be had."""

        async def describe(module: ModuleFile, params: wire.Describe, watch: Watch) -> Exchange:
            async with trials.worker(gates.describing(module.hints), module.contents) as worker:
                exchange = await worker.request(params, watch)
            if module.name == self._name:
                self._exchange = exchange
            return exchange

        async def never(*_: object) -> Exchange:
            raise Unavailable("nothing is checked here")

        catalog = Catalog(self._config, [self._scratch], DescribeCache(self._scratch), describe, never)
        gates = Gates(self._config, catalog, None, PolicyLayer())
        try:
            registry = await catalog.registry()
        except SandboxError as error:
            return [], [of_error("file", "load", error)]
        key = str(self._scratch / f"{self._name}.py")
        tools = [tool for tool in registry.tools() if tool.module == key]
        problems = {name: reason for name, reason in registry.problems().items() if name.startswith(key)}
        found = []
        for name, reason in problems.items():
            tool = name.removeprefix(key).removeprefix(": ")
            found.append(Finding("tool" if tool else "file", tool or "load", "FAIL", reason))
        return tools, [*self._loading(key in problems, len(tools)), *found, *self._schemas(tools)]

    def _loading(self, failed: bool, count: int) -> Iterator[Finding]:
        exchange = self._exchange
        if exchange is None:
            return
        if not failed and not count:
            yield Finding("file", "load", "FAIL", "loads, and registers nothing", "is the call in a branch not taken?")
        elif not failed:
            slow = exchange.wall_s > SLOW
            hint = "import what is large in the handler that needs it" if slow else ""
            message = f"loads in {exchange.wall_s * 1000:.0f} ms, in a fresh worker; registers {count}"
            yield Finding("file", "load", "warn" if slow else "ok", message, hint)
        for stream, tail in (("stdout", exchange.stdout), ("stderr", exchange.stderr)):
            if tail.total:
                message = f"prints {tail.total} bytes to {stream} when it is imported: {tail.text.strip()[:200]!r}"
                yield Finding("file", "load", "warn", message, "nobody reads it: use logging in the handler")

    def _schemas(self, tools: list[ToolInfo]) -> Iterator[Finding]:
        done = self._exchange.reply if self._exchange is not None else None
        if not isinstance(done, wire.DescribeDone):
            return
        raw: dict[Any, dict[str, Any]] = {entry.get("name"): entry for entry in done.registrations}
        for tool in tools:
            yield from _schema(tool, raw[tool.name]["schema"])


# What it registers ----------------------------------------------------------------------------------------------------


def _schema(tool: ToolInfo, raw: Mapping[str, object]) -> Iterator[Finding]:
    nested = raw.get("type") == "function" and isinstance(raw.get("function"), Mapping)
    function = raw["function"] if nested else raw
    parameters = function.get("parameters") if isinstance(function, Mapping) else None
    properties = tool.parameters["properties"]
    shape = "nested" if nested else "bare"
    required = len(tool.parameters.get("required", ()))
    message = f"the schema is sound: {shape}, {len(properties)} arguments, {required} required"
    yield Finding("tool", tool.name, "ok", message)
    wanted = parameters.get("required") if isinstance(parameters, Mapping) else None
    lost = [str(name) for name in wanted if name not in properties] if isinstance(wanted, list) else []
    if lost:
        message = f"required names {', '.join(lost)}, which is no property: it is not asked for"
        yield Finding("tool", tool.name, "warn", message, "describe it in properties")
    if nested:
        message = "the schema is nested in {type, function}: Hermes itself shows a model no arguments of it"
        yield Finding("tool", tool.name, "warn", message, "give the inner object: {description, parameters}")
    if not tool.description:
        yield Finding("tool", tool.name, "warn", "has no description: a model has only its name", "say what it is for")


def _conflicts(tool: ToolInfo, config: Config, there: Mapping[str, ToolInfo], path: Path) -> Iterator[Finding]:
    """Whether another file has the name already. The user's file of the same name is this one, or will be."""
    entry = config.tools.get(tool.name)
    other = there.get(tool.name)
    if other is None or (entry is not None and entry.module == f"user:{path.stem}"):
        return
    owner = Path(other.module)
    if owner.parent == bundled("tool_modules"):
        if owner != path.resolve():
            hint = f'for yours write in toolsets.toml: [tools.{tool.name}] module = "user:{path.stem}"'
            yield Finding("tool", tool.name, "FAIL", "the name is a bundled tool's", hint)
    elif owner.name == path.name:
        return
    elif other.toolset != tool.toolset:
        message = f"the name belongs to toolset {other.toolset} of {owner}"
        yield Finding("tool", tool.name, "FAIL", message, "choose another name, or register with override=True")
    else:
        message = f"{owner} registers it too: of one toolset the file that is last by name has it"
        yield Finding("tool", tool.name, "warn", message, "choose another name")
