"""`hermes-sandbox tools enable | disable`: which tools are on, and which environment variables they get.

What a tool asks for by `requires_env` is a wish. Here the operator grants it: a value that nobody has yet is asked for
and goes into .env, the name goes into state.json. Without a terminal nothing is asked, and what is missing is named.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from hermes_sandbox import dotenv, state
from hermes_sandbox.cli.options import json_option, supervisor
from hermes_sandbox.config import Config, Toolset, Variable, load
from hermes_sandbox.environment import value_of
from hermes_sandbox.errors import Refused, Unavailable
from hermes_sandbox.home import get_hermes_home
from hermes_sandbox.policy import resolve
from hermes_sandbox.registry import ToolInfo
from hermes_sandbox.state import State

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|PWD|CREDENTIAL|AUTH", re.IGNORECASE)


class Want(msgspec.Struct, frozen=True):
    """What a tool asks for. `ungranted`: names that its policy does not grant."""

    tool: str
    names: tuple[str, ...]
    ungranted: tuple[str, ...]


@click.command("disable", short_help="Switch tools or toolsets off.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
@click.pass_context
def disable_command(ctx: click.Context, names: tuple[str, ...], as_json: bool) -> None:
    """Switch tools or toolsets off: no model is told of them, and a call of one is `unavailable`.

    \b
    Example:
      hermes-sandbox tools disable terminal
    """
    home = _home(ctx)
    config = load(home)
    with supervisor(ctx) as tools:
        toolsets = tools.toolsets()
    off = {_meant(name, toolsets, config.tools) for name in names}
    state.update(home, lambda kept: _replaced(kept, disabled={*kept.disabled, *off}, env=kept.env))
    if as_json:
        click.echo(msgspec.json.encode({"disabled": sorted(off)}))
    else:
        for name in sorted(off):
            members = toolsets[name].tools if name in toolsets else ()
            click.echo(f"the toolset {name} is off: {', '.join(members)}" if members else f"{name} is off")


@click.command("enable", short_help="Switch tools on, and grant them the variables they want.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
@click.pass_context
def enable_command(ctx: click.Context, names: tuple[str, ...], as_json: bool) -> None:
    """Switch tools or toolsets on, and grant them the environment variables that they ask for.

    A value that is neither in the environment nor in HERMES_HOME/.env is asked for, and kept there. Exit code 1: some
    variable is still missing.

    \b
    Example:
      hermes-sandbox tools enable web_search
    """
    home = _home(ctx)
    config = load(home)
    with supervisor(ctx) as tools:
        toolsets = tools.toolsets()
        on = {_meant(name, toolsets, config.disabled) for name in names}
        config = _without(config, on)
        members = {tool for name in on if name in toolsets for tool in toolsets[name].tools}
        everything = {tool for entry in toolsets.values() for tool in entry.tools}
        infos = [tools.tool(name) for name in sorted(members | (on & everything))]
        _check_on([info for info in infos if info.name in on], config)
        infos = [info for info in infos if not config.switched_off(info.name, info.toolset)]
        wants = [_want(info, tools.policy_of(info).env) for info in infos if info.requires_env]
    _check_grants(infos, {want.tool: want.ungranted for want in wants}, config)
    has = _values(home, config, wants)
    granted = {want.tool: [name for name in want.ungranted if name in has] for want in wants}
    missing = {want.tool: [name for name in want.names if name not in has] for want in wants}
    state.update(home, lambda kept: _enabled(kept, on, granted))
    _tell(sorted(on), _filled(granted), _filled(missing), home, as_json)
    ctx.exit(1 if _filled(missing) else 0)


def _home(ctx: click.Context) -> Path:
    return get_hermes_home(ctx.find_root().obj["profile"])


def _meant(name: str, toolsets: Mapping[str, Toolset], also: Iterable[str]) -> str:
    """The tool or toolset that a name or an alias stands for. Raises Unavailable, with the nearest name."""
    aliases = {alias: each for each, entry in toolsets.items() for alias in entry.aliases}
    known = {*toolsets, *also, *(tool for entry in toolsets.values() for tool in entry.tools)}
    if name in known or name in aliases:
        return name if name in known else aliases[name]
    near = difflib.get_close_matches(name, sorted({*known, *aliases}), n=1)
    hint = f"did you mean {near[0]}?" if near else "see what there is with: hermes-sandbox tools list"
    raise Unavailable(f"there is no tool or toolset {name!r}", hint=hint)


def _without(config: Config, on: set[str]) -> Config:
    """As it will be. Raises Refused for what state.json does not decide."""
    for name in sorted(on.intersection(config.operator.disabled)):
        raise Refused(f"{name} is switched off by config.yaml: tools.disabled", hint=config.how_to_switch_on(name))
    return msgspec.structs.replace(config, disabled=config.disabled - on)


def _check_on(tools: Sequence[ToolInfo], config: Config) -> None:
    for tool in tools:
        if by := config.switched_off(tool.name, tool.toolset):
            message = f"{tool.name} stays off, since {by} is switched off"
            raise Refused(message, hint=config.how_to_switch_on(by))


def _check_grants(tools: Sequence[ToolInfo], wanted: Mapping[str, Sequence[str]], config: Config) -> None:
    """Raises Refused for a name beyond a ceiling of the operator's, before anybody is asked for its value."""
    more = {tool: (*config.granted.get(tool, ()), *_names(names)) for tool, names in wanted.items() if _names(names)}
    config = msgspec.structs.replace(config, granted={**config.granted, **more})
    for tool in tools:
        resolve(config.layers(tool.toolset, tool.name))


def _names(wanted: Iterable[str]) -> list[str]:
    """Those that can be names of variables: tool files ask for anything."""
    return [name for name in wanted if re.match(state.NAME, name)]


def _want(tool: ToolInfo, granted: Sequence[str]) -> Want:
    ungranted = (name for name in tool.requires_env if name not in granted)
    return Want(tool.name, tool.requires_env, tuple(ungranted))


def _values(home: Path, config: Config, wants: Sequence[Want]) -> set[str]:
    """The wanted names that have a value, when all that can be asked was asked. Raises Refused for a .env that cannot
    be used."""
    wanted = dict.fromkeys(name for want in wants for name in _names(want.names))
    has = {name for name in wanted if value_of(name, config.secrets)}
    if os.isatty(0):
        asked = {name: _ask(name, config.env.get(name, Variable()), wants) for name in wanted if name not in has}
        given = {name: value for name, value in asked.items() if value}
        if given:
            dotenv.put(home, given)
        has |= given.keys()
    return has


def _ask(name: str, about: Variable, wants: Sequence[Want]) -> str:
    tools = ", ".join(want.tool for want in wants if name in want.names)
    for line in (f"{tools}: asks for {name}", about.description, about.url):
        if line:
            click.echo(line, err=True)
    answer: str = click.prompt(
        about.prompt or f"{name} (Enter leaves it out)",
        default="",
        show_default=False,
        hide_input=about.password or bool(_SECRET.search(name)),
        err=True,
    )
    return answer.strip()


def _enabled(kept: State, on: set[str], granted: Mapping[str, Sequence[str]]) -> State:
    env = {tool: (*kept.env.get(tool, ()), *names) for tool, names in granted.items() if names}
    return _replaced(kept, disabled=set(kept.disabled) - on, env={**kept.env, **env})


def _replaced(kept: State, disabled: Iterable[str], env: Mapping[str, Iterable[str]]) -> State:
    """Sorted, and each name once."""
    grants = {tool: tuple(sorted(set(names))) for tool, names in sorted(env.items())}
    return msgspec.structs.replace(kept, disabled=tuple(sorted(set(disabled))), env=grants)


def _filled(found: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    return {tool: names for tool, names in found.items() if names}


def _tell(on: Sequence[str], granted: Mapping[str, Any], missing: Mapping[str, Any], home: Path, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode({"enabled": on, "granted": granted, "missing": missing}))
        return
    for name in on:
        click.echo(f"{name} is on")
    for tool, names in granted.items():
        click.echo(f"{tool} gets {', '.join(names)}")
    for tool, names in missing.items():
        click.echo(f"{tool} asks for {', '.join(names)}, which nobody set", err=True)
        then = f"hermes-sandbox tools enable {tool}"
        click.echo(f"  write NAME=VALUE into {home / '.env'} (chmod 600), then: {then}", err=True)
