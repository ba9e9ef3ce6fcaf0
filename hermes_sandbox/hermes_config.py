"""config.yaml: the operator's word over toolsets.toml, in the file that Hermes has.

Sections of ours are checked key by key; those that a later part reads are only known by name, and what else is there
is Hermes' own and collected. `sandbox` speaks for all tools, `toolsets.X` and `tools.Y` for these, `terminal` in
Hermes' words for what it calls the terminal (hermes_terminal.py). What they say is a layer each, stronger than all of
toolsets.toml and not bound by its ceilings: who writes here may move both. `toolsets` may also be a list, as Hermes
writes it: the toolsets in use by default.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hermes_sandbox import config_checks as checks
from hermes_sandbox import files, hermes_terminal
from hermes_sandbox.errors import Refused
from hermes_sandbox.policy import Layer

FILE = "config.yaml"
SECTIONS = ("terminal", "sandbox", "toolsets", "tools", "runners")
LATER = ("mcp", "mcp_servers", "delegation")
DISABLED = "disabled"  # below tools: a list of names
OF_HERMES = "tool_search"  # below tools: how Hermes offers many tools


class HermesConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Layers: `everything` of all tools, `terminal` of the toolsets that Hermes' section means, `toolsets` and
    `tool_layers` by name. `tools`: what the table of a tool says besides. `chosen`: the toolsets in use by default;
    None is not said. `cwd`: the folder to work in, or "". `without_effect`: path of a key -> why; `foreign`: sections
    that are not ours."""

    everything: tuple[Layer, ...] = ()
    terminal: Mapping[str, Layer] = {}
    toolsets: Mapping[str, Layer] = {}
    tool_layers: Mapping[str, Layer] = {}
    tools: Mapping[str, Mapping[str, Any]] = {}
    chosen: tuple[str, ...] | None = None
    disabled: tuple[str, ...] = ()
    cwd: str = ""
    without_effect: Mapping[str, str] = {}
    foreign: tuple[str, ...] = ()

    def layers(self) -> list[Layer]:
        named = (self.terminal, self.toolsets, self.tool_layers)
        return [*self.everything, *(layer for layers in named for layer in layers.values())]


def read(home: Path) -> HermesConfig:
    """HOME/config.yaml; one that is not there says nothing. Raises Refused with the path of a bad key."""
    path = home / FILE
    data = _parse(path)
    for name in LATER:
        checks.table(data.get(name), f"{path}: {name}")
    _no_settings(data.get("runners"), f"{path}: runners")
    terminal = hermes_terminal.read(data.get("terminal"), f"{path}: terminal")
    chosen, toolsets = _toolsets(data.get("toolsets"), f"{path}: toolsets")
    tools, disabled, without_effect = _tools(data.get("tools"), f"{path}: tools")
    everything = _sandbox(data.get("sandbox"), f"{path}: sandbox")
    return HermesConfig(
        everything=(_layer("sandbox", everything),) if everything else (),
        terminal=terminal.layers,
        toolsets={name: _layer(f"toolsets.{name}", found) for name, found in toolsets.items()},
        tool_layers={name: _layer(f"tools.{name}", found) for name, found in tools.items()},
        tools={name: _without(found, checks.POLICIES) for name, found in tools.items()},
        chosen=chosen,
        disabled=disabled,
        cwd=terminal.cwd,
        without_effect={**terminal.without_effect, **without_effect},
        foreign=tuple(name for name in data if name not in (*SECTIONS, *LATER)),
    )


def _parse(path: Path) -> dict[str, Any]:
    text = files.read_text(path)
    if text is None:
        return {}
    from hermes_sandbox import strict_yaml  # PyYAML takes 15 ms to import, and most homes have no such file

    try:
        found = strict_yaml.load(text[0])
    except ValueError as error:
        raise Refused(f"{path}: {error}", hint="mend the file, or move it away") from None
    if not isinstance(found, dict | None):
        raise Refused(f"{path} is no table of sections", hint="write terminal: and such, with their keys below")
    return checks.table(found, str(path))


def _sandbox(value: Any, where: str) -> dict[str, Any]:
    for key in checks.table(value, where):
        if key in ("toolsets", "tools"):
            raise Refused(f"{where}.{key}: unknown key", hint=f"{key}: is a section of its own, beside sandbox:")
    return checks.entry(value, checks.POLICIES, where)


def _layer(name: str, found: Mapping[str, Any]) -> Layer:
    return Layer(f"{FILE}: {name}", **_without(found, found.keys() - checks.POLICIES.keys()), bounded=False)


def _without(found: Mapping[str, Any], keys: Container[str]) -> dict[str, Any]:
    return {key: each for key, each in found.items() if key not in keys}


def _toolsets(value: Any, where: str) -> tuple[tuple[str, ...] | None, dict[str, dict[str, Any]]]:
    """The toolsets in use, where the section is a list; else what it says of each."""
    if isinstance(value, list):
        return checks.names(value, where), {}
    return None, checks.entries(value, checks.POLICIES, where)


def _tools(value: Any, where: str) -> tuple[dict[str, dict[str, Any]], tuple[str, ...], dict[str, str]]:
    """Name -> its table, the names that are switched off, and what has no effect."""
    section = dict(checks.table(value, where))
    disabled = checks.names(section.pop(DISABLED, None) or [], f"{where}.{DISABLED}")
    without_effect = {}
    if OF_HERMES in section:
        checks.table(section.pop(OF_HERMES), f"{where}.{OF_HERMES}")
        without_effect[f"tools.{OF_HERMES}"] = "all tools are offered"
    return checks.entries(section, checks.TOOL, where), disabled, without_effect


def _no_settings(value: Any, where: str) -> None:
    for name, table in checks.table(value, where).items():
        for key in checks.table(table, f"{where}.{name}"):
            raise Refused(f"{where}.{name}.{key}: unknown key", hint=f"the runner {name} has no settings: remove it")
