"""Which tools there are: finds the tool files, has workers describe them, asks their checks, and fills the registry.

Nothing of a tool is imported here. A module is described in a fork of a worker that is given no secret, no network and
an empty folder to work in; what it says of itself is cached on disk by its content. Modules are described one by one,
so that each has its own deadline and its own end: one that hangs, exits or crashes is a problem with a reason, of that
module alone. What a tool's check said holds for 30 s, and a yes is kept through failures for another 60 s after it,
since checks flicker (both as in Hermes).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from hermes_sandbox import discovery
from hermes_sandbox.config import Config
from hermes_sandbox.discovery import ModuleFile
from hermes_sandbox.errors import SandboxError, Unavailable
from hermes_sandbox.exchange import Exchange, Watch
from hermes_sandbox.registry import DescribeCache, DescribeReport, Registry, ToolInfo
from hermes_sandbox.worker import wire

DESCRIBE_TIMEOUT = 10.0  # s for one module's import
CHECK_TIMEOUT = 5.0  # s for all checks of one module
CHECK_HOLDS = 30.0  # s that an answer is taken from memory
YES_HOLDS = 60.0  # s after a yes in which a failing check is taken for a flicker
CHECKERS = 8  # workers that check at the same time
DESCRIBERS = 2  # workers that describe at the same time

# Sends one request to a worker of the module's own, and sees it to its end: to one without secrets, and to one that a
# tool's env is granted to. A worker that modules share could be used by one to forge what another says.
AskDescribe = Callable[[ModuleFile, wire.Describe, Watch], Awaitable[Exchange]]
AskCheck = Callable[[ToolInfo, ModuleFile, wire.Check, Watch], Awaitable[Exchange]]


class Checked(msgspec.Struct):
    """What a tool's check said. `at` and `yes_at` are readings of the monotonic clock."""

    state: wire.ToolState
    at: float
    yes_at: float


class Catalog:
    def __init__(
        self, config: Config, folders: Sequence[Path], cache: DescribeCache, ask: AskDescribe, check: AskCheck
    ) -> None:
        self._config = config
        self._folders = folders
        self._cache = cache
        self._ask = ask
        self._check = check
        self._checked: dict[str, Checked] = {}
        self._asking: dict[str, asyncio.Lock] = {}
        self._loading = asyncio.Lock()
        self._checkers = asyncio.Semaphore(CHECKERS)
        self._modules: dict[str, ModuleFile] = {}
        self._registry: Registry | None = None

    async def registry(self) -> Registry:
        """The registry with everything described; described once, at the first use."""
        if self._registry is None:
            async with self._loading:
                if self._registry is None:
                    self._registry = await self._load()
        return self._registry

    def module(self, key: str) -> ModuleFile:
        return self._modules[key]

    async def _load(self) -> Registry:
        facts = discovery.FactsCache(self._cache.folder / "facts.json")
        found = [module for folder in self._folders for module in discovery.discover(folder, facts)]
        facts.save()
        self._modules = {module.key: module for module in found}
        reports: dict[str, DescribeReport] = {}
        missing: list[ModuleFile] = []
        for module in found:
            if module.problem:
                reports[module.key] = DescribeReport(registrations=[], problem=module.problem)
            elif (known := self._cache.read(module)) is not None:
                reports[module.key] = known
            else:
                missing.append(module)

        turns = asyncio.Semaphore(DESCRIBERS)

        async def describe(module: ModuleFile) -> None:
            async with turns:
                reports[module.key] = await self._describe(module)

        await asyncio.gather(*map(describe, missing))
        registry = Registry(self._config)
        registry.load(found, reports)
        return registry

    async def _describe(self, module: ModuleFile) -> DescribeReport:
        began = time.monotonic()
        try:
            exchange = await self._ask(module, wire.Describe(module.name), Watch(timeout=DESCRIBE_TIMEOUT, grace=0.2))
        except Unavailable as error:  # its files are gone, or are others by now
            return DescribeReport(registrations=[], problem=error.message)
        done = exchange.reply if exchange.cause == "answered" else None
        if isinstance(done, wire.DescribeDone):
            report = DescribeReport(done.registrations, done.problem, time.monotonic() - began)
            self._cache.write(module, report)
            return report
        why = _why(exchange, f"its import took more than {DESCRIBE_TIMEOUT:g} s")
        if exchange.cause != "timeout":
            return DescribeReport(registrations=[], problem=why)
        report = DescribeReport([], f"{why}; it is tried again after an hour", time.monotonic() - began)
        self._cache.write(module, report)
        return report

    async def state(self, tool: ToolInfo) -> wire.ToolState:
        """What the tool's check_fn and dynamic_schema_overrides say, asked at most every 30 s."""
        if not (tool.has_check or tool.has_overrides):
            return wire.ToolState(tool.name, available=True)
        async with self._asking.setdefault(tool.module, asyncio.Lock()):
            known = self._checked.get(tool.name)
            if known is None or time.monotonic() - known.at > CHECK_HOLDS:
                await self._ask_checks(tool)
        return self._checked[tool.name].state

    async def _ask_checks(self, tool: ToolInfo) -> None:
        module = self._modules[tool.module]
        states: dict[str, wire.ToolState] = {}
        # A module speaks for its own tools alone.
        own = {each.name for each in (await self.registry()).tools() if each.module == tool.module}
        try:
            async with self._checkers:
                params = wire.Check(module.name)
                exchange = await self._check(tool, module, params, Watch(timeout=CHECK_TIMEOUT, grace=0.2))
        except SandboxError as error:  # a policy of its own that cannot be had is no other tool's trouble
            reason = f"{error.message} ({error.hint})" if error.hint else error.message
        else:
            done = exchange.reply if exchange.cause == "answered" else None
            if isinstance(done, wire.CheckDone):
                reason, states = done.problem, {state.name: state for state in done.tools if state.name in own}
            else:
                reason = _why(exchange, f"its check took more than {CHECK_TIMEOUT:g} s")
        if reason:
            states = {tool.name: wire.ToolState(tool.name, available=False, reason=reason)}
        now = time.monotonic()
        for name in {tool.name, *states}:
            state = states.get(name) or wire.ToolState(
                name, available=False, reason="its module no longer registers it"
            )
            known = self._checked.get(name)
            yes_at = now if state.available else (known.yes_at if known else -YES_HOLDS)
            if not state.available and known is not None and now - yes_at < YES_HOLDS:
                state = known.state
            self._checked[name] = Checked(state, now, yes_at)


def _why(exchange: Exchange, too_long: str) -> str:
    """Words for a description or check that brought no answer."""
    if exchange.cause in ("timeout", "idle_timeout"):
        return too_long
    if exchange.failed is not None:
        return exchange.failed.message
    return exchange.detail or "it ended the worker that asked it"
