"""The bundled file tools in the process of the test, as the worker loads them: for what only their handlers decide.

A test of a tool in its sandbox goes through a Supervisor instead. `Tree` is a folder of files that can be compared as a
whole, since most promises of these tools are about what they leave alone.
"""

from __future__ import annotations

import importlib
import json
import os
import stat
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hermes_sandbox.worker
from hermes_sandbox.bundled import bundled

# The worker's modules know each other by the name that they have on the other side of the pipe.
sys.modules.setdefault("hermes_worker", hermes_sandbox.worker)
from hermes_worker import tools_shim  # noqa: E402

Answer = dict[str, Any]


def load() -> dict[str, Callable[[Answer], Answer]]:
    """Each file tool as a function of its arguments. It fails if a handler raises or answers with something else."""
    if "tools.file_tools" not in sys.modules:
        tools_shim.install(str(bundled("tool_modules")))
        importlib.import_module("tools.file_tools")
    entries = tools_shim.registry.entries
    return {name: _asker(entries[name].handler) for name in ("read_file", "write_file", "patch", "search_files")}


def _asker(handler: Callable[..., str]) -> Callable[[Answer], Answer]:
    def ask(args: Answer) -> Answer:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            text = handler(args, task_id="test")
        answer = json.loads(text)
        assert isinstance(answer, dict)
        assert ("error" in answer) != any(key in answer for key in ("success", "content", "total_count"))
        return answer

    return ask


class Tree:
    """The files below a folder. Paths are relative to it; contents are bytes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, files: dict[str, bytes | str]) -> None:
        for path, content in files.items():
            place = self.folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content.encode() if isinstance(content, str) else content)

    def read(self, path: str) -> bytes:
        return (self.folder / path).read_bytes()

    def mode(self, path: str) -> int:
        return stat.S_IMODE((self.folder / path).stat().st_mode)

    def state(self) -> dict[str, object]:
        """Everything below the folder: the content, mode and owner of files, where links lead, and folders."""
        found: dict[str, object] = {}
        for folder, folders, names in os.walk(self.folder):
            for name in folders + names:
                path = Path(folder, name)
                facts = path.lstat()
                key = os.path.relpath(path, self.folder)
                if path.is_symlink():
                    found[key] = path.readlink()
                elif stat.S_ISREG(facts.st_mode):
                    found[key] = (path.read_bytes(), facts.st_mode, facts.st_uid, facts.st_gid)
                else:
                    found[key] = facts.st_mode
        return found


@contextmanager
def as_plain_user() -> Iterator[None]:
    """What file permissions mean: root is nobody for a while, and others stay who they are."""
    if os.geteuid() != 0:
        yield
        return
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def applied(text: str) -> Answer:
    answer = load()["patch"]({"mode": "patch", "patch": text})
    assert answer.get("success") is True, answer
    return answer


def replaced(path: str, old: str, new: str, **more: object) -> Answer:
    answer = load()["patch"](dict({"path": path, "old_string": old, "new_string": new}, **more))
    assert answer.get("success") is True, answer
    return answer


def refused(tree: Tree, args: Answer | str, *words: str) -> str:
    """The error, which must have the words in it; and nothing at all may have changed."""
    before = tree.state()
    answer = load()["patch"]({"mode": "patch", "patch": args} if isinstance(args, str) else args)
    assert tree.state() == before, answer
    assert "error" in answer, answer
    error = str(answer["error"])
    assert not [word for word in words if word not in error], error
    return error
