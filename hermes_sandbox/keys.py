"""What tools want of the operator: the environment variables that they ask for, and whether they have them."""

from __future__ import annotations

from collections.abc import Iterator

from hermes_sandbox.config import Config, Variable
from hermes_sandbox.environment import granted
from hermes_sandbox.findings import Finding
from hermes_sandbox.policy import Policy
from hermes_sandbox.registry import ToolInfo


def look(area: str, tool: ToolInfo, policy: Policy, config: Config) -> Iterator[Finding]:
    """One finding for each variable that a tool asks for, or is granted. Raises Refused where .env cannot be used."""
    has = granted(policy, config.secrets)
    for name in dict.fromkeys((*tool.requires_env, *policy.env)):
        wish = "asks for" if name in tool.requires_env else "may have"
        if name in has:
            yield Finding(area, tool.name, "ok", f"{wish} {name}, which it has")
            continue
        state = "is granted, and not set" if name in policy.env else "is not granted"
        about = config.env.get(name, Variable())
        steps = [about.description, about.url, f"hermes-sandbox tools enable {tool.name}"]
        yield Finding(area, tool.name, "warn", f"{wish} {name}, which {state}", "\n".join(filter(None, steps)))
