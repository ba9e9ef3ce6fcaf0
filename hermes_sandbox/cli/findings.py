"""How findings are shown: a line each, with the word for how good it is in front, and what to do below it."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from hermes_sandbox.cli import MAX_TALK
from hermes_sandbox.findings import Finding
from hermes_sandbox.text import clean


def show(findings: Sequence[Finding], as_json: bool) -> None:
    """To stdout. What tool files say of themselves is in it, so it is cleaned."""
    if as_json:
        click.echo(msgspec.json.encode(findings))
        return
    for finding in findings:
        line = f"{finding.status:<4}  {finding.area}: {finding.name}: {finding.message}"
        click.echo(" ".join(clean(line, MAX_TALK).split("\n")))
        for step in finding.hint.splitlines():
            click.echo(f"        {clean(step, MAX_TALK)}")
