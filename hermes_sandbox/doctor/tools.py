"""Which tools there are and are not, and what they still want of the operator."""

from __future__ import annotations

from hermes_sandbox import keys
from hermes_sandbox.config import Config
from hermes_sandbox.errors import Unavailable
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
    found = await _switched_off(supervisor, config)
    for tool in tools:
        if not config.switched_off(tool.name, tool.toolset):
            found += _keys(tool, supervisor, config)
    return found


def _problem(name: str, reason: str) -> Finding:
    """What the operator's files say of tools that are not there is configured, and cannot work."""
    if name.startswith(("toolsets.toml: ", "config.yaml: ")):
        return Finding(AREA, name, "FAIL", reason)
    return Finding(AREA, name, "warn", reason, f"hermes-sandbox tools check {name.partition('.py')[0]}.py")


async def _switched_off(supervisor: AsyncSupervisor, config: Config) -> list[Finding]:
    toolsets = await supervisor.toolsets() if config.disabled else {}
    found = []
    for name in sorted(config.disabled):
        try:
            if name not in toolsets:
                await supervisor.tool(name)
        except Unavailable as error:
            found.append(of_error(AREA, name, error, "warn", "it is switched off, which has no effect"))
        else:
            found.append(Finding(AREA, name, "ok", "is switched off", config.how_to_switch_on(name)))
    return found


def _keys(tool: ToolInfo, supervisor: AsyncSupervisor, config: Config) -> list[Finding]:
    try:
        return list(keys.look(AREA, tool, supervisor.policy_of(tool), config))
    except Exception:  # its policy or .env cannot be had: both are told where they are looked at
        return []
