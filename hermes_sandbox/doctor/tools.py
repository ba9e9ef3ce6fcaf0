"""Which tools did not load, and what the others still want of the operator."""

from __future__ import annotations

import os
from collections.abc import Iterator

from hermes_sandbox.config import Config, Variable
from hermes_sandbox.findings import Finding, of_error
from hermes_sandbox.registry import ToolInfo
from hermes_sandbox.supervisor import AsyncSupervisor

AREA = "tools"


async def known(supervisor: AsyncSupervisor) -> tuple[list[ToolInfo], list[Finding]]:
    """The tools that load, and why others do not: one by one, or all of them where no worker can be had."""
    try:
        tools = await supervisor.tools()
        problems = await supervisor.problems()
    except Exception as error:
        return [], [of_error(AREA, "loaded", error)]
    loaded = Finding(AREA, "loaded", "ok", ", ".join(tool.name for tool in tools) or "none")
    return tools, [loaded, *(_problem(name, reason) for name, reason in problems.items())]


async def look(tools: list[ToolInfo], supervisor: AsyncSupervisor, config: Config) -> list[Finding]:
    return [finding for tool in tools for finding in _keys(tool, supervisor, config)]


def _problem(name: str, reason: str) -> Finding:
    """What toolsets.toml says of tools that are not there is configured, and cannot work."""
    configured = name.startswith("toolsets.toml")
    hint = "" if configured else f"hermes-sandbox tools check {name.partition('.py')[0]}.py"
    return Finding(AREA, name, "FAIL" if configured else "warn", reason, hint)


def _keys(tool: ToolInfo, supervisor: AsyncSupervisor, config: Config) -> Iterator[Finding]:
    try:
        granted = supervisor.policy_of(tool).env
    except Exception:  # what is wrong with its policy is told there
        return
    for name in tool.requires_env:
        state = "is not granted" if name not in granted else "is granted, and not set" if not _is_set(name) else ""
        if state:
            about = _about(config.env.get(name, Variable()))
            hint = "\n".join([*about, f"hermes-sandbox tools enable {tool.name}"])
            yield Finding(AREA, tool.name, "warn", f"asks for {name}, which {state}", hint)


def _is_set(name: str) -> bool:
    return name in os.environ


def _about(variable: Variable) -> list[str]:
    return [text for text in (variable.description, variable.url) if text]
