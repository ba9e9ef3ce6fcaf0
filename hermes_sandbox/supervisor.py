"""The façade: from a tool's name and arguments to a CallResult, with no tool code ever in this process.

Theory of operation
    A call passes the gates (gates.py) before anything is started. Then the pool gives a worker, `driver` sees the
    request to its end, `outcomes` names that end, and here it becomes a CallResult. Everything that can go wrong is a
    SandboxError on the way and a CallResult at the end: `call` raises only for a closed supervisor and for the caller's
    own cancellation.

    What tools exist is found out without importing them: `catalog` discovers the files and has workers describe them.
    One event loop drives all of it. `AsyncSupervisor` lives on the caller's loop; `sync.Supervisor` brings a thread
    with a loop of its own.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from hermes_sandbox import config
from hermes_sandbox.bundled import bundled
from hermes_sandbox.catalog import Catalog
from hermes_sandbox.config import Toolset
from hermes_sandbox.discovery import ModuleFile
from hermes_sandbox.environment import BASE_ENV, check_command, granted, search_path, where_it_is
from hermes_sandbox.errors import Cancelled, InvalidArguments, Refused, SandboxError
from hermes_sandbox.events import Events, Hub
from hermes_sandbox.exchange import Exchange, OutputHandler, Watch
from hermes_sandbox.gates import Asked, Gates, as_layer
from hermes_sandbox.home import get_hermes_home
from hermes_sandbox.outcomes import NOT_FOUND_EXIT
from hermes_sandbox.policy import Policy, PolicyLayer
from hermes_sandbox.pool import Key, Pool, Tools
from hermes_sandbox.record import Record
from hermes_sandbox.registry import DescribeCache, ToolInfo
from hermes_sandbox.results import CallResult, Failure
from hermes_sandbox.toolsets import names as toolset_names
from hermes_sandbox.toolsets import resolve
from hermes_sandbox.worker import wire
from hermes_sandbox.workspace import Workspaces

DEFAULT_TASK = "default"
EXEC_TOOL = "exec"  # the name that a command run by `exec` has in its record
ASK_PATIENCE = 60.0  # s that a description or check waits for a worker
_TASK_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class AsyncSupervisor:
    """Holds the registry and runs calls in workers. Belongs to the event loop that it is used on.

    `workspace`: the folder that tools work in (default: `terminal.cwd` of config.yaml); without one each task gets a
    temporary folder of its own. `home`: the
    operator's files (default: get_hermes_home()). `toolset_filter`: names of the toolsets and tools that may be used at
    all. `tool_folders`: where tool files lie (default: the bundled ones and HOME/tools). `policy`: a layer below that
    of each call and above all configuration: the operator's.
    """

    def __init__(
        self,
        *,
        workspace: Path | str | None = None,
        home: Path | None = None,
        toolset_filter: Sequence[str] | None = None,
        tool_folders: Sequence[Path] | None = None,
        policy: Asked = None,
    ) -> None:
        self._home = home or get_hermes_home()
        self._config = config.load(self._home)
        folder = workspace if workspace is not None else self._config.cwd or None
        self._workspaces = Workspaces(Path(folder) if folder is not None else None)
        hide = (self._home.resolve(), get_hermes_home().resolve())
        self.hub = Hub()
        self._pool = Pool(hide=hide, writable=self._config.writable(), hub=self.hub)
        folders = tool_folders if tool_folders is not None else (bundled("tool_modules"), self._home / "tools")
        self._catalog = Catalog(self._config, folders, DescribeCache(self._home), self._ask_describe, self._ask_check)
        self._gates = Gates(self._config, self._catalog, toolset_filter, as_layer(policy) or PolicyLayer())
        self._records: set[Record] = set()  # of the calls that are going on
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # What there is ------------------------------------------------------------------------------------------------

    async def tools(self) -> list[ToolInfo]:
        """The tools that the filter allows, by name."""
        registry = await self._catalog.registry()
        allowed = self._gates.allowed(registry)
        return [tool for tool in registry.tools() if tool.name in allowed]

    async def tool(self, name: str) -> ToolInfo:
        """One tool. Raises Unavailable, with the nearest names, or with the reason why it did not load."""
        return (await self._catalog.registry()).get(name)

    async def toolsets(self) -> dict[str, Toolset]:
        """Toolset -> what it is and which of its tools exist, with those that it includes."""
        registry = await self._catalog.registry()
        found = {}
        for name in toolset_names(self._config, registry):
            entry = self._config.toolsets.get(name, Toolset())
            found[name] = msgspec.structs.replace(entry, tools=tuple(sorted(resolve([name], self._config, registry))))
        return found

    async def problems(self) -> dict[str, str]:
        """Module or tool -> why it is not there."""
        return (await self._catalog.registry()).problems()

    async def get_definitions(self, toolsets: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """The definitions of the tools in `toolsets` (default: all that are allowed) for a model, in OpenAI's shape.
        Tools whose check says no are left out. Raises Unavailable for an unknown toolset."""
        if isinstance(toolsets, str):
            toolsets = [toolsets]
        registry = await self._catalog.registry()
        wanted = {tool.name for tool in await self.tools()}
        if toolsets is not None:
            wanted &= resolve(toolsets, self._config, registry)
        infos = [registry.get(name) for name in sorted(wanted)]
        states = await asyncio.gather(*(self._catalog.state(info) for info in infos))
        overrides = {state.name: state.overrides for state in states if state.overrides}
        return registry.definitions([state.name for state in states if state.available], overrides)

    def policy_of(self, tool: ToolInfo, layer: PolicyLayer | None = None) -> Policy:
        """The policy that a call of `tool` with `layer` on top would have. Raises Refused."""
        return self._gates.policy(tool, layer)[0]

    def events(self) -> Events:
        """News of background programs from here on: an asynchronous iterator of ProcessEvent."""
        return Events(self.hub)

    # Calls --------------------------------------------------------------------------------------------------------

    async def dispatch(self, name: str, args: Any = None, **context: Any) -> str | dict[str, Any]:
        """Hermes' `dispatch`: the tool's answer, or JSON that says how the call ended. `context` reaches the
        handler."""
        task_id = context.pop("task_id", None) or DEFAULT_TASK
        return (await self.call(name, args, task_id=task_id, context=context)).as_tool_string()

    async def call(
        self,
        name: str,
        args: Any = None,
        *,
        task_id: str = DEFAULT_TASK,
        policy: Asked = None,
        context: Mapping[str, Any] | None = None,
    ) -> CallResult:
        """Run a tool. `policy`: what the call asks for, such as {"timeout": "5s", "memory": "256M"}, up to the tool's
        ceiling. `context`: further keyword arguments of its handler, plain data."""
        record = self._begun(name, task_id)
        try:
            self._check_open(task_id)
            ready = await self._gates.pass_through(name, args, task_id, policy)
            record.policy = ready.policy
            record.notes += ready.notes
            record.withheld = ready.withheld
            module = self._catalog.module(ready.tool.module)
            params = wire.Call(
                module=module.name,
                tool=ready.tool.name,
                args=ready.args,
                context=_plain({**(context or {}), "task_id": task_id}),
                result_limit=ready.policy.result,
                timeout=ready.policy.timeout,
                grace=ready.policy.grace,
                stays=ready.keep,
                children=ready.children,
                cpu_time=ready.policy.cpu_time,
            )
            return await self._run(record, ready.key, ready.keep, ready.policy, ready.env, module.contents, params)
        except SandboxError as error:
            return record.refused(error)
        finally:
            self._records.discard(record)

    async def exec(
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
        """Run a command in a sandbox of its own. `env` comes on top of the granted one. The caller is the operator
        here: `policy` may go beyond any ceiling. `on_output(stream, data)` gets output as it comes; if it returns an
        awaitable, the command waits for it."""
        record = self._begun(EXEC_TOOL, task_id)
        try:
            self._check_open(task_id)
            check_command(argv, cwd, env)
            effective = record.policy = self._gates.exec_policy(as_layer(policy) or PolicyLayer())
            workspace = self._workspaces.of(task_id)
            folder = str(workspace if cwd is None else (workspace / cwd))
            own = {**granted(effective, self._config.secrets), "PATH": search_path(effective, workspace), **(env or {})}
            params = wire.Exec(argv=list(argv), cwd=folder, env=own, cpu_time=effective.cpu_time)
            key = Key(group=EXEC_TOOL, task_id=task_id, digest="")
            result = await self._run(record, key, False, effective, own, dict, params, on_output, _blocks(stdin))
            if result.exit_code == NOT_FOUND_EXIT and result.error is not None:
                failure = Failure(result.error.message, where_it_is(argv[0]))
                result = msgspec.structs.replace(result, error=failure)
            return result
        except SandboxError as error:
            return record.refused(error)
        finally:
            self._records.discard(record)

    def _begun(self, name: str, task_id: str) -> Record:
        record = Record(name, task_id)
        self._records.add(record)
        return record

    async def _run(
        self,
        record: Record,
        key: Key,
        keep: bool,
        policy: Policy,
        env: Mapping[str, str],
        files: Tools,
        params: wire.Call | wire.Exec,
        on_output: OutputHandler | None = None,
        stdin: AsyncIterator[bytes] | None = None,
    ) -> CallResult:
        watch = Watch(
            timeout=policy.timeout,
            grace=policy.grace,
            idle_timeout=policy.idle_timeout,
            cpu_time=policy.cpu_time,
            output=policy.output,
        )
        workspace = self._workspaces.of(key.task_id)
        async with self._pool.worker(key, policy, workspace, env, files, keep=keep, patience=policy.timeout) as (
            worker,
            lost,
        ):
            if record.cancelled:  # before it had a worker
                raise Cancelled("the caller cancelled the call before it began")
            if lost:
                record.notes.append("an earlier call ended the task's worker, and the state it had there is lost")
            looked = not isinstance(params, wire.Exec) and not worker.background.used  # nobody else ran since then
            before = worker.counted if looked else worker.process.evidence()
            exchange = await worker.request(params, watch, on_output=on_output, stdin=stdin)
            return record.ended(worker, exchange, before)

    def cancel(self, task_id: str = DEFAULT_TASK) -> None:
        """End the task's calls; each returns with outcome `cancelled`."""
        for record in self._records:
            record.cancelled = record.cancelled or record.task_id == task_id
        for worker in self._pool.running(task_id):
            worker.cancel()

    def send_signal(self, number: int, task_id: str = DEFAULT_TASK) -> None:
        """Pass a signal to the process group of the task's running command."""
        for worker in self._pool.running(task_id):
            worker.send_signal(number)

    # What describes and checks tools ------------------------------------------------------------------------------

    async def _ask_describe(self, module: ModuleFile, params: Any, watch: Watch) -> Exchange:
        return await self._ask(module, self._gates.describing(module.hints), BASE_ENV, params, watch)

    async def _ask_check(self, tool: ToolInfo, module: ModuleFile, params: Any, watch: Watch) -> Exchange:
        policy = self.policy_of(tool)
        return await self._ask(module, policy, self._gates.environment(tool, policy)[0], params, watch)

    async def _ask(
        self, module: ModuleFile, policy: Policy, env: Mapping[str, str], params: Any, watch: Watch
    ) -> Exchange:
        """In a worker of the module's own, whose workspace is an empty folder."""
        key = Key(group=module.key, task_id="", digest="")
        async with self._workspaces.temporary() as workspace:
            places = (key, policy, workspace, env, module.contents)
            async with self._pool.worker(*places, keep=False, patience=ASK_PATIENCE) as (worker, _):
                return await worker.request(params, watch)

    # Tasks and the end --------------------------------------------------------------------------------------------

    def _check_open(self, task_id: str) -> None:
        if self._closed:
            raise RuntimeError("this supervisor is closed")
        if not _TASK_ID.fullmatch(task_id):
            raise Refused(
                f"{task_id!r} is no task id", hint="use 1 to 64 letters, digits, dots, dashes and underscores"
            )

    async def close_task(self, task_id: str) -> None:
        """End the task's workers and remove its temporary workspace."""
        await self._pool.close_where(lambda key: key.task_id == task_id)
        await self._workspaces.close_task(task_id)

    async def close(self) -> None:
        """End every worker and give back everything. Safe to call twice."""
        self._closed = True
        try:
            await self._pool.close()
            self.hub.close()
        finally:
            await self._workspaces.close()


async def _blocks(stdin: bytes | AsyncIterable[bytes] | None) -> AsyncIterator[bytes]:
    """Standard input as blocks; none is empty input."""
    if isinstance(stdin, bytes):
        yield stdin
    elif stdin is not None:
        async for block in stdin:
            yield block


def _plain(context: Mapping[str, Any]) -> dict[str, Any]:
    """The context as plain data. Raises InvalidArguments for what cannot cross a pipe, such as a live object."""
    try:
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(context))
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise InvalidArguments(
            f"the context cannot be sent to a worker: {error}", hint="pass plain data only"
        ) from None
    return plain
