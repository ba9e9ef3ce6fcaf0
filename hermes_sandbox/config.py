"""The operator's files as frozen structs: toolsets.toml, config.yaml, .env and state.json.

Each file has a reader of its own; here they become one Config, which answers what holds for a tool. From weak to strong
that is: `defaults`, the toolset and the tool of toolsets.toml, config.yaml, what `tools enable` granted in state.json,
and then the call. All but the tool of toolsets.toml are the operator's alone and may move ceilings.

A tool names its own toolset, and a tool file may lie: one that says "web" must not get what is granted to web. So a
toolset that lists its tools grants its policy to these alone; who else registers under its name belongs to it by name
and gets the default policy. One that lists none grants it to whoever comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from hermes_sandbox import hermes_config, state, toolsets_file
from hermes_sandbox.config_checks import USER
from hermes_sandbox.dotenv import Secrets
from hermes_sandbox.errors import Refused
from hermes_sandbox.hermes_config import HermesConfig
from hermes_sandbox.policy import BUILT_IN_CEILING, UNSET, Layer, PolicyLayer, resolve
from hermes_sandbox.toolsets_file import FILE

__all__ = ["FILE", "USER", "Config", "Tool", "Toolset", "Variable", "load"]


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
    group share a worker (default: those of one file). `children`: what becomes of processes that a call leaves running.
    `timeout_argument`: the argument by which a call asks for more time; "" is none."""

    module: str = ""
    group: str = ""
    children: Literal["kill", "keep"] = "kill"
    timeout_argument: str = ""
    policy: PolicyLayer = PolicyLayer()
    ceiling: PolicyLayer = PolicyLayer()


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """An environment variable that tools ask for: how to ask the user for it, and whether it is a secret."""

    description: str = ""
    prompt: str = ""
    url: str = ""
    password: bool = False


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """`core` to `distributions` are toolsets.toml's, with what config.yaml says of tools besides their policies merged
    in; `own_keys` are the paths that the operator's toolsets.toml sets; `operator` is the rest of config.yaml.
    `disabled`: names of tools and toolsets that are switched off. `granted`: tool -> names of variables that state.json
    grants it. `secrets`: .env, which is read when a name of it is wanted. `distributions`: name -> toolset -> percent,
    for the generation of data."""

    core: tuple[str, ...] = ()
    defaults: PolicyLayer = PolicyLayer()
    toolsets: Mapping[str, Toolset] = {}
    tools: Mapping[str, Tool] = {}
    env: Mapping[str, Variable] = {}
    distributions: Mapping[str, Mapping[str, float]] = {}
    own_keys: frozenset[str] = frozenset()
    operator: HermesConfig = HermesConfig()
    disabled: frozenset[str] = frozenset()
    granted: Mapping[str, tuple[str, ...]] = {}
    secrets: Secrets = msgspec.field(default_factory=Secrets)

    @property
    def foreign(self) -> tuple[str, ...]:
        """Sections of config.yaml that are not ours."""
        return self.operator.foreign

    @property
    def without_effect(self) -> Mapping[str, str]:
        """Keys of config.yaml that Hermes knows and that have no effect here -> why."""
        return self.operator.without_effect

    @property
    def chosen(self) -> tuple[str, ...] | None:
        """The toolsets in use by default; None: nothing is said."""
        return self.operator.chosen

    @property
    def cwd(self) -> str:
        """The folder that config.yaml says to work in, or ""."""
        return self.operator.cwd

    def layers(self, toolset: str = "", tool: str = "") -> list[Layer]:
        """The policy layers of a tool, from weak to strong; without one, what holds for everything. Raises Refused
        where the layers below a grant of state.json do not agree."""
        found = [Layer("defaults", self.defaults, bounded=False)]
        entry = self.toolsets.get(toolset)
        belongs = entry is not None and (not entry.tools or tool in entry.tools)
        if entry is not None and belongs:
            found.append(Layer(f"toolsets.{toolset}", entry.policy, entry.ceiling, bounded=False))
        if own := self.tools.get(tool):
            found.append(Layer(f"tools.{tool}", own.policy, own.ceiling, bounded=belongs))
        found += self.operator.everything
        if belongs and (each := self.operator.terminal.get(toolset)):
            found.append(_below_the_ceiling(each, found))
        if belongs and (each := self.operator.toolsets.get(toolset)):
            found.append(each)
        if each := self.operator.tool_layers.get(tool):
            found.append(each)
        if tool in self.granted:
            found += _granting(tool, self.granted[tool], found)
        return found

    def grants(self, tool: str) -> bool:
        """Whether a tool gets anything by its name: it has an entry, or a toolset with a policy lists it."""
        return (
            tool in self.tools
            or tool in self.granted
            or any(
                tool in entry.tools
                and (
                    entry.policy.set_keys()
                    or entry.ceiling.set_keys()
                    or name in self.operator.toolsets
                    or name in self.operator.terminal
                )
                for name, entry in self.toolsets.items()
            )
        )

    def switched_off(self, tool: str, toolset: str) -> str:
        """The name by which a tool is disabled, its own or that of a toolset that it belongs to, or ""."""
        listing = (name for name, entry in self.toolsets.items() if tool in entry.tools)
        return next((name for name in (tool, toolset, *listing) if name in self.disabled), "")

    def origin(self, key: str, sources: str) -> str:
        """The layers that a policy's key came from, with the file where it is the operator's toolsets.toml."""
        paths = ("policy.", "ceiling.")
        named = []
        for source in sources.split(", "):
            own = any(f"{source}.{path}{key}" in self.own_keys for path in paths) or f"{source}.{key}" in self.own_keys
            named.append(f"{source} of your {FILE}" if own else source)
        return ", ".join(named)

    def how_to_switch_on(self, name: str) -> str:
        """What to do for a name that is disabled, by the file that says so."""
        if name in self.operator.disabled:
            return f"take {name} out of tools.disabled in config.yaml"
        return f"switch it on: hermes-sandbox tools enable {name}"

    def writable(self) -> tuple[Path, ...]:
        """Every path that some policy or ceiling grants for writing."""
        return tuple(Path(path) for each in self._all_layers() for path in each.set_keys().get("write", ()))

    def _all_layers(self) -> Iterator[PolicyLayer]:
        yield self.defaults
        entries: list[Toolset | Tool | Layer] = [
            *self.toolsets.values(),
            *self.tools.values(),
            *self.operator.layers(),
        ]
        for entry in entries:
            yield from (entry.policy, entry.ceiling)


def _below_the_ceiling(layer: Layer, below: Sequence[Layer]) -> Layer:
    """Hermes' timeout is a default, and says nothing of the most that a call may ask for: the ceiling stays, unless it
    is lower."""
    asked, most = layer.policy.timeout, _most("timeout", below)
    if asked is UNSET or most is UNSET:
        return layer
    return msgspec.structs.replace(layer, ceiling=PolicyLayer(timeout=max(asked, most)))


def _granting(tool: str, names: Sequence[str], below: Sequence[Layer]) -> list[Layer]:
    """What adds variables to those that a tool has by the layers below, and to what a call may ask for. Where the
    operator wrote a ceiling of env, it binds this layer too, and stays as it is."""
    policy = resolve(below)
    most, set_by = policy.ceilings["env"]
    source, env = f"{state.FILE}: env.{tool}", PolicyLayer(env=_joined(policy.env, names))
    if any(each.ceiling.env is not UNSET for each in below):
        return [Layer(source, env), Layer(set_by, ceiling=PolicyLayer(env=most), bounded=False)]
    return [Layer(source, env, PolicyLayer(env=_joined(most, names)), bounded=False)]


def _most(key: str, layers: Sequence[Layer]) -> Any:
    """The ceiling of a key that `layers` leave."""
    said = (getattr(part, key) for each in reversed(layers) for part in (each.ceiling, each.policy))
    return next((value for value in said if value is not UNSET), BUILT_IN_CEILING.get(key, UNSET))


def _joined(names: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*names, *more)))


def load(home: Path) -> Config:
    """All files of HOME; what is not there says nothing. Raises Refused with the path of a bad key."""
    data, own_keys = toolsets_file.read(home)
    operator = hermes_config.read(home)
    kept = state.load(home)
    tools = {name: Tool(**table) for name, table in data["tools"].items()}
    for name, table in operator.tools.items():
        tools[name] = msgspec.structs.replace(tools.get(name, Tool()), **table)
    toolsets = {name: Toolset(**table) for name, table in data["toolsets"].items()}
    aliases = {alias: name for name, entry in toolsets.items() for alias in entry.aliases}
    for name in operator.toolsets.keys() - toolsets.keys():
        if name in aliases:
            where = f"{home / hermes_config.FILE}: toolsets.{name}"
            raise Refused(f"{where} is another name of {aliases[name]}", hint=f"write toolsets.{aliases[name]}")
        toolsets[name] = Toolset()
    return Config(
        core=data["core"],
        defaults=data["defaults"],
        toolsets=toolsets,
        tools=tools,
        env={name: Variable(**table) for name, table in data["env"].items()},
        distributions=data["distributions"],
        own_keys=own_keys,
        operator=operator,
        disabled=frozenset((*operator.disabled, *kept.disabled)),
        granted=kept.env,
        secrets=Secrets(home / ".env"),
    )
