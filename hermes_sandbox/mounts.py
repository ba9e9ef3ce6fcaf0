"""As root: shows a sandbox its sources under another owner, in a mount namespace that nobody else is in.

Theory of operation
    A `Stage` belongs to one thread, which gets a mount namespace of its own (a thread may, alone) with a small tmpfs in
    it. Every source that a sandbox is to see is attached there under a plain name, so the uid that runs the sandbox
    need not pass the 0700 folders on the way to it. A workspace is attached *id-mapped*: what its owner owns looks as
    if the throw-away uid owned it, what that uid makes lands as the owner's, and every other id stays what it is.
    Set-uid bits and device files have no force there.

    Nothing of this shows in the host's mount table, and when the thread and the sandboxes that it started have ended
    all is gone. The other way round the namespace is a *slave* of the host's: a disk that is mounted later is there for
    later sandboxes, and one that is unmounted is not held. Together with its mounts the thread gets a working directory
    of its own, so what it is given are absolute paths.

    Sources are attached with all that is mounted below them. Without it a sandbox would see, and fill, the folder that
    the mount hides. One file system below that refuses an id map therefore refuses for the whole.

    An id map comes as a user namespace. It is made by a helper process that is in it and does nothing else (cat,
    waiting for its end of file), since forking a process that has threads is not safe, and a vfork of a small program
    takes some. The descriptor is kept until `forget_maps`. The one that the next sandbox is going to want is made ahead
    (`prepare`), while another boots.

Source: mount_setattr(2), open_tree(2), user_namespaces(7). Needs Linux 5.12 and a file system that takes id maps: ext4,
xfs, btrfs and tmpfs do, overlayfs does not.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import secrets
import stat
import struct
import subprocess
from pathlib import Path

from hermes_sandbox.errors import Refused

STAGE = Path("/run/hermes-sandbox")
# Above what systemd gives containers (to 1,879,048,191) and sssd maps directory users to (to 2,000,200,000), below what
# systemd keeps for foreign files (from 2,147,352,576). Two supervisors begin at places of their own.
FIRST_DROP_ID, DROP_IDS = 2_001_000_000, 140_000_000
MAX_ID = 0xFFFFFFFF
TIER_HINT = "run as a plain user, or use --tier process"

_CLONE_NEWNS = 0x20000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_SLAVE = 2, 4, 8, 4096, 16384, 1 << 19
_MNT_DETACH = 2
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV, _MOUNT_ATTR_IDMAP = 2, 4, 0x100000
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_MOUNT_SETATTR = 428, 429, 442  # the same on every architecture

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_counter = itertools.count(secrets.randbelow(DROP_IDS))


class MountRefused(OSError):
    """The file system, or a kernel before 5.12, does not take an id map: another way is needed."""


def allocate_drop_id() -> int:
    """A uid (and gid) that belongs to nobody. A new one each time: the kernel counts processes by it, and what one
    sandbox may signal or trace is no other's."""
    return FIRST_DROP_ID + next(_counter) % DROP_IDS


def _check(result: int, what: str, path: object = None) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}", str(path) if path is not None else None)
    return result


def _syscall(number: int, *arguments: object) -> int:
    return int(_libc.syscall(ctypes.c_long(number), *arguments))


class Stage:
    """Make and use it on one thread only. `enter` first; everything ends with the thread."""

    def __init__(self) -> None:
        self._names = itertools.count(1)
        self._maps: dict[tuple[int, int, int, int], int] = {}
        self._ready: int | None = None  # a drop id whose map is made already

    def enter(self) -> None:
        """Give this thread a mount namespace with an empty stage. Raises Refused where root may not."""
        try:
            STAGE.mkdir(mode=0o755, exist_ok=True)
            found = STAGE.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0 or found.st_mode & 0o022:
                raise Refused(f"{STAGE} is not a folder that only root may write", hint=f"remove it: rm -r {STAGE}")
            _check(_libc.unshare(_CLONE_NEWNS), "unshare")
            self._mount(None, "/", None, _MS_REC | _MS_SLAVE, None)
            flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
            self._mount(b"hermes-sandbox", str(STAGE), b"tmpfs", flags, b"mode=0755,size=256k")
        except OSError as error:
            raise Refused(f"root may not mount here: {error.strerror}", hint=TIER_HINT) from error

    @staticmethod
    def _mount(source: bytes | None, target: str, kind: bytes | None, flags: int, data: bytes | None) -> None:
        _check(_libc.mount(source, os.fsencode(target), kind, ctypes.c_ulong(flags), data), "mount", target)

    def _place(self, is_folder: bool) -> Path:
        """An empty file or folder on the stage to attach a source to."""
        place = STAGE / str(next(self._names))
        if is_folder:
            place.mkdir(mode=0o755)
        else:
            place.touch(mode=0o644)
        return place

    def bind(self, source: Path) -> Path:
        """Attach `source`, a folder or a file, as it is. Returns where. Raises OSError when it is not there."""
        place = self._place(stat.S_ISDIR(source.stat().st_mode))
        try:
            self._mount(os.fsencode(source), str(place), None, _MS_BIND | _MS_REC, None)
        except OSError:
            _remove(place)
            raise
        return place

    def idmapped(self, source: Path, owner: tuple[int, int], drop: tuple[int, int]) -> Path:
        """Attach `source`, a folder or a file, so that what `owner` (uid, gid) owns shows as `drop`'s. Returns where.

        Raises MountRefused when an id map cannot be had for it, OSError when it is not there."""
        flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE
        tree = _syscall(_SYS_OPEN_TREE, _AT_FDCWD, os.fsencode(source), flags)
        if tree < 0 and ctypes.get_errno() == errno.ENOSYS:
            raise MountRefused(errno.ENOSYS, f"an id map for {source}: this kernel is too old")
        _check(tree, "open_tree", source)
        try:
            flags = _MOUNT_ATTR_IDMAP | _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV
            attributes = struct.pack("=QQQQ", flags, 0, 0, self._map(owner, drop))
            depth = _AT_EMPTY_PATH | _AT_RECURSIVE
            if _syscall(_SYS_MOUNT_SETATTR, tree, b"", depth, attributes, len(attributes)) < 0:
                number = ctypes.get_errno()
                raise MountRefused(number, f"an id map for {source}: {os.strerror(number)}")
            place = self._place(stat.S_ISDIR(os.fstat(tree).st_mode))
            moved = _syscall(_SYS_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(place), _MOVE_MOUNT_F_EMPTY_PATH)
            if moved < 0:
                number = ctypes.get_errno()
                _remove(place)
                raise OSError(number, f"move_mount: {os.strerror(number)}", str(place))
        finally:
            os.close(tree)
        return place

    def release(self, place: Path) -> None:
        """Take down what was attached at `place`. Sandboxes that have it keep it."""
        _check(_libc.umount2(os.fsencode(place), _MNT_DETACH), "umount", place)
        _remove(place)

    def prepare(self) -> None:
        """Make ahead what the next sandbox with a workspace of root's needs. Raises Refused as `idmapped`."""
        if self._ready is None:
            drop = allocate_drop_id()
            self._map((0, 0), (drop, drop))
            self._ready = drop

    def drop_id(self) -> int:
        """As `allocate_drop_id`, but the prepared one if there is one."""
        drop, self._ready = self._ready, None
        return allocate_drop_id() if drop is None else drop

    def forget_maps(self) -> None:
        """Close the id maps, without the prepared one; mounts that use them keep them."""
        for key in [key for key in self._maps if self._ready not in key[2:]]:
            os.close(self._maps.pop(key))

    def close(self) -> None:
        self._ready = None
        self.forget_maps()

    def _map(self, owner: tuple[int, int], drop: tuple[int, int]) -> int:
        """A descriptor of a user namespace in which the two have changed places."""
        key = (*owner, *drop)
        if key not in self._maps:
            self._maps[key] = _user_namespace(_swap(owner[0], drop[0]), _swap(owner[1], drop[1]))
        return self._maps[key]


def _swap(owner: int, drop: int) -> str:
    """An id map: `owner` on disk shows as `drop`, every other id as itself. `drop`'s own files, if any, do not show."""
    low, high = sorted((owner, drop))
    gaps = [(0, low), (low + 1, high), (high + 1, MAX_ID)]
    lines = [(owner, drop, 1)] + [(begin, begin, end - begin) for begin, end in gaps if end > begin]
    return "".join(f"{inside} {outside} {count}\n" for inside, outside, count in lines)


def _remove(place: Path) -> None:
    if place.is_dir():
        place.rmdir()
    else:
        place.unlink()


def _user_namespace(uid_map: str, gid_map: str) -> int:
    refused = Refused("user namespaces are refused here, or there is no unshare(1)", hint=TIER_HINT)
    try:
        helper = subprocess.Popen(
            ["unshare", "--user", "cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.defpath},
            bufsize=0,
        )
    except OSError as error:
        raise refused from error
    with helper:  # closes the pipes, which ends it, and reaps it
        assert helper.stdin is not None
        assert helper.stdout is not None
        try:
            helper.stdin.write(b"1")  # cat gives it back when it runs, which is when its namespace is there
        except BrokenPipeError:
            pass  # it has ended: so will what we read
        if helper.stdout.read(1) != b"1":
            raise refused
        for name, text in (("uid_map", uid_map), ("gid_map", gid_map)):
            with open(f"/proc/{helper.pid}/{name}", "w", encoding="ascii") as file:
                file.write(text)
        return os.open(f"/proc/{helper.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
