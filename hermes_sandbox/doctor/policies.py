"""Whether what is configured can be enforced here: a worker is started with each policy, and no tool in it."""

from __future__ import annotations

from hermes_sandbox import runners
from hermes_sandbox.config import Config
from hermes_sandbox.findings import Finding, of_error
from hermes_sandbox.policy import Policy, resolve
from hermes_sandbox.pool import policy_digest
from hermes_sandbox.registry import ToolInfo
from hermes_sandbox.trial import Trials


async def look_at_runners(trials: Trials) -> list[Finding]:
    """One that does not work is no failure as long as nobody is to use it: those that are configured are looked at with
    their policies."""
    found = []
    for name in runners.available():
        verdict = await trials.judge(Policy(runner=name))
        if verdict.error is not None:
            found.append(of_error("runner", name, verdict.error, "warn"))
        else:
            found.append(Finding("runner", name, "ok", f"starts workers: tier {verdict.tier}, Python {verdict.python}"))
    return found


async def look(trials: Trials, tools: list[ToolInfo], config: Config) -> list[Finding]:
    distinct: dict[str, tuple[Policy, list[str]]] = {}
    failures: dict[tuple[str, str], list[str]] = {}
    for toolset, tool in sorted(_configured(config, tools)):
        label = tool or (f"toolset {toolset}" if toolset else "the default policy")
        try:
            policy = resolve(config.layers(toolset, tool))
        except Exception as error:
            _note(failures, error, [label])
        else:
            distinct.setdefault(policy_digest(policy), (policy, []))[1].append(label)
    good = []
    for policy, labels in distinct.values():
        verdict = await trials.judge(policy)
        if verdict.error is None:
            good += labels
        else:
            _note(failures, verdict.error, labels)
    found = [
        Finding("policy", ", ".join(labels), "FAIL", message, hint) for (message, hint), labels in failures.items()
    ]
    if good:
        found.append(Finding("policy", ", ".join(good), "ok", "can be enforced here"))
    return found


def _note(failures: dict[tuple[str, str], list[str]], error: Exception, labels: list[str]) -> None:
    finding = of_error("policy", "", error)
    failures.setdefault((finding.message, finding.hint), []).extend(labels)


def _configured(config: Config, tools: list[ToolInfo]) -> set[tuple[str, str]]:
    """Toolset and tool of every policy that there is, also of those that nothing has yet; of none: the default."""
    home = {name: toolset for toolset, entry in config.toolsets.items() for name in entry.tools}
    found = {("", "")}
    found |= {(toolset, name) for toolset, entry in config.toolsets.items() for name in entry.tools or ("",)}
    found |= {(home.get(name, ""), name) for name in (*config.tools, *config.granted)}
    found |= {(tool.toolset, tool.name) for tool in tools}
    return {(toolset, name) for toolset, name in found if not config.switched_off(name, toolset)}
