"""hermes_sandbox: tools for agents in the Hermes contract, each call in a sandbox of its own.

The public names, loaded when they are first used: `hermes-sandbox --help` needs none of them.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "AsyncSupervisor": "hermes_sandbox.supervisor",
    "Supervisor": "hermes_sandbox.sync",
    "CallResult": "hermes_sandbox.results",
    "ProcessEvent": "hermes_sandbox.events",
    "PolicyLayer": "hermes_sandbox.policy",
    "SandboxError": "hermes_sandbox.errors",
    "get_hermes_home": "hermes_sandbox.home",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
