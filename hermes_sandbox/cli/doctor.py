"""`hermes-sandbox doctor`: what works here, what does not, and what to do about it."""

from __future__ import annotations

import asyncio

import click

from hermes_sandbox.cli.findings import show
from hermes_sandbox.cli.options import json_option
from hermes_sandbox.doctor import examine
from hermes_sandbox.findings import failed


@click.command("doctor")
@json_option
@click.pass_context
def doctor_command(ctx: click.Context, as_json: bool) -> None:
    """Say what works here, what does not, and what to do about it.

    Each tier, runner and configured policy is tried by starting a worker; no tool is run. A line begins with ok, warn
    or FAIL. The exit code is 1 when something that is configured cannot work.

    \b
    Example:
      hermes-sandbox doctor
      hermes-sandbox doctor --json
    """
    chosen = ctx.find_root().obj
    findings = asyncio.run(examine(chosen["profile"], chosen["filter"]))
    show(findings, as_json)
    ctx.exit(1 if failed(findings) else 0)
