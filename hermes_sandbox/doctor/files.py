"""The operator's files: who may read and write them, and what in them has no effect here."""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from hermes_sandbox.config import Config
from hermes_sandbox.findings import Finding, of_error
from hermes_sandbox.hermes_config import SECTIONS

AREA = "files"
# Whoever writes these decides what tools there are and what they may do.
GRANTING = ("", "tools", "toolsets.toml", "config.yaml", "state.json", ".env")

FOLDERS = {"tools": "no tool of yours is found", "cache": "tools are described anew at each start"}


async def look(home: Path, config: Config | None) -> list[Finding]:
    if config is None:
        return list(_home(home))
    return [*_home(home), *_configuration(config), *_secrets(home / ".env", config)]


def _home(home: Path) -> Iterator[Finding]:
    try:
        found = home.stat()
    except FileNotFoundError:
        yield Finding(AREA, str(home), "ok", "is not there: nothing of yours is configured")
        return
    except OSError as error:
        yield of_error(AREA, str(home), error, hint="set HERMES_HOME to a folder of yours")
        return
    if not stat.S_ISDIR(found.st_mode):
        yield Finding(AREA, str(home), "FAIL", "is no folder", "set HERMES_HOME to a folder of yours")
        return
    if not os.access(home, os.R_OK | os.X_OK):
        yield Finding(AREA, str(home), "FAIL", "cannot be read", f"chmod u+rx {home}")
        return
    if not os.access(home, os.W_OK | os.X_OK):
        message = "you cannot write it: tools are described anew at each start, and cannot be switched on or off"
        yield Finding(AREA, str(home), "warn", message, f"chmod u+wx {home}, or set HERMES_HOME")
    yield from _folders(home)
    yield from _writers(home)


def _folders(home: Path) -> Iterator[Finding]:
    for name, lost in FOLDERS.items():
        if (path := home / name).exists() and not path.is_dir():
            yield Finding(AREA, str(path), "warn", f"is no folder: {lost}", f"move it away: mv {path} {path}.old")


def _writers(home: Path) -> Iterator[Finding]:
    places = [path for name in GRANTING if (path := home / name).exists()]
    places += sorted(path for path in (home / "tools").glob("*.py") if path.is_file())
    loose = [path for path in places if path.stat().st_mode & 0o022]
    foreign = [path for path in places if path.stat().st_uid not in (os.geteuid(), 0)]
    for path in loose:
        yield Finding(AREA, str(path), "warn", "others may write it, and so grant to tools", f"chmod go-w {path}")
    for path in foreign:
        owner = path.stat().st_uid
        yield Finding(
            AREA, str(path), "warn", f"belongs to uid {owner}, who may change it", f"chown {os.geteuid()} {path}"
        )
    if not loose and not foreign:
        yield Finding(AREA, str(home), "ok", "only you may write what is configured there")


def _configuration(config: Config) -> Iterator[Finding]:
    yield Finding(
        AREA, "configuration", "ok", f"sound: {len(config.toolsets)} toolsets, {len(config.tools)} tools named"
    )
    for key, why in config.without_effect.items():
        yield Finding(
            AREA, f"config.yaml: {key}", "warn", f"has no effect: {why}", "take it out, or leave it for Hermes"
        )
    if config.cwd and not Path(config.cwd).expanduser().is_dir():
        hint = "name a folder, or leave it out: then each task has one of its own"
        yield Finding(AREA, "config.yaml: terminal.cwd", "FAIL", f"{config.cwd} is no folder", hint)
    for name in config.foreign:
        if near := difflib.get_close_matches(name, SECTIONS, n=1):
            yield Finding(AREA, f"config.yaml: {name}", "warn", "is no section of ours", f"did you mean {near[0]}?")
    if config.foreign:
        yield Finding(AREA, "config.yaml", "ok", f"sections that are left to Hermes: {', '.join(config.foreign)}")


def _secrets(path: Path, config: Config) -> Iterator[Finding]:
    try:
        config.secrets.get("")  # whatever is asked for: the file is read
    except Exception as error:
        yield of_error(AREA, str(path), error)
        return
    if path.exists():
        yield Finding(AREA, str(path), "ok", "can be read by you alone, or holds no value")
