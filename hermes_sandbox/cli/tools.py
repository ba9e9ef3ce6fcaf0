"""`hermes-sandbox tools`: what tools there are, what each may do, and what a model is told of them."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from hermes_sandbox.cli.check import check_command
from hermes_sandbox.cli.options import json_option, supervisor
from hermes_sandbox.cli.switches import disable_command, enable_command
from hermes_sandbox.config import Config, Tool, load
from hermes_sandbox.errors import Unavailable
from hermes_sandbox.home import get_hermes_home
from hermes_sandbox.policy import OPTIONS, Policy, format_value
from hermes_sandbox.registry import ToolInfo


@click.group("tools")
@json_option
@click.pass_context
def tools_command(ctx: click.Context, as_json: bool) -> None:
    """Show the tools, switch them on and off, check a file of them.

    \b
    Example:
      hermes-sandbox tools list
      hermes-sandbox tools show read_file
    """
    ctx.find_root().obj["json"] = as_json


for command in (enable_command, disable_command, check_command):
    tools_command.add_command(command)


@tools_command.command("list", short_help="List the tools, and files that did not load.")
@json_option
@click.pass_context
def list_tools(ctx: click.Context, as_json: bool) -> None:
    """List the tools by name, and the files that could not be loaded, with the reason.

    \b
    Example:
      hermes-sandbox --tools file tools list
    """
    chosen = ctx.find_root().obj
    config = load(get_hermes_home(chosen["profile"]))
    with supervisor(ctx) as tools:
        found, problems = {tool.name: tool for tool in tools.tools()}, tools.problems()
        if chosen["filter"] is None:  # what is off is not among those that may be used
            every = {name for entry in tools.toolsets().values() for name in entry.tools}
            found.update((name, tools.tool(name)) for name in every - found.keys())
    off = {tool.name for tool in found.values() if config.switched_off(tool.name, tool.toolset)}
    shown = [found[name] for name in sorted(found)]
    if as_json:
        rows = [_row(tool, tool.name in off) for tool in shown]
        click.echo(msgspec.json.encode({"tools": rows, "problems": problems}))
        return
    width = max((len(tool.name) for tool in shown), default=0)
    for tool in shown:
        mark = "(off) " if tool.name in off else ""
        click.echo(f"{tool.name:<{width}}  {tool.toolset:<12}  {mark}{_first_line(tool.description)}")
    for name, reason in problems.items():
        click.echo(f"not loaded: {name}: {reason}", err=True)


@tools_command.command("show", short_help="Show one tool, its arguments and its policy.")
@click.argument("name")
@json_option
@click.pass_context
def show_tool(ctx: click.Context, name: str, as_json: bool) -> None:
    """Show one tool: where it comes from, its arguments, and its policy: each value with its source, and its ceiling.

    \b
    Example:
      hermes-sandbox tools show patch
    """
    config = load(get_hermes_home(ctx.find_root().obj["profile"]))
    own = config.tools.get(name, Tool())
    with supervisor(ctx) as tools:
        if (entry := tools.toolsets().get(name)) is not None and name not in entry.tools:
            raise Unavailable(f"{name!r} is a toolset", hint=f"show one of its tools: {', '.join(entry.tools)}")
        tool = tools.tool(name)
        policy = _with_files(tools.policy_of(tool), config)
    off = config.switched_off(tool.name, tool.toolset)
    if as_json:
        behaviour = {"children": own.children, "timeout_argument": own.timeout_argument, "disabled": bool(off)}
        click.echo(msgspec.json.encode({"tool": tool, "policy": policy, **behaviour}))
        return
    if off:
        click.echo(f"{off} is switched off; {config.how_to_switch_on(off)}")
    for line in _lines(tool, policy, own):
        click.echo(line)


@tools_command.command("schema", short_help="Print the definitions that a model gets.")
@click.argument("names", nargs=-1)
@json_option
@click.pass_context
def show_schemas(ctx: click.Context, names: tuple[str, ...], as_json: bool) -> None:
    """Print the definitions that a model gets, as a JSON array: of all tools, or of the named tools and toolsets. With
    --json on one line.

    \b
    Example:
      hermes-sandbox tools schema read_file patch
    """
    with supervisor(ctx) as tools:
        definitions = msgspec.json.encode(tools.get_definitions(names or None))
    click.echo(definitions if as_json else msgspec.json.format(definitions))


def _with_files(policy: Policy, config: Config) -> Policy:
    """With the sources named by the file that said it, where there are two of one name."""
    sources = {key: config.origin(key, source) for key, source in policy.sources.items()}
    ceilings = {key: (most, config.origin(key, source)) for key, (most, source) in policy.ceilings.items()}
    return msgspec.structs.replace(policy, sources=sources, ceilings=ceilings)


def _row(tool: ToolInfo, off: bool) -> dict[str, object]:
    about = {"name": tool.name, "toolset": tool.toolset, "description": tool.description, "module": tool.module}
    return {**about, "disabled": off}


def _lines(tool: ToolInfo, policy: Policy, own: Tool) -> list[str]:
    lines = [f"{tool.name}  (toolset {tool.toolset}, {tool.module})", "", *_indented(tool.description)]
    required = tool.parameters.get("required") or []
    lines += ["", "arguments:"]
    for name, schema in tool.parameters["properties"].items():
        star = "*" if name in required else " "
        lines.append(f"  {star} {name}: {_type(schema)}  {_first_line(str(schema.get('description', '')))}".rstrip())
    facts = {
        "asks for env": ", ".join(tool.requires_env),
        "has a check": "yes" if tool.has_check else "",
        "unknown keywords": ", ".join(tool.extra),
        "what a call leaves running": "goes on to the task's end" if own.children == "keep" else "",
        "asks for time by": own.timeout_argument,
    }
    lines += [f"{label}: {fact}" for label, fact in facts.items() if fact]
    lines += ["", "policy:"]
    for key in OPTIONS:
        source = policy.sources.get(key, "built-in")
        line = f"  {key:<13} {format_value(key, getattr(policy, key)):<12} ({source})"
        most, set_by = policy.ceilings.get(key, (None, ""))
        lines.append(line if most is None else f"{line:<48}  at most {format_value(key, most)} ({set_by})")
    return lines


def _type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    kinds = [str(part.get("type", "any")) for part in schema.get("anyOf", ()) if isinstance(part, dict)]
    return str(schema.get("type") or " | ".join(kinds) or "any")


def _indented(text: str) -> list[str]:
    return [f"  {line}".rstrip() for line in text.splitlines()]


def _first_line(text: str) -> str:
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= 80 else line[:77] + "..."
