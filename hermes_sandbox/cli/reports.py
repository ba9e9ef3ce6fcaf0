"""The files that `exec` writes about a run, where the command itself may have been writing.

The folder is held open from before the start, so it is the one that was meant, whatever the command makes of its path.
The text goes into a new file there, which is renamed over the name when the command is dead: a link or a FIFO that the
command put at the name is replaced, never followed or waited for.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import Any

import click


class ReportFile(click.ParamType[Any]):
    """An option's value: a file that can be written at the end. What is certain to fail fails before the start."""

    name = "file"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Report:
        path = Path(value)
        try:
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            self.fail(f"{path.parent}: {error.strerror}", param, ctx)
        if not os.access(".", os.W_OK, dir_fd=folder):
            self.fail(f"{path.parent} cannot be written", param, ctx)
        try:
            if not stat.S_ISREG(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode):
                self.fail(f"{path} is no regular file", param, ctx)
        except FileNotFoundError:
            pass
        return Report(folder, path.name)


class Report:
    def __init__(self, folder: int, name: str) -> None:
        self._folder = folder
        self._name = name

    def write(self, data: bytes) -> None:
        """Replace the file. Raises OSError."""
        temporary = f".{self._name}.{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o666, dir_fd=self._folder), "wb") as file:
            file.write(data)
        os.rename(temporary, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
