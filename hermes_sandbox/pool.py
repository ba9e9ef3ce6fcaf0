"""The workers of one supervisor: which are alive, for whom, and when they end.

A worker belongs to a `Key`: the tools it was given, the task, and everything of the policy that holds for a worker's
whole life. It serves one request at a time; further ones wait in line. With `reuse = session` it stays for the task's
next call; with `never`, or when a call asked for limits of its own, it is started for one request and closed after it.
A worker that was lost leaves its key marked, so that the next call on it can say that the task's state is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from hermes_sandbox import bootstrap, runners
from hermes_sandbox.driver import Worker
from hermes_sandbox.errors import ProtocolError, Refused, RunnerFailed, SandboxError, TimedOut
from hermes_sandbox.events import Hub, Known
from hermes_sandbox.policy import OPTIONS, PER_CALL, Policy, cannot
from hermes_sandbox.presence import Presence, WorkerRow
from hermes_sandbox.runners import WorkerSpec
from hermes_sandbox.session import Session

_numbers = itertools.count(1)  # of workers, in this process: several supervisors may live in it
MAX_WORKERS = 256  # alive at once in one supervisor; a task that is over must be closed with close_task


Tools = Callable[[], Mapping[str, bytes]]  # reads the tool files that a worker needs, when one is started


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is for. `group` names its tools; `digest` is `policy_digest` of its policy."""

    group: str
    task_id: str
    digest: str


class Seen(msgspec.Struct, frozen=True):
    """What of a worker only the pool knows: whose tools it has, where it runs, since when (s since the epoch)."""

    group: str
    runner: str
    started: float


class Slot:
    """The place of one key: its worker, if it is alive, and the line of those who want it."""

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self.line = asyncio.Lock()
        self.lost = False  # a worker of this key ended with a call, and its state with it


class Pool:
    def __init__(self, hide: tuple[Path, ...], writable: tuple[Path, ...], hub: Hub | None = None) -> None:
        self._hub = hub or Hub()
        self._hide = hide
        self._writable = writable
        self._slots: dict[Key, Slot] = {}
        self._runners: dict[str, Any] = {}
        self._alive: dict[Worker, Seen] = {}
        self._closed = False
        self._presence = Presence(self._rows)
        self._starts: set[asyncio.Task[Worker]] = set()

    def __len__(self) -> int:
        return len(self._alive)

    @asynccontextmanager
    async def worker(
        self,
        key: Key,
        policy: Policy,
        workspace: Path,
        env: Mapping[str, str],
        tools: Tools,
        *,
        keep: bool,
        patience: float,
    ) -> AsyncIterator[tuple[Worker, bool]]:
        """A worker of `key` for one request, and whether state that the task had on this key was lost before.

        Waits in line behind the key's other requests for at most `patience` s: then TimedOut. Raises Refused or
        RunnerFailed when there is no worker and none can be started."""
        slot = self._slots.setdefault(key, Slot()) if keep else Slot()
        if slot.line.locked():
            await self._queue(slot, patience)
        else:
            await slot.line.acquire()
        try:
            lost, slot.lost = slot.lost, False
            if slot.worker is not None and not slot.worker.usable:  # it broke while nobody used it
                await self._end(slot.worker)
                slot.worker, lost = None, True
            if slot.worker is None:
                slot.worker = await self._started(self._start(key, policy, workspace, env, tools))
            worker = slot.worker
            try:
                yield worker, lost
            finally:
                if not worker.usable:
                    slot.worker, slot.lost = None, True
                forgotten = keep and self._slots.get(key) is not slot  # the task was closed meanwhile
                if not worker.usable or not keep or forgotten:
                    await self._end(worker)
        finally:
            slot.line.release()

    async def _queue(self, slot: Slot, patience: float) -> None:
        try:
            async with asyncio.timeout(patience):
                await slot.line.acquire()
        except TimeoutError:
            hint = "calls of one task run one after the other; use another task_id to run them side by side"
            raise TimedOut(f"waited {patience:g} s (timeout) for the task's earlier calls", hint=hint) from None

    async def _started(self, start: Coroutine[Any, Any, Worker]) -> Worker:
        """See a start to its end even if the caller is cancelled: only a whole start can be taken back."""
        task = asyncio.ensure_future(start)
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.ensure_future(self._end_started(task)))
            raise

    async def _end_started(self, start: asyncio.Task[Worker]) -> None:
        with contextlib.suppress(SandboxError):
            await self._end(await start)

    async def _start(self, key: Key, policy: Policy, workspace: Path, env: Mapping[str, str], tools: Tools) -> Worker:
        if self._closed:
            raise Refused("the supervisor was closed meanwhile")
        if len(self._alive) + len(self._starts) > MAX_WORKERS:
            raise Refused(
                f"{MAX_WORKERS} workers are alive, which is the most", hint="close tasks that are over with close_task"
            )
        contents = tools()  # before anything is started: it may raise
        runner = self._runner(policy)
        name = str(next(_numbers))
        spec = WorkerSpec(
            name=name, policy=policy, workspace=workspace, env=env, hide=self._hide, writable=self._writable
        )
        process = await runner.start(spec)
        background = Known(self._hub, key.task_id, self._presence.changed)
        worker = Worker(process, Session(process.boot.nonce), key.task_id, background)
        self._alive[worker] = Seen(key.group, policy.runner, time.time())
        self._presence.changed()
        try:
            try:
                payload = bootstrap.payload(process.boot, contents, same_python=process.same_python)
            except BaseException:
                await worker.stop()
                raise
            await worker.start(payload)
        except BaseException as error:
            self._forget(worker)
            if isinstance(error, RunnerFailed | ProtocolError):
                raise runner.diagnose(worker.noise) if worker.noise else error from None
            raise
        return worker

    def _runner(self, policy: Policy) -> Any:
        name = policy.runner
        if name not in self._runners:
            try:
                self._runners[name] = runners.load(name)()
            except Refused as refusal:  # say who wanted it
                raise cannot(policy, "runner", refusal.message, refusal.hint) from None
        return self._runners[name]

    async def _end(self, worker: Worker) -> None:
        await asyncio.shield(asyncio.ensure_future(self._close(worker)))

    async def _close(self, worker: Worker) -> None:
        await worker.close()
        self._forget(worker)

    def _forget(self, worker: Worker) -> None:
        self._alive.pop(worker, None)
        self._presence.changed()

    def _rows(self) -> list[WorkerRow]:
        return [
            WorkerRow(
                pid=worker.process.pid,
                runner=seen.runner,
                tier=worker.process.tier,
                task_id=worker.task_id,
                tools=Path(seen.group).stem,
                started=seen.started,
                background=list(worker.background.running.values()),
            )
            for worker, seen in self._alive.items()
        ]

    async def close_where(self, wanted: Callable[[Key], bool]) -> None:
        """Close the workers whose key is wanted, and forget their keys. A request that runs on one ends `cancelled`."""
        keys = [key for key in self._slots if wanted(key)]
        workers = [self._slots.pop(key).worker for key in keys]
        await asyncio.gather(*(self._end(worker) for worker in workers if worker is not None))

    def running(self, task_id: str) -> list[Worker]:
        return [worker for worker in self._alive if worker.exchange is not None and worker.task_id == task_id]

    async def close(self) -> None:
        """End every worker, however it was made, then the runners."""
        self._closed = True
        self._slots.clear()
        await asyncio.gather(*self._starts, return_exceptions=True)
        await asyncio.gather(*(self._end(worker) for worker in list(self._alive)))
        await asyncio.gather(*(runner.close() for runner in self._runners.values()))
        self._runners.clear()
        self._presence.close()


def policy_digest(policy: Policy) -> str:
    """Names the part of a policy that holds for a worker's whole life. Equal digests may share a worker."""
    whole_life = [name for name in OPTIONS if name not in PER_CALL]
    fields = [msgspec.to_builtins(getattr(policy, name)) for name in whole_life]
    asked = sorted(policy.explicit.intersection(whole_life))  # what was asked for is refused where a default is waived
    return msgspec.json.encode([*fields, policy.cpu_time is not None, asked]).decode()
