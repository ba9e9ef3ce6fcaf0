"""toolsets.toml as frozen structs: the only file that reads TOML.

The bundled file comes first; the operator's, in HERMES_HOME, is merged over it: a toolset or tool that both name is
replaced key by key, anything else is added. A toolsets.toml in a checkout or a working folder is never read: whoever
writes there is not the operator.

A tool names its own toolset, and a tool file may lie: one that says "web" must not get what is granted to web. So a
toolset that lists its tools grants its policy to these alone; who else registers under its name belongs to it by name
and gets the default policy. One that lists none grants it to whoever comes.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hermes_sandbox.bundled import bundled
from hermes_sandbox.errors import Refused
from hermes_sandbox.policy import OPTIONS, Layer, PolicyLayer, layer

FILE = "toolsets.toml"
USER = "user:"  # in front of a module's name: the operator's own, in HERMES_HOME/tools


class Toolset(msgspec.Struct, frozen=True, kw_only=True):
    """`tools`: those that belong to it whatever they register as; `includes`: toolsets whose tools are in it too."""

    description: str = ""
    tools: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    policy: PolicyLayer = PolicyLayer()
    ceiling: PolicyLayer = PolicyLayer()


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """`module`: "user:NAME" lets HERMES_HOME/tools/NAME.py replace the bundled tool of this name. `group`: tools of one
    group share a worker (default: those of one file)."""

    module: str = ""
    group: str = ""
    policy: PolicyLayer = PolicyLayer()
    ceiling: PolicyLayer = PolicyLayer()


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """An environment variable that tools ask for: how to ask the user for it, and whether it is a secret."""

    description: str = ""
    prompt: str = ""
    url: str = ""
    password: bool = False


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """`distributions`: name -> toolset -> percent, for the generation of data."""

    core: tuple[str, ...] = ()
    defaults: PolicyLayer = PolicyLayer()
    toolsets: Mapping[str, Toolset] = {}
    tools: Mapping[str, Tool] = {}
    env: Mapping[str, Variable] = {}
    distributions: Mapping[str, Mapping[str, float]] = {}

    def layers(self, toolset: str = "", tool: str = "") -> list[Layer]:
        """The policy layers of a tool, from weak to strong; without one, what holds for everything."""
        found = [Layer("defaults", self.defaults, bounded=False)]
        entry = self.toolsets.get(toolset)
        belongs = entry is not None and (not entry.tools or tool in entry.tools)
        if entry is not None and belongs:
            found.append(Layer(f"toolsets.{toolset}", entry.policy, entry.ceiling, bounded=False))
        if own := self.tools.get(tool):
            found.append(Layer(f"tools.{tool}", own.policy, own.ceiling, bounded=belongs))
        return found

    def grants(self, tool: str) -> bool:
        """Whether a tool gets anything by its name: it has an entry, or a toolset with a policy lists it."""
        return tool in self.tools or any(
            tool in entry.tools and (entry.policy.set_keys() or entry.ceiling.set_keys())
            for entry in self.toolsets.values()
        )

    def writable(self) -> tuple[Path, ...]:
        """Every path that some policy or ceiling grants for writing."""
        entries: list[Toolset | Tool] = [*self.toolsets.values(), *self.tools.values()]
        layers = [self.defaults, *(layer for entry in entries for layer in (entry.policy, entry.ceiling))]
        return tuple(Path(path) for each in layers for path in each.set_keys().get("write", ()))


def load(home: Path) -> Config:
    """The bundled toolsets.toml with HOME/toolsets.toml merged over it. Raises Refused with the path of a bad key."""
    merged: dict[str, Any] = {}
    for path in (bundled(FILE), home / FILE):
        _merge(merged, _read(path))
    return Config(
        core=tuple(merged.get("core", ())),
        defaults=layer(merged.get("defaults", {}), f"{FILE}: defaults"),
        toolsets={name: Toolset(**_typed(table)) for name, table in merged.get("toolsets", {}).items()},
        tools={name: Tool(**_typed(table)) for name, table in merged.get("tools", {}).items()},
        env={name: Variable(**table) for name, table in merged.get("env", {}).items()},
        distributions=merged.get("distributions", {}),
    )


def _typed(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table that was checked, with the types that the structs have."""
    convert: dict[type, Callable[[Any], Any]] = {list: tuple, dict: lambda values: layer(values, FILE)}
    return {key: convert.get(type(value), lambda same: same)(value) for key, value in table.items()}


def _read(path: Path) -> dict[str, Any]:
    """What a file says, all of it checked; a file that is not there says nothing."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"{path} is no TOML: {error}", hint="mend the file, or move it away") from None
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}", hint="mend its permissions") from None
    _check_keys(data, ("core", "defaults", *_TABLES, "distributions"), str(path))
    _names(data.get("core", []), f"{path}: core")
    _policy(data.get("defaults", {}), f"{path}: defaults")
    for kind, checks in _TABLES.items():
        for name, table in _table(data.get(kind, {}), f"{path}: {kind}").items():
            where = f"{path}: {kind}.{name}"
            _check_keys(_table(table, where), tuple(checks), where)
            for key, value in table.items():
                checks[key](value, f"{where}.{key}")
    for name, shares in _table(data.get("distributions", {}), f"{path}: distributions").items():
        for toolset, percent in _table(shares, f"{path}: distributions.{name}").items():
            _percent(percent, f"{path}: distributions.{name}.{toolset}")
    return data


def _merge(into: dict[str, Any], data: Mapping[str, Any]) -> None:
    for key, value in data.items():
        if isinstance(value, dict) and isinstance(into.setdefault(key, {}), dict):
            _merge(into[key], value)
        else:
            into[key] = value


# One check for each kind of value. All raise Refused with the path of the key and what to write.


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Refused(f"{where} is no table", hint=f"write [{where.partition(': ')[2]}] and its keys below")
    return value


def _check_keys(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the keys are: {', '.join(known)}"
            raise Refused(f"{where}: unknown key {key!r}", hint=hint)


def _names(value: Any, where: str) -> None:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise Refused(f"{where} is no list of names", hint='write a list, such as ["read_file", "patch"]')


def _text(value: Any, where: str) -> None:
    if not isinstance(value, str):
        raise Refused(f"{where} is no text", hint="write it in quotes")


def _flag(value: Any, where: str) -> None:
    if not isinstance(value, bool):
        raise Refused(f"{where} is neither true nor false", hint="write true or false, without quotes")


def _percent(value: Any, where: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        raise Refused(f"{where} is no percentage", hint="write a number from 0 to 100")


def _module(value: Any, where: str) -> None:
    _text(value, where)
    if value and not (value.startswith(USER) and value.removeprefix(USER).isidentifier()):
        raise Refused(f"{where} names no file of the user's", hint='write "user:NAME" for NAME.py')


def _policy(value: Any, where: str) -> None:
    layer(_table(value, where), where)
    for key in ("read", "write", "packages"):
        for path in value[key] if isinstance(value.get(key), list) else ():
            if not path.startswith(("/", "~/")):  # there is no folder that it could be meant from
                raise Refused(f"{where}.{key} holds the relative path {path!r}", hint="begin it with / or ~/")


def _ceiling(value: Any, where: str) -> None:
    _policy(value, where)
    for key in value:
        if OPTIONS[key].order == "free":
            raise Refused(f"{where}.{key}: {key} has no order, so it can have no ceiling", hint="set it in the policy")


_TABLES: dict[str, dict[str, Callable[[Any, str], None]]] = {
    "toolsets": {
        "description": _text,
        "tools": _names,
        "includes": _names,
        "aliases": _names,
        "policy": _policy,
        "ceiling": _ceiling,
    },
    "tools": {"module": _module, "group": _text, "policy": _policy, "ceiling": _ceiling},
    "env": {"description": _text, "prompt": _text, "url": _text, "password": _flag},
}
