"""Starts workers to see whether and how they start: the one honest answer to what a policy gives on this machine.

A worker of a trial is a real one, by the real runner, with the flags of a real run; nothing of a tool runs in it unless
its files are given and it is asked for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from hermes_sandbox.config import Config
from hermes_sandbox.driver import Worker
from hermes_sandbox.environment import BASE_ENV
from hermes_sandbox.home import get_hermes_home
from hermes_sandbox.policy import Policy
from hermes_sandbox.pool import Key, Pool, Tools
from hermes_sandbox.workspace import Workspaces

PATIENCE = 60.0  # s that a trial waits for a worker


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker started: its isolation, what enforces which limit, its Python. `error`: why it did not."""

    tier: str = ""
    mechanisms: Mapping[str, str] = {}
    python: str = ""
    error: Exception | None = None


class Trials:
    """Use it as an asynchronous context manager."""

    def __init__(self, config: Config, home: Path) -> None:
        self._pool = Pool(hide=(home.resolve(), get_hermes_home().resolve()), writable=config.writable())
        self._workspaces = Workspaces(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._pool.close()

    @asynccontextmanager
    async def worker(self, policy: Policy, files: Tools = dict, workspace: Path | None = None) -> AsyncIterator[Worker]:
        """A worker with this policy, no secret, and an empty workspace unless one is given. Raises Refused or
        RunnerFailed."""
        async with AsyncExitStack() as stack:
            if workspace is None:
                workspace = await stack.enter_async_context(self._workspaces.temporary())
            key = Key(group="trial", task_id="", digest="")
            started = self._pool.worker(key, policy, workspace, BASE_ENV, files, keep=False, patience=PATIENCE)
            yield (await stack.enter_async_context(started))[0]

    async def judge(self, policy: Policy, workspace: Path | None = None) -> Verdict:
        """Whether this policy can be had. Never raises: a runner may be anybody's."""
        try:
            async with self.worker(policy, workspace=workspace) as worker:
                hello = worker.session.hello
                return Verdict(
                    tier=worker.process.tier,
                    mechanisms=dict(worker.process.mechanisms),
                    python=hello.python if hello is not None else "",
                )
        except Exception as error:
            return Verdict(error=error)
