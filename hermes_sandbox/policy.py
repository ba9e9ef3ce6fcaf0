"""What a call may use and for how long: the policy's keys, their units, and how layers of it become one.

Layers go from weak to strong: built-in, toolset, tool, supervisor, call. Each may set a *policy*, which is what holds
where nobody asks for something else, and a *ceiling*, which is the most that a stronger layer may ask for. A layer that
sets a policy and no ceiling means both; one that sets a ceiling alone lowers what weaker layers set. A stronger layer
may always ask for less; for more only up to the ceiling that stands. That binds a tool, and a tool's ceiling, to its
toolset's ceiling, and a call to its tool's. It does not bind the operator, who writes the toolset's layer, makes the
supervisor, and starts commands with `exec`. A list replaces the one below it; only `hide` adds up: what one layer hides
no other shows again.

`tier` and `reuse` go from weak to strong (process, landlock, namespaces; session, process, never), and there "more" is
the weaker: whoever asks may always choose a stronger one. Where no layer says anything the weakest may be asked for; a
layer that sets one without a ceiling allows nothing weaker to those above it.

`runner`, `image` and `python` have no order and so no ceiling: the caller may choose. Nor has `hide`, which only takes
away.

What a key means is the runner's matter, and so is saying no to one that it cannot enforce (`cannot`). Units: units.py;
hosts: hosts.py.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from hermes_sandbox import hosts
from hermes_sandbox.errors import Refused
from hermes_sandbox.hosts import parse_network
from hermes_sandbox.units import parse_count, parse_cpus, parse_seconds, parse_size, show_seconds, show_size

UNSET = msgspec.UNSET


def _one_of(*names: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if value not in names:
            raise ValueError("write " + " or ".join(f'"{name}"' for name in names))
        return str(value)

    return parse


def _parse_name(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", value):
        raise ValueError("write the name of a runner, such as local")
    return value


def _parse_names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(
        isinstance(name, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) for name in value
    ):
        raise ValueError('write a list of names of environment variables, such as ["EXAMPLE_KEY"]')
    return tuple(value)


def _parse_tools(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(
        isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in value
    ):
        raise ValueError('write a list of names of tools, such as ["read_file", "web_search"]')
    return tuple(value)


def _parse_image(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[!-~]{1,512}", value):
        raise ValueError("write the name of an image, such as python:3.12-slim")
    return value


def _parse_python(value: object) -> str:
    path = os.path.expanduser(value) if isinstance(value, str) else ""
    if not path.startswith("/") or not path.isprintable():
        raise ValueError('write the absolute path of an interpreter, such as "/usr/bin/python3.12"')
    return os.path.normpath(path)


def _parse_paths(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(path, str) and path for path in value):
        raise ValueError('write a list of paths, such as ["~/data", "/srv/models"]')
    paths = [os.path.expanduser(path) for path in value]
    if odd := [path for path in paths if path.startswith("~") or not path.isprintable()]:
        raise ValueError(f"{odd[0]!r} is no path: write an absolute one, or one that begins with ~/")
    return tuple(map(os.path.abspath, paths))


def _parse_packages(value: object) -> tuple[str, ...]:
    return ("host",) if value in ("host", ["host"], ("host",)) else _parse_paths(value)


class Option(msgspec.Struct, frozen=True):
    """One key: how its value is read, what orders it against a ceiling, and its help on the command line.

    `order`: "number", "list" (a ceiling bounds what may be in it), "network" (none, then hosts, then host), "strength"
    (one of `ranks`, from weak to strong), or "free", which no ceiling bounds. `many`: a list; `adds`: each layer adds
    to it."""

    parse: Callable[[object], Any]
    order: Literal["number", "list", "network", "strength", "free"]
    help: str
    metavar: str
    many: bool = False
    adds: bool = False
    ranks: tuple[str, ...] = ()


_TIERS = ("process", "landlock", "namespaces")
_REUSES = ("session", "process", "never")

OPTIONS: Mapping[str, Option] = {
    "timeout": Option(parse_seconds, "number", "wall-clock time for the call", "SECONDS"),
    "idle_timeout": Option(parse_seconds, "number", "time without any output", "SECONDS"),
    "grace": Option(parse_seconds, "number", "time between being asked to stop and being killed", "SECONDS"),
    "cpu_time": Option(parse_seconds, "number", "CPU time of the whole tree", "SECONDS"),
    "cpus": Option(parse_cpus, "number", "CPUs that the whole tree may use at once, 1.5 say", "NUMBER"),
    "memory": Option(parse_size, "number", "memory of the whole tree", "SIZE"),
    "pids": Option(parse_count, "number", "processes and threads of the whole tree", "COUNT"),
    "file_size": Option(parse_size, "number", "size of any file that is written", "SIZE"),
    "disk": Option(parse_size, "number", "all that is written to disk, where a runner has quotas", "SIZE"),
    "open_files": Option(parse_count, "number", "open files of each process", "COUNT"),
    "output": Option(parse_size, "number", "bytes printed, in all", "SIZE"),
    "result": Option(parse_size, "number", "size of the result", "SIZE"),
    "network": Option(parse_network, "network", "none, host, or a host to reach: a.org:443", "none|host|HOST", True),
    "read": Option(_parse_paths, "list", "a further path that can be read", "PATH", True),
    "write": Option(_parse_paths, "list", "a further path that can be written", "PATH", True),
    "hide": Option(_parse_paths, "free", "a path that is not shown, whatever else is", "PATH", True, adds=True),
    "env": Option(_parse_names, "list", "an environment variable to pass on", "NAME", True),
    "packages": Option(
        _parse_packages, "list", 'Python packages: a path, or "host" for those of hermes-sandbox', "PATH", True
    ),
    "python": Option(_parse_python, "free", "the interpreter that runs the worker, 3.9 or newer", "PATH"),
    "may_call": Option(_parse_tools, "list", "a tool that code in the sandbox may call", "TOOL", True),
    "tier": Option(_one_of(*_TIERS), "strength", "the weakest isolation to accept", "TIER", ranks=_TIERS),
    "reuse": Option(
        _one_of(*_REUSES), "strength",
        "session (a warm worker per task), process (a fork for each call) or never", "MODE", ranks=_REUSES,
    ),
    "runner": Option(_parse_name, "free", "where the worker runs", "NAME"),
    "image": Option(_parse_image, "free", "the image that a container is made of", "IMAGE"),
}  # fmt: skip

# What is armed for each call; all else holds for a worker's whole life.
PER_CALL = frozenset(("timeout", "idle_timeout", "grace", "cpu_time", "output", "result", "reuse"))


class PolicyLayer(msgspec.Struct, frozen=True, kw_only=True):
    """What one layer sets. UNSET: nothing. Values may also be written as in a file, "256M" say: they are checked and
    brought to their unit, which raises Refused. Paths that are relative are meant from the current folder."""

    timeout: float | msgspec.UnsetType = UNSET
    idle_timeout: float | msgspec.UnsetType = UNSET
    grace: float | msgspec.UnsetType = UNSET
    cpu_time: float | msgspec.UnsetType = UNSET
    cpus: float | msgspec.UnsetType = UNSET
    memory: int | msgspec.UnsetType = UNSET
    pids: int | msgspec.UnsetType = UNSET
    file_size: int | msgspec.UnsetType = UNSET
    disk: int | msgspec.UnsetType = UNSET
    open_files: int | msgspec.UnsetType = UNSET
    output: int | msgspec.UnsetType = UNSET
    result: int | msgspec.UnsetType = UNSET
    network: str | tuple[str, ...] | msgspec.UnsetType = UNSET
    read: tuple[str, ...] | msgspec.UnsetType = UNSET
    write: tuple[str, ...] | msgspec.UnsetType = UNSET
    hide: tuple[str, ...] | msgspec.UnsetType = UNSET
    env: tuple[str, ...] | msgspec.UnsetType = UNSET
    packages: tuple[str, ...] | msgspec.UnsetType = UNSET
    python: str | msgspec.UnsetType = UNSET
    may_call: tuple[str, ...] | msgspec.UnsetType = UNSET
    tier: str | msgspec.UnsetType = UNSET
    reuse: str | msgspec.UnsetType = UNSET
    runner: str | msgspec.UnsetType = UNSET
    image: str | msgspec.UnsetType = UNSET

    def __post_init__(self) -> None:
        for name, value in self.set_keys().items():
            msgspec.structs.force_setattr(self, name, _parsed(name, value, "policy"))

    def set_keys(self) -> dict[str, Any]:
        values = msgspec.structs.astuple(self)
        if values.count(UNSET) == len(values):  # as most layers of most calls
            return {}
        return {name: value for name, value in zip(self.__struct_fields__, values, strict=True) if value is not UNSET}


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """A call's effective policy. None is no limit, "" is the runner's choice. `explicit`: the keys that a layer above
    the built-in one set, which are refused where they cannot be enforced; `sources`: key -> the layer that its value
    came from, or the layers, for what adds up; `ceilings`: key -> the most that a stronger layer may ask for, and the
    layer that set it."""

    timeout: float = 120.0
    idle_timeout: float | None = None
    grace: float = 2.0
    cpu_time: float | None = None
    cpus: float | None = None
    memory: int | None = 1 << 30
    pids: int | None = 256
    file_size: int | None = 1 << 30
    disk: int | None = None
    open_files: int | None = 1024
    output: int | None = None
    result: int = 16 << 20
    network: str | tuple[str, ...] = "none"
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    python: str = ""
    may_call: tuple[str, ...] = ()
    tier: str = "landlock"
    reuse: str = "session"
    runner: str = "local"
    image: str = ""
    explicit: frozenset[str] = frozenset()
    sources: dict[str, str] = {}
    ceilings: dict[str, tuple[Any, str]] = {}


_BUILT_IN = Policy()

# The most that anybody but the operator may ask for where no layer says otherwise. Absent: what is granted.
BUILT_IN_CEILING: Mapping[str, Any] = {
    "timeout": 3600.0,
    "idle_timeout": 3600.0,
    "grace": 60.0,
    "cpu_time": 4 * 3600.0,
    "memory": 64 << 30,
    "pids": 32768,
    "file_size": 64 << 30,
    "open_files": 65536,
    "output": 1 << 40,
    "result": 64 << 20,
    "tier": _TIERS[0],
    "reuse": _REUSES[0],
}


def layer(values: Mapping[str, Any], where: str) -> PolicyLayer:
    """A layer out of what a file or a command line says. `where` is the path of the table, for errors. Raises
    Refused."""
    return PolicyLayer(**{name: _parsed(name, value, where) for name, value in values.items()})


def _parsed(name: str, value: object, where: str) -> Any:
    path = f"{where}.{name}"
    option = OPTIONS.get(name)
    if option is None:
        near = difflib.get_close_matches(name, OPTIONS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the keys are: {', '.join(OPTIONS)}"
        raise Refused(f"{path} is no key of a policy", hint=hint)
    try:
        return option.parse(value)
    except ValueError as error:
        shown = repr(value)
        # Who means to grant a variable may well have written its value.
        said = "" if name == "env" else f" = {shown if len(shown) <= 60 else shown[:57] + '...'}"
        raise Refused(f"{path}{said} cannot be used", hint=str(error)) from None


class Layer(msgspec.Struct, frozen=True):
    """One layer by name. `bounded`: it may not go beyond the ceilings of the layers below it."""

    source: str
    policy: PolicyLayer = PolicyLayer()
    ceiling: PolicyLayer = PolicyLayer()
    bounded: bool = True


def resolve(layers: Sequence[Layer]) -> Policy:
    """The policy of `layers`, from weak to strong. Raises Refused for a bounded layer that asks for more than the
    ceiling that stands, naming the key, both figures and the layer that set the ceiling."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    ceilings: dict[str, tuple[Any, str]] = {name: (value, "built-in") for name, value in BUILT_IN_CEILING.items()}
    for each in layers:
        own = each.ceiling.set_keys()
        for name, most in own.items():
            if each.bounded:
                _check(f"ceiling.{name}", name, most, each.source, *_standing(name, ceilings))
            ceilings[name] = (most, each.source)
            current = values.get(name, getattr(_BUILT_IN, name))
            if _exceeds(OPTIONS[name], current, most):
                values[name], sources[name] = _lowered(OPTIONS[name], current, most), each.source
        for name, value in each.policy.set_keys().items():
            if each.bounded or name in own:
                _check(name, name, value, each.source, *_standing(name, ceilings))
            source = each.source
            if OPTIONS[name].adds and name in values:
                value = tuple(dict.fromkeys((*values[name], *value)))
                source = f"{sources[name]}, {source}"
            values[name], sources[name] = value, source
            if name not in own:
                ceilings[name] = (value, each.source)
    standing = {name: _standing(name, ceilings) for name, option in OPTIONS.items() if option.order != "free"}
    return Policy(**values, explicit=frozenset(values), sources=sources, ceilings=standing)


def _standing(name: str, ceilings: Mapping[str, tuple[Any, str]]) -> tuple[Any, str]:
    """The ceiling of a key, and who set it. Where nobody did, what is granted by default is all."""
    return ceilings.get(name) or (getattr(_BUILT_IN, name), "built-in")


def _check(path: str, name: str, value: Any, source: str, most: Any, set_by: str) -> None:
    if _exceeds(OPTIONS[name], value, most):
        asked, shown = format_value(name, value), format_value(name, most)
        if asked == shown:  # the difference was rounded away
            asked, shown = str(value), str(most)
        raise Refused(
            f"{path} = {asked} ({source}) is beyond the ceiling {shown}, set by {set_by}",
            hint=f"ask for {_within(OPTIONS[name], most, shown)}{how_to_raise(name, set_by)}",
        )


def _within(option: Option, most: Any, shown: str) -> str:
    if option.order == "strength":
        return " or ".join(option.ranks[option.ranks.index(most) :])
    return "less" if shown in ("none", "nothing") else f"no more than {shown}"


def how_to_raise(name: str, set_by: str) -> str:
    """Words on where the ceiling of a key can be moved, by the layer that set it; "" if whoever asks set it."""
    if set_by in ("call", "exec"):
        return ""
    if set_by == "supervisor":
        return ", or give the Supervisor a policy that allows it"
    file, _, table = set_by.rpartition(": ")
    if table == "terminal":  # Hermes' section, which has no ceilings
        table = "toolsets.terminal"
    elif table in ("built-in", "defaults"):
        return f", or set ceiling.{name} of its toolset in your toolsets.toml"
    return f", or set {table}.ceiling.{name} in {file or 'your toolsets.toml'}"


def _exceeds(option: Option, value: Any, most: Any) -> bool:
    if option.order == "number":
        return most is not None and (value is None or value > most)
    if option.order == "strength":
        return option.ranks.index(value) < option.ranks.index(most)
    if option.order == "network":
        return hosts.exceeds(value, most)
    if option.order == "list":
        return not all(_grants(most, item) for item in value)
    return False


def _lowered(option: Option, value: Any, most: Any) -> Any:
    """As much of `value` as the ceiling allows."""
    if option.order == "network":
        return hosts.lowered(value, most)
    return tuple(item for item in value if _grants(most, item)) if option.order == "list" else most


def _grants(granted: Sequence[str], item: str) -> bool:
    """Whether a list grants `item`: it names it, or a folder that it really lies in, however symbolic links run."""
    if item in granted:
        return True
    if not item.startswith("/"):
        return False
    real = os.path.realpath(item)
    tops = [os.path.realpath(top) for top in granted if top.startswith("/")]
    return any(real == top or real.startswith(f"{top.rstrip('/')}/") for top in tops)


def format_value(name: str, value: Any) -> str:
    """A value with its unit, as it could be written in a policy."""
    if value is None:
        return "no limit"
    if isinstance(value, tuple):
        return ", ".join(value) or "nothing"
    if OPTIONS[name].metavar == "SECONDS":
        return show_seconds(value)
    if OPTIONS[name].metavar == "SIZE":
        return show_size(value)
    return f"{value:.15g}" if isinstance(value, int | float) else str(value) or "not set"


def cannot(policy: Policy, name: str, why: str, hint: str) -> Refused:
    """What a runner raises for a key that it cannot enforce: with its value, and who set it."""
    source = policy.sources.get(name, "built-in")
    return Refused(f"{name} = {format_value(name, getattr(policy, name))} ({source}) cannot be had: {why}", hint=hint)
