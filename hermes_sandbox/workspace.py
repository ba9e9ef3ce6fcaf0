"""The folder that a task works in: the supervisor's, else a temporary one of the task's own.

Temporary folders are named after this process, so that a later one can remove them if this one is killed.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from hermes_sandbox.home import runtime_dir
from hermes_sandbox.process import owner_prefix, remove_tree


class Workspaces:
    """`fixed`: the folder of every task; None gives each its own."""

    def __init__(self, fixed: Path | None) -> None:
        self._fixed = fixed.resolve() if fixed is not None else None
        self._own: dict[str, Path] = {}

    def of(self, task_id: str) -> Path:
        if self._fixed is not None:
            return self._fixed
        if task_id not in self._own:
            self._own[task_id] = _make()
        return self._own[task_id]

    @asynccontextmanager
    async def temporary(self) -> AsyncIterator[Path]:
        """An empty folder for one request."""
        folder = _make()
        try:
            yield folder
        finally:
            await _remove(folder)

    async def close_task(self, task_id: str) -> None:
        if (folder := self._own.pop(task_id, None)) is not None:
            await _remove(folder)

    async def close(self) -> None:
        for task_id in list(self._own):
            await self.close_task(task_id)


def _make() -> Path:
    return Path(tempfile.mkdtemp(prefix=owner_prefix("workspace"), dir=runtime_dir())).resolve()


async def _remove(folder: Path) -> None:
    await asyncio.get_running_loop().run_in_executor(None, remove_tree, folder)
