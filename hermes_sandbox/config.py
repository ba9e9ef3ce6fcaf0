"""toolsets.toml as frozen structs: the only file that reads TOML.

The bundled file comes first; the operator's, in HERMES_HOME, is merged over it: a toolset or tool that both name is
replaced key by key, anything else is added. A toolsets.toml in a checkout or a working folder is never read: whoever
writes there is not the operator.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hermes_sandbox.bundled import bundled
from hermes_sandbox.errors import Refused
from hermes_sandbox.policy import Layer, PolicyLayer, layer

FILE = "toolsets.toml"
USER = "user:"  # in front of a module's name: the operator's own, in HERMES_HOME/tools


class Toolset(msgspec.Struct, frozen=True, kw_only=True):
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


class Config(msgspec.Struct, frozen=True, kw_only=True):
    core: tuple[str, ...] = ()
    defaults: PolicyLayer = PolicyLayer()
    toolsets: Mapping[str, Toolset] = {}
    tools: Mapping[str, Tool] = {}

    def layers(self, toolset: str = "", tool: str = "") -> list[Layer]:
        """The policy layers of a tool, from weak to strong; without one, what holds for everything."""
        found = [Layer("defaults", self.defaults, bounded=False)]
        if entry := self.toolsets.get(toolset):
            found.append(Layer(f"toolsets.{toolset}", entry.policy, entry.ceiling, bounded=False))
        if own := self.tools.get(tool):
            found.append(Layer(f"tools.{tool}", own.policy, own.ceiling))
        return found


def load(home: Path) -> Config:
    """The bundled toolsets.toml with HOME/toolsets.toml merged over it. Raises Refused with the path of a bad key."""
    merged: dict[str, Any] = {}
    for path in (bundled(FILE), home / FILE):
        if path.is_file():
            _merge(merged, _read(path))
    return Config(
        core=tuple(merged.get("core", ())),
        defaults=layer(merged.get("defaults", {}), f"{FILE}: defaults"),
        toolsets={name: _toolset(name, table) for name, table in merged.get("toolsets", {}).items()},
        tools={name: _tool(name, table) for name, table in merged.get("tools", {}).items()},
    )


_TABLES: dict[str, tuple[str, ...]] = {
    "toolsets": ("description", "tools", "includes", "aliases", "policy", "ceiling"),
    "tools": ("module", "group", "policy", "ceiling"),
}
_LISTS = ("core", "tools", "includes", "aliases")
_TEXTS = ("description", "module", "group")


def _read(path: Path) -> dict[str, Any]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refused(f"{path} is no TOML: {error}", hint="mend the file, or move it away") from None
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}", hint="mend its permissions") from None
    _check_keys(data, ("core", "defaults", *_TABLES), str(path))
    if "core" in data:
        _check_names(data["core"], f"{path}: core")
    layer(_table(data.get("defaults", {}), f"{path}: defaults"), f"{path}: defaults")
    for kind, keys in _TABLES.items():
        for name, table in _table(data.get(kind, {}), f"{path}: {kind}").items():
            where = f"{path}: {kind}.{name}"
            _check_keys(_table(table, where), keys, where)
            for key in _LISTS:
                if key in table:
                    _check_names(table[key], f"{where}.{key}")
            for key in _TEXTS:
                _check_text(table.get(key, ""), f"{where}.{key}")
            if table.get("module") and not table["module"].startswith(USER):
                raise Refused(f"{where}.module names no file of the user's", hint='write "user:NAME" for NAME.py')
            for key in ("policy", "ceiling"):
                layer(_table(table.get(key, {}), f"{where}.{key}"), f"{where}.{key}")
    return data


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


def _check_names(value: Any, where: str) -> None:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise Refused(f"{where} is no list of names", hint='write a list, such as ["read_file", "patch"]')


def _check_text(value: Any, where: str) -> None:
    if not isinstance(value, str):
        raise Refused(f"{where} is no text", hint="write it in quotes")


def _merge(into: dict[str, Any], data: Mapping[str, Any]) -> None:
    for key, value in data.items():
        if isinstance(value, dict) and isinstance(into.setdefault(key, {}), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _toolset(name: str, table: Mapping[str, Any]) -> Toolset:
    where = f"{FILE}: toolsets.{name}"
    policy, ceiling = _layers(table, where)
    return Toolset(
        description=table.get("description", ""),
        tools=tuple(table.get("tools", ())),
        includes=tuple(table.get("includes", ())),
        aliases=tuple(table.get("aliases", ())),
        policy=policy,
        ceiling=ceiling,
    )


def _tool(name: str, table: Mapping[str, Any]) -> Tool:
    where = f"{FILE}: tools.{name}"
    policy, ceiling = _layers(table, where)
    return Tool(module=table.get("module", ""), group=table.get("group", ""), policy=policy, ceiling=ceiling)


def _layers(table: Mapping[str, Any], where: str) -> tuple[PolicyLayer, PolicyLayer]:
    return layer(table.get("policy", {}), f"{where}.policy"), layer(table.get("ceiling", {}), f"{where}.ceiling")
