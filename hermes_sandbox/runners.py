"""What a runner is, and how one is found by name.

A runner knows how to start one worker somewhere, how to say why that failed, and how to remove what a dead supervisor
left. It knows nothing of tools, calls or the wire: the supervisor writes the bootstrap to the process's stdin, and
reads the worker's pipe and init's report from its stdout and stderr.

This module has a `__path__`: `hermes_sandbox.runners.local` is the file `runners/local.py`, wherever it lies.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from hermes_sandbox.bundled import bundled
from hermes_sandbox.errors import Refused, SandboxError
from hermes_sandbox.policy import Policy
from hermes_sandbox.worker import wire

__path__ = [str(bundled("runners"))]

ENTRY_POINTS = "hermes_sandbox.runners"


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs. `env` is the whole environment of the tool; `name` is unique in this process.

    `hide`: paths that no tool may see. `writable`: all that any policy of this supervisor grants for writing, since a
    sandbox may have left links there."""

    name: str
    policy: Policy
    workspace: Path
    env: Mapping[str, str]
    hide: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()


class Evidence(msgspec.Struct, frozen=True):
    """What the kernel counted for a worker, where it counts: None is not counted."""

    oom_kills: int | None = None
    pids_refused: int | None = None
    cpu_s: float | None = None
    peak_bytes: int | None = None


class Process(Protocol):
    """A started worker. `pid` is its first process on this machine, `tier` its isolation, `mechanisms` names what
    enforces each limit, `notes` what to tell."""

    @property
    def pid(self) -> int: ...

    tier: str
    mechanisms: Mapping[str, str]
    notes: tuple[str, ...]
    boot: wire.Boot
    same_python: bool

    def attach(self, on_stdout: Callable[[bytes], None], on_stderr: Callable[[bytes], None]) -> None: ...
    def send(self, data: bytes) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def close_stdin(self) -> None: ...
    async def confine(self) -> None:
        """Put the limits of the tree in place. Called after hello and before any tool code."""

    async def wait(self, seconds: float) -> bool:
        """True when nothing of the worker is left, within `seconds`."""

    async def kill(self) -> bool:
        """End it from outside. True when the kernel (or the engine) confirms that nothing is left."""

    def evidence(self) -> Evidence: ...
    async def release(self) -> None:
        """Give back everything. Called once, when nothing of the worker is left."""


class Runner(Protocol):
    name: str

    async def start(self, spec: WorkerSpec) -> Process:
        """Start a process that waits for the bootstrap on its stdin.

        Raises Refused when the policy cannot be enforced here, RunnerFailed when the start fails."""

    def diagnose(self, noise: str) -> SandboxError:
        """Why a start failed, out of what the runner's program said: Refused if this machine cannot do what was asked,
        RunnerFailed otherwise."""

    def sweep(self) -> int:
        """Remove what a dead supervisor left. Returns how many things were removed."""

    async def close(self) -> None: ...


def load(name: str) -> Any:
    """The Runner class of `name`: a file in runners/, else an entry point of an installed package. Raises Refused.

    The files are looked at first, so a bundled name cannot be replaced."""
    if re.fullmatch(r"[a-z][a-z0-9_]*", name):
        if (bundled("runners") / f"{name}.py").is_file():
            return importlib.import_module(f"{__name__}.{name}").Runner
        from importlib.metadata import entry_points  # slow to import, and seldom reached

        for point in entry_points(group=ENTRY_POINTS, name=name):
            return point.load()
    raise Refused(f"there is no runner {name!r}", hint=f"use one of: {', '.join(available())}")


def available() -> list[str]:
    """Names of the bundled and the installed runners."""
    from importlib.metadata import entry_points

    own = {path.stem for path in bundled("runners").glob("*.py")}
    return sorted(own | {point.name for point in entry_points(group=ENTRY_POINTS)})
