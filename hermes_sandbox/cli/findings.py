"""How findings are shown: a line each, with the word for how good it is in front, and what to do below it."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from hermes_sandbox.cli import MAX_TALK
from hermes_sandbox.findings import Finding
from hermes_sandbox.text import clean


def show(findings: Sequence[Finding], as_json: bool) -> None:
    """To stdout. Names of files and what tool files say of themselves are in it, so it is cleaned."""
    shown = [_cleaned(finding) for finding in findings]
    if as_json:
        click.echo(msgspec.json.encode(shown))
        return
    for finding in shown:
        line = f"{finding.status:<4}  {finding.area}: {finding.name}: {finding.message}"
        click.echo(" ".join(line.split("\n")))
        for step in finding.hint.splitlines():
            click.echo(f"        {step}")


def _cleaned(finding: Finding) -> Finding:
    texts = {name: clean(getattr(finding, name), MAX_TALK) for name in ("area", "name", "message", "hint")}
    return msgspec.structs.replace(finding, **texts)
