"""Resolves names of toolsets to names of tools.

A name may mean several things. The operator's word goes first: a configured toolset, then an alias, then what a tool
file made up, a toolset of its own or its tool. So no file can take over "web_tools" by registering under it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from hermes_sandbox.config import Config
from hermes_sandbox.errors import Unavailable
from hermes_sandbox.registry import Registry

ALL = ("all", "*")
CORE = "core"


def names(config: Config, registry: Registry) -> list[str]:
    """Every toolset there is: those that are configured, and those that a tool registered itself under."""
    return sorted({*config.toolsets, *(tool.toolset for tool in registry.tools())})


def resolve(wanted: Iterable[str], config: Config, registry: Registry) -> set[str]:
    """The tools behind names of toolsets, aliases, "core", "all" and single tools, with everything they include.

    Only tools that exist are returned. Raises Unavailable for a name that is nothing of these, with the nearest one."""
    known = set(names(config, registry))
    aliases = {alias: name for name, entry in config.toolsets.items() for alias in entry.aliases}
    tools = {tool.name for tool in registry.tools()}
    found: set[str] = set()
    seen: set[str] = set()
    todo = [name.strip() for name in wanted]
    while todo:
        name = todo.pop()
        if name not in config.toolsets:
            name = aliases.get(name, name)
        if name in seen:  # a cycle, or a diamond
            continue
        seen.add(name)
        if name in ALL:
            found |= tools
        elif name == CORE and name not in known:
            found |= set(config.core)
        elif name in known:
            entry = config.toolsets.get(name)
            found |= {tool.name for tool in registry.tools() if tool.toolset == name}
            if entry is not None:
                found |= set(entry.tools)
                todo += entry.includes
        elif name in tools:
            found.add(name)
        else:
            near = difflib.get_close_matches(name, [*known, *aliases, *tools, CORE, *ALL], n=1)
            hint = f"did you mean {near[0]}?" if near else f"the toolsets are: {', '.join(sorted(known))}"
            raise Unavailable(f"there is no toolset or tool {name!r}", hint=hint)
    return found & tools
