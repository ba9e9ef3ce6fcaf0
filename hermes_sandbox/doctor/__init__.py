"""What works here, what does not, and what to do about it.

Nothing is believed that can be tried: each tier, runner and configured policy is judged by starting a worker with it,
which runs no tool. What a check raises is a finding. Checks run one after the other: two that look for a control group
at the same time would find each other's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hermes_sandbox import config as configuration
from hermes_sandbox.config import Config
from hermes_sandbox.doctor import files, machine, policies, tiers, tools
from hermes_sandbox.errors import SandboxError
from hermes_sandbox.findings import Finding, found_by, of_error
from hermes_sandbox.home import get_hermes_home
from hermes_sandbox.policy import Policy, resolve
from hermes_sandbox.supervisor import AsyncSupervisor
from hermes_sandbox.trial import Trials


async def examine(profile: str | None = None, chosen: Sequence[str] | None = None) -> list[Finding]:
    """Look at everything. `chosen`: names of the toolsets and tools that are of interest (default: all). Never
    raises."""
    found: list[Finding] = []
    try:
        home = get_hermes_home(profile)
        if profile is not None and not home.is_dir():
            hint = f"make it: mkdir -p {home}"
            found.append(Finding("files", "profile", "FAIL", f"there is no profile {profile!r}", hint))
        await _examine(home, _configuration(home, found), chosen, found)
    except Exception as error:  # no home, or a worker that cannot be closed: what was found so far is told
        found.append(of_error("doctor", "end", error))
    return found


def _configuration(home: Path, found: list[Finding]) -> Config | None:
    """None, and a finding, where it is not sound."""
    try:
        return configuration.load(home)
    except Exception as error:
        found.append(of_error("files", "configuration", error))
        return None


async def _examine(home: Path, config: Config | None, chosen: Sequence[str] | None, found: list[Finding]) -> None:
    async with Trials(config or Config(), home) as trials:
        found += await found_by("tier", tiers.look(trials))
        found += await found_by("machine", machine.look(trials, _usual(config)))
        found += await found_by("runner", policies.look_at_runners(trials))
        found += await found_by("files", files.look(home, config))
        if config is None:
            return
        async with AsyncSupervisor(home=home, toolset_filter=chosen) as supervisor:
            known, trouble = await tools.known(supervisor)
            found += trouble
            found += await found_by("tools", tools.look(known, supervisor, config))
        found += await found_by("policy", policies.look(trials, known, config))


def _usual(config: Config | None) -> Policy:
    """The default policy; the built-in one where that cannot be had, which is told with the policies."""
    try:
        return resolve(config.layers()) if config is not None else Policy()
    except SandboxError:
        return Policy()
