"""The synchronous face: the same supervisor, on an event loop of its own, on a thread that lives as long as it does.

Every method waits for its namesake of AsyncSupervisor. An interrupt (Ctrl-C) while waiting cancels the call, and waits
for its end: nothing that a call started outlives it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from hermes_sandbox.config import Toolset
from hermes_sandbox.events import SyncEvents
from hermes_sandbox.exchange import OutputHandler
from hermes_sandbox.gates import Asked
from hermes_sandbox.policy import Policy, PolicyLayer
from hermes_sandbox.registry import ToolInfo
from hermes_sandbox.results import CallResult
from hermes_sandbox.supervisor import DEFAULT_TASK, AsyncSupervisor

T = TypeVar("T")


class Supervisor:
    """Takes AsyncSupervisor's arguments. Use it as a context manager, or call `close` when done."""

    def __init__(self, **options: Any) -> None:
        self._supervisor = AsyncSupervisor(**options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hermes-sandbox-loop", daemon=True)
        self._thread.start()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            work.close()
            raise RuntimeError("this Supervisor is closed")
        running: list[asyncio.Task[T]] = []

        async def run() -> T:
            running.append(asyncio.ensure_future(work))
            return await running[0]

        async def stop() -> None:
            for task in running:
                task.cancel()
                await asyncio.wait([task])

        future = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            asyncio.run_coroutine_threadsafe(stop(), self._loop).result()
            raise

    def get_definitions(self, toolsets: Sequence[str] | None = None) -> list[dict[str, Any]]:
        return self._wait(self._supervisor.get_definitions(toolsets))

    def tools(self) -> list[ToolInfo]:
        return self._wait(self._supervisor.tools())

    def tool(self, name: str) -> ToolInfo:
        return self._wait(self._supervisor.tool(name))

    def toolsets(self) -> dict[str, Toolset]:
        return self._wait(self._supervisor.toolsets())

    def policy_of(self, tool: ToolInfo, layer: PolicyLayer | None = None) -> Policy:
        return self._supervisor.policy_of(tool, layer)

    def problems(self) -> dict[str, str]:
        return self._wait(self._supervisor.problems())

    def dispatch(self, name: str, args: Any = None, **context: Any) -> str | dict[str, Any]:
        return self._wait(self._supervisor.dispatch(name, args, **context))

    def call(
        self,
        name: str,
        args: Any = None,
        *,
        task_id: str = DEFAULT_TASK,
        policy: Asked = None,
        context: Mapping[str, Any] | None = None,
    ) -> CallResult:
        return self._wait(self._supervisor.call(name, args, task_id=task_id, policy=policy, context=context))

    def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | AsyncIterable[bytes] | None = None,
        on_output: OutputHandler | None = None,
        task_id: str = DEFAULT_TASK,
        policy: Asked = None,
    ) -> CallResult:
        work = self._supervisor.exec(
            argv, cwd=cwd, env=env, stdin=stdin, on_output=on_output, task_id=task_id, policy=policy
        )
        return self._wait(work)

    def events(self) -> SyncEvents:
        """News of background programs from here on: an iterator of ProcessEvent, to be read on any one thread."""

        async def subscribe() -> SyncEvents:
            return SyncEvents(self._supervisor.hub)

        return self._wait(subscribe())

    def cancel(self, task_id: str = DEFAULT_TASK) -> None:
        """End the task's running calls, which then return with outcome `cancelled`. From any thread, and from a signal
        handler."""
        self._loop.call_soon_threadsafe(self._supervisor.cancel, task_id)

    def send_signal(self, number: int, task_id: str = DEFAULT_TASK) -> None:
        """Pass a signal to the task's running command. From any thread, and from a signal handler."""
        self._loop.call_soon_threadsafe(self._supervisor.send_signal, number, task_id)

    def close_task(self, task_id: str) -> None:
        self._wait(self._supervisor.close_task(task_id))

    def close(self) -> None:
        """End every worker and the thread. Safe to call twice."""
        if self._closed:
            return
        self._wait(self._supervisor.close())
        self._wait(self._loop.shutdown_default_executor())
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
