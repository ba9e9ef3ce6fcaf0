"""What of the machine decides what a sandbox can do: kernel, bubblewrap, control groups, Python, id maps, programs."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from hermes_sandbox import bubblewrap, cgroups, interpreters, mounts
from hermes_sandbox.environment import SAFE_PATH
from hermes_sandbox.findings import Finding, of_error
from hermes_sandbox.policy import Policy
from hermes_sandbox.process import Spawner
from hermes_sandbox.trial import Trials

AREA = "machine"
# Since which Linux there is what; older ones have other ways, which say what they cost.
KERNEL = {
    (5, 12): "as root, files made in a sandbox cannot be given to the workspace's owner by an id map",
    (5, 14): "pids counts all processes of the user, and a group cannot be killed as one",
}
LIMITS = {
    "memory": "it is watched from inside every 50 ms",
    "pids": "it is an rlimit in the sandbox's user namespace; on tier process, and as root where a file system refuses "
    "id maps, there is none",
    "cpu_time": "it is reported from inside every 50 ms",
    "cpus": "a policy that asks for it is refused",
}
# What a program that is not there costs.
PROGRAMS = {
    "bash": "terminal uses sh, which keeps no functions from one command to the next",
    "rg": "search_files uses Python's re, which takes longer",
}
PACKAGES = {"rg": "ripgrep"}


async def look(trials: Trials, usual: Policy) -> list[Finding]:
    """`usual`: the policy of what says nothing else."""
    found: list[Finding] = []
    for name, check in _CHECKS.items():
        try:
            found += [finding async for finding in check(trials, usual)]
        except Exception as error:
            found.append(of_error(AREA, name, error))
    return found


async def _kernel(_trials: Trials, _usual: Policy) -> AsyncIterator[Finding]:
    release = os.uname().release
    numbers = tuple(map(int, re.findall(r"\d+", release)[:2]))
    lost = [what for version, what in KERNEL.items() if numbers < version]
    yield Finding(AREA, "kernel", "warn" if lost else "ok", "; ".join([f"Linux {release}", *lost]))


async def _bubblewrap(_trials: Trials, _usual: Policy) -> AsyncIterator[Finding]:
    try:
        program = bubblewrap.find()
    except Exception as error:
        install = "install the package bubblewrap, or: pip install 'hermes-sandbox[bwrap]'"
        yield of_error(AREA, "bubblewrap", error, "warn", install)
    else:
        yield Finding(AREA, "bubblewrap", "ok", f"{'.'.join(map(str, bubblewrap.version(program)))}: {program}")


async def _cgroups(_trials: Trials, _usual: Policy) -> AsyncIterator[Finding]:
    groups = await asyncio.get_running_loop().run_in_executor(None, cgroups.probe)
    have = [f"{limit} by {groups.mechanism(limit)}" for limit in LIMITS if groups.can(limit)]
    lack = [f"{limit} by none: {instead}" for limit, instead in LIMITS.items() if not groups.can(limit)]
    hint = "have a cgroup delegated: systemd-run --user --scope -p Delegate=yes hermes-sandbox ..." if lack else ""
    yield Finding(AREA, "cgroups", "warn" if lack else "ok", "; ".join([*have, *lack]), hint)


async def _python(trials: Trials, usual: Policy) -> AsyncIterator[Finding]:
    verdict = await trials.judge(Policy(tier="process", python=usual.python))
    yield _interpreter(usual, verdict.python)


def _interpreter(usual: Policy, version: str) -> Finding:
    """`version` is what a worker said of itself; "" if none started."""
    try:
        found = interpreters.find(usual.python) if usual.python else interpreters.own()
        told = f"{version or 'starts no worker'}: {found.path}"
        if not version:
            interpreters.find(str(found.path))
            return Finding(AREA, "python", "FAIL", told)
    except interpreters.NoInterpreter as error:
        return Finding(AREA, "python", "FAIL", str(error), error.hint)
    if usual.python:
        told += f", by python ({usual.sources['python']})"
    elif sys.prefix != sys.base_prefix:
        told += f", the one that the virtual environment {sys.prefix} was made of"
    if not any(found.path.is_relative_to(folder) for folder in (found.prefix, *bubblewrap.SYSTEM_FOLDERS)):
        hint = "install this Python so that its program lies in its own prefix"
        return Finding(AREA, "python", "warn", f"{told}, outside of {found.prefix}: a sandbox cannot see it", hint)
    return Finding(AREA, "python", "ok", told)


async def _id_maps(_trials: Trials, _usual: Policy) -> AsyncIterator[Finding]:
    if os.geteuid() != 0:
        return
    folder = Path.cwd()
    spawner = Spawner()  # a thread whose mounts are its own, and end with it
    try:
        await asyncio.wrap_future(spawner.run(lambda: _map(folder)))
    except mounts.MountRefused as error:
        hint = (
            "here a sandbox runs as uid 0 without capabilities, and only if cgroups hold it\n"
            "work in a folder on ext4, xfs, btrfs or tmpfs, or in one of a plain user's"
        )
        yield Finding(AREA, "id maps", "warn", str(error.strerror), hint)
    except Exception as error:
        yield of_error(AREA, "id maps", error, "warn")
    else:
        yield Finding(AREA, "id maps", "ok", f"the file system of {folder} takes them")
    finally:
        await asyncio.get_running_loop().run_in_executor(None, spawner.close)


def _map(folder: Path) -> None:
    stage = mounts.Stage()
    stage.enter()
    owner, drop = folder.stat(), mounts.allocate_drop_id()
    try:
        stage.release(stage.idmapped(folder, (owner.st_uid, owner.st_gid), (drop, drop)))
    finally:
        stage.forget_maps()


async def _programs(_trials: Trials, _usual: Policy) -> AsyncIterator[Finding]:
    for program, lost in PROGRAMS.items():
        path = shutil.which(program, path=SAFE_PATH)
        if path is not None:
            yield Finding(AREA, program, "ok", path)
            continue
        elsewhere = shutil.which(program)
        where = f"{elsewhere} is not in sight of a sandbox" if elsewhere else "not there"
        hint = f"install the package {PACKAGES.get(program, program)}"
        yield Finding(AREA, program, "warn", f"{where}: {lost}", hint)


_CHECKS: dict[str, Callable[[Trials, Policy], AsyncIterator[Finding]]] = {
    "kernel": _kernel,
    "bubblewrap": _bubblewrap,
    "cgroups": _cgroups,
    "python": _python,
    "id maps": _id_maps,
    "programs": _programs,
}
