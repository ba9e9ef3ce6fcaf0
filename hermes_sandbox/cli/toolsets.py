"""`hermes-sandbox toolsets`: the names that --tools and get_definitions take."""

from __future__ import annotations

import click
import msgspec

from hermes_sandbox.cli.options import json_option, supervisor


@click.command("toolsets")
@json_option
@click.pass_context
def toolsets_command(ctx: click.Context, as_json: bool) -> None:
    """List the toolsets with their tools, what they include, and their other names.

    \b
    Example:
      hermes-sandbox toolsets
    """
    with supervisor(ctx) as tools:
        found = tools.toolsets()
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    for name, entry in found.items():
        aliases = f" (also {', '.join(entry.aliases)})" if entry.aliases else ""
        click.echo(f"{name}{aliases}: {entry.description}".rstrip(": "))
        click.echo(f"  {', '.join(entry.tools) or 'no tools here'}")
