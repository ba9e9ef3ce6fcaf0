"""The gates that a call passes before anything is started, each of which can end it with a name.

The registry knows the tool, it is not switched off, the filter allows it, the policy's layers agree and stay below
their ceilings, the arguments fit the schema and ask for no more time than there is, and the tool's own check says yes.
What passes is a `Prepared`: all that a worker and a record need to know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from hermes_sandbox import arguments
from hermes_sandbox.catalog import Catalog
from hermes_sandbox.config import Config, Tool
from hermes_sandbox.environment import granted
from hermes_sandbox.errors import InvalidArguments, Unavailable
from hermes_sandbox.policy import Layer, Policy, PolicyLayer, how_to_raise
from hermes_sandbox.policy import layer as policy_layer
from hermes_sandbox.policy import resolve as resolve_policy
from hermes_sandbox.pool import Key, policy_digest
from hermes_sandbox.registry import Registry, ToolInfo
from hermes_sandbox.toolsets import CORE, resolve

MAX_KEPT_POLICIES = 1024
TIME_MARGIN = 2.0  # s that a call gets beside its grace, when an argument asks for time
FRESH = "this call asked for limits of its own, so it ran in a fresh worker without the task's state"

Asked = PolicyLayer | Mapping[str, Any] | None  # a layer, or its keys as they would stand in toolsets.toml


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A call that may start. `keep`: its worker stays for the task's next call; `withheld`: names of env that the tool
    asks for and does not get."""

    tool: ToolInfo
    policy: Policy
    args: dict[str, Any]
    key: Key
    keep: bool
    children: Literal["kill", "keep"]
    env: dict[str, str]
    withheld: list[str]
    notes: list[str]


class Gates:
    def __init__(
        self, config: Config, catalog: Catalog, toolset_filter: Sequence[str] | None, operator: PolicyLayer
    ) -> None:
        self._config = config
        self._catalog = catalog
        self._filter = toolset_filter
        self._operator = operator
        self._policies: dict[tuple[str, str, PolicyLayer | None], tuple[Policy, str]] = {}

    def allowed(self, registry: Registry) -> set[str]:
        """The tools that the filter names and nobody switched off. Raises Unavailable for a name in it that is
        nothing's."""
        names = {tool.name for tool in registry.tools()}
        if self._filter is not None:
            names &= resolve(self._filter, self._config, registry)
        elif self._config.chosen is not None:
            names &= self._in_use(self._config.chosen, registry)
        return names - {t.name for t in registry.tools() if self._config.switched_off(t.name, t.toolset)}

    def _in_use(self, chosen: Sequence[str], registry: Registry) -> set[str]:
        """What config.yaml says is in use. It is Hermes' list: its bundles for platforms are the core tools here, and
        toolsets that are not here are no error."""
        found: set[str] = set()
        for name in chosen:
            with contextlib.suppress(Unavailable):
                found |= resolve([CORE if name.startswith("hermes-") else name], self._config, registry)
        return found

    def describing(self, names: Iterable[str]) -> Policy:
        """What a module is described under that seems to register tools of these names: nothing that is granted, and no
        network where that can be taken away; but the interpreter and packages that its tools will have, since it may
        not load without them."""
        operator = Layer("supervisor", self._operator, bounded=False)
        policy = resolve_policy([*self._config.layers(), operator])
        kept = policy.network if policy.tier == "process" else "none"
        packages, python = policy.packages, policy.python
        for name in names:
            listing = (toolset for toolset, entry in self._config.toolsets.items() if name in entry.tools)
            own = resolve_policy([*self._config.layers(next(listing, ""), name), operator])
            packages = tuple(dict.fromkeys((*packages, *own.packages)))
            python = own.python or python
        return msgspec.structs.replace(
            policy, env=(), read=(), write=(), network=kept, packages=packages, python=python
        )

    def exec_policy(self, asked: PolicyLayer) -> Policy:
        layers = [*self._config.layers(), Layer("supervisor", self._operator, bounded=False)]
        return resolve_policy([*layers, Layer("exec", asked, bounded=False)])

    def policy(self, tool: ToolInfo, layer: PolicyLayer | None) -> tuple[Policy, str]:
        """The policy of a call with `layer`, and its digest; kept, since no layer below a call's ever changes. Raises
        Refused."""
        key = (tool.toolset, tool.name, layer)
        known = self._policies.get(key)
        if known is None:
            if len(self._policies) >= MAX_KEPT_POLICIES:
                self._policies.clear()
            policy = resolve_policy([*self._layers(tool), Layer("call", layer or PolicyLayer())])
            known = self._policies[key] = policy, policy_digest(policy)
        return known

    def _layers(self, tool: ToolInfo) -> list[Layer]:
        return [*self._config.layers(tool.toolset, tool.name), Layer("supervisor", self._operator, bounded=False)]

    def environment(self, tool: ToolInfo, policy: Policy) -> tuple[dict[str, str], list[str]]:
        """The tool's whole environment, and the names that it asks for and does not get."""
        env = granted(policy, self._config.secrets)
        return env, [name for name in tool.requires_env if name not in env]

    async def pass_through(self, name: str, args: Any, task_id: str, asked: Asked) -> Prepared:
        """Raises Unavailable, Refused or InvalidArguments."""
        registry = await self._catalog.registry()
        tool = registry.get(name)
        self._check_allowed(tool, registry)
        layer = as_layer(asked)
        self.policy(tool, layer)
        prepared = arguments.prepare(tool.parameters, args)
        own = self._config.tools.get(tool.name, Tool())
        timed = self._with_time(tool, layer, own, prepared)
        policy, digest = self.policy(tool, timed)
        env, withheld = self.environment(tool, policy)
        await self._check_state(tool, withheld)
        fresh = layer is not None and digest != self.policy(tool, None)[1]
        return Prepared(
            tool=tool,
            policy=policy,
            args=prepared,
            key=Key(group=tool.group, task_id=task_id, digest=digest),
            keep=policy.reuse == "session" and not fresh,
            children=own.children,
            env=env,
            withheld=withheld,
            notes=[FRESH] if fresh and policy.reuse == "session" else [],
        )

    def _check_allowed(self, tool: ToolInfo, registry: Registry) -> None:
        if name := self._config.switched_off(tool.name, tool.toolset):
            raise Unavailable(f"{name!r} is switched off", hint=self._config.how_to_switch_on(name))
        if tool.name not in self.allowed(registry):
            raise Unavailable(
                f"the tool {tool.name!r} is not among the chosen ones", hint=f"choose it with --tools {tool.toolset}"
            )

    async def _check_state(self, tool: ToolInfo, withheld: Sequence[str]) -> None:
        state = await self._catalog.state(tool)
        if not state.available:
            enable = f"hermes-sandbox tools enable {tool.name}"
            hint = f"it asks for {', '.join(withheld)}, which it does not get: {enable}" if withheld else ""
            raise Unavailable(f"the tool {tool.name!r} is not available: {state.reason}", hint=hint)

    def _with_time(
        self, tool: ToolInfo, layer: PolicyLayer | None, own: Tool, args: Mapping[str, Any]
    ) -> PolicyLayer | None:
        """The call's layer with the time that an argument asks for, and what its end may take beside that if there is
        so much. Raises InvalidArguments where that is beyond the ceiling."""
        asked = args.get(own.timeout_argument) if own.timeout_argument else None
        # By the contract's convention a call in the background returns at once.
        if isinstance(asked, bool) or not isinstance(asked, int | float) or args.get("background") is True:
            return layer
        policy = self.policy(tool, layer)[0]
        most, set_by = policy.ceilings["timeout"]
        if asked > most:
            raise InvalidArguments(
                f"{own.timeout_argument} = {asked:g} s is more than a call of {tool.name} may take: {most:g} s, set by "
                f"{set_by}",
                hint=f"ask for no more than {most:g}{how_to_raise('timeout', set_by)}",
            )
        needed = min(asked + policy.grace + TIME_MARGIN, most)  # less than the policy's, too: nothing else takes longer
        return msgspec.structs.replace(layer or PolicyLayer(), timeout=needed)


def as_layer(asked: Asked) -> PolicyLayer | None:
    """Raises Refused for a key, value or unit that is wrong."""
    return asked if asked is None or isinstance(asked, PolicyLayer) else policy_layer(asked, "policy")
