"""What a look at something found: one line with a word for how good it is, and what to do about it.

`doctor` and `tools check` are lists of these. A check never ends them: what it raises is a finding of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Literal

import msgspec

from hermes_sandbox.errors import SandboxError

Status = Literal["ok", "warn", "FAIL"]


class Finding(msgspec.Struct, frozen=True):
    """`area` and `name` say what was looked at. FAIL: it cannot work; warn: it works, but not as it could. `hint`: what
    to do, a step a line."""

    area: str
    name: str
    status: Status
    message: str
    hint: str = ""


def of_error(area: str, name: str, error: Exception, status: Status = "FAIL", hint: str = "") -> Finding:
    """An error as a finding. `hint` comes before the error's own."""
    if isinstance(error, SandboxError):
        return Finding(area, name, status, error.message, "\n".join(filter(None, [hint, error.hint])))
    return Finding(area, name, status, f"{type(error).__name__}: {error}", hint)


async def found_by(area: str, check: Awaitable[Iterable[Finding]]) -> list[Finding]:
    """What a check finds, or that it failed."""
    try:
        return list(await check)
    except Exception as error:  # whatever is broken is a finding, and costs the other checks nothing
        return [of_error(area, "check", error)]


def failed(findings: Iterable[Finding]) -> bool:
    return any(finding.status == "FAIL" for finding in findings)
