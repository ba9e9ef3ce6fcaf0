"""What several commands share: the policy's options, --json, and a supervisor made of the global options."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from hermes_sandbox.errors import Refused, SandboxError
from hermes_sandbox.home import get_hermes_home
from hermes_sandbox.policy import OPTIONS, PolicyLayer, layer
from hermes_sandbox.record import Record
from hermes_sandbox.results import CallResult
from hermes_sandbox.supervisor import DEFAULT_TASK
from hermes_sandbox.sync import Supervisor

F = TypeVar("F", bound=Callable[..., Any])


def policy_options(command: F) -> F:
    """Add one option for each key of the policy: `--idle-timeout` for idle_timeout, and so on."""
    for name, option in reversed(list(OPTIONS.items())):
        flag = "--" + name.replace("_", "-")
        more = " (repeat it for more)" if option.many else ""
        add = click.option(
            flag,
            name,
            metavar=option.metavar,
            multiple=option.many,
            help=option.help[0].upper() + option.help[1:] + more + ".",
        )
        command = add(command)
    return command


def json_option(command: F) -> F:
    """Add --json, which may also stand before the command."""

    def here_or_global(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
        return value or bool(ctx.find_root().obj["json"])

    add = click.option("--json", "as_json", is_flag=True, callback=here_or_global, help="Print everything as JSON.")
    return add(command)


def taken_from(options: dict[str, Any]) -> PolicyLayer:
    """Take the policy's options out of a command's keywords. Raises Refused for a value or unit that is wrong."""
    given = {name: options.pop(name) for name in OPTIONS if name in options}
    values = {name: value for name, value in given.items() if value not in (None, ())}
    if values.get("network") in (("none",), ("host",)):
        values["network"] = values["network"][0]
    try:
        return layer(values, "command line")
    except Refused as error:
        found = re.match(r"command line\.(\w+)(?: = (.*))? cannot be used", error.message)
        if found is None:
            raise
        name, shown = found[1], found[2]
        if OPTIONS[name].many:
            shown = " ".join(map(repr, values[name]))
        flag = f"--{name.replace('_', '-')}"
        if name == "env":  # people give a value as well, which nobody is to see
            raise Refused(f"{flag} wants a name alone", hint="export the variable, or keep it in .env") from None
        raise Refused(f"{flag} {shown:.60} cannot be used", hint=error.hint) from None


def supervisor(ctx: click.Context, policy: PolicyLayer | None = None) -> Supervisor:
    """A supervisor that works in the current folder."""
    chosen = ctx.find_root().obj
    home = get_hermes_home(chosen["profile"])
    if chosen["profile"] is not None and not home.is_dir():
        raise Refused(f"there is no profile {chosen['profile']!r}", hint=f"make it: mkdir -p {home}")
    return Supervisor(workspace=Path.cwd(), home=home, toolset_filter=chosen["filter"], policy=policy)


def unstarted(tool: str, error: SandboxError) -> CallResult:
    """The record of a call that ended before there was a supervisor to make one."""
    return Record(tool, DEFAULT_TASK).refused(error)
