"""`hermes-sandbox tools check FILE`: what the author of a tool file wants to know before somebody else finds out."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from hermes_sandbox.cli.findings import show
from hermes_sandbox.cli.options import json_option
from hermes_sandbox.findings import failed
from hermes_sandbox.home import get_hermes_home


@click.command("check", short_help="Check a tool file for its author.")
@click.argument("file", type=click.Path(path_type=Path))
@json_option
@click.pass_context
def check_command(ctx: click.Context, file: Path, as_json: bool) -> None:
    """Check a tool file: would it be found, does it load, are its schemas sound, what does it need.

    The file is imported in a sandbox of its own; no handler is called. A line begins with ok, warn or FAIL. The exit
    code is 1 when the file, or a tool in it, cannot be used as it is.

    \b
    Example:
      hermes-sandbox tools check my_tool.py
      hermes-sandbox tools check ~/.hermes/tools/my_tool.py --json
    """
    from hermes_sandbox.toolcheck import check

    findings = asyncio.run(check(file.absolute(), get_hermes_home(ctx.find_root().obj["profile"])))
    show(findings, as_json)
    ctx.exit(1 if failed(findings) else 0)
