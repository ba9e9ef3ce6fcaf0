"""Starts, signals and reaps local processes. Beside short helpers (bubblewrap.py, mounts.py) no other file does.

Theory of operation
    A `Spawner` is one thread that starts every process of a supervisor and lives as long as it does: bubblewrap's
    die-with-parent fires when the *thread* that started it ends, and as root the thread has a mount namespace of its
    own (mounts.py), which no other thread may be put into. A `LocalProcess` is one process with three pipes on an event
    loop. It knows a second process, its `inner` one, when the first is only bubblewrap's monitor: the pid 1 of the
    sandbox. Both are held by pidfd from the moment they are known, so that no signal can reach a stranger who took over
    a pid, and so that an end is what the kernel says: a pid namespace's pid 1 is only reported dead when all the rest
    is.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import fcntl
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hermes_sandbox.errors import RunnerFailed

T = TypeVar("T")

READ_SIZE = 256 << 10  # bytes of one read; the kernel rarely has more for us than a pipe holds
PIPE_SIZE = 1 << 20  # what an unprivileged process may ask for by default; fewer wake-ups for large frames
KILL_PATIENCE = 5.0  # s that a SIGKILL may take until the kernel confirms it: memory has to be given back


class Spawner:
    """The thread that starts processes. `run` calls a function on it; `close` ends it, and all that hangs on it."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], concurrent.futures.Future[Any]] | None]
        self._jobs = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="hermes-sandbox-spawner", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, future = job
            if not future.set_running_or_notify_cancel():
                continue  # nobody waits for it any more; from here on a cancel comes too late
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

    def run(self, function: Callable[[], T]) -> concurrent.futures.Future[T]:
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._jobs.put((function, future))
        return future

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()


class Child:
    """A started process and our ends of its pipes; made on the spawner's thread by `start`."""

    def __init__(self, popen: subprocess.Popen[bytes], pidfd: int, fds: tuple[int, int, int]) -> None:
        self.popen = popen
        self.pidfd = pidfd
        self.stdin, self.stdout, self.stderr = fds


def start(
    argv: Sequence[str], *, user: int | None = None, group: int | None = None, pass_fds: Sequence[int] = ()
) -> Child:
    """Start `argv` with an empty environment and three pipes. Raises RunnerFailed when it cannot be started.

    With `user` and `group` it runs under those ids, without supplementary groups. The environment is empty because
    /proc/PID/environ of a sandbox's first process shows it to the sandbox (prototypes: bubblewrap as pid 1).
    """
    ours, theirs = [], []
    ids: dict[str, Any] = {} if user is None else {"user": user, "group": group, "extra_groups": []}
    try:
        for index in range(3):
            reading, writing = os.pipe2(os.O_CLOEXEC)
            ours.append(writing if index == 0 else reading)
            theirs.append(reading if index == 0 else writing)
        popen = subprocess.Popen(
            argv,
            stdin=theirs[0],
            stdout=theirs[1],
            stderr=theirs[2],
            env={},
            pass_fds=pass_fds,
            start_new_session=True,
            **ids,
        )
        pidfd = _held(popen)
    except OSError as error:
        for fd in ours:
            os.close(fd)
        raise RunnerFailed(f"cannot start {argv[0]}: {error.strerror}") from error
    finally:
        for fd in theirs:
            os.close(fd)
    for fd in ours:
        os.set_blocking(fd, False)
        _widen(fd)
    return Child(popen, pidfd, (ours[0], ours[1], ours[2]))


def _held(popen: subprocess.Popen[bytes]) -> int:
    """A pidfd of a child that has just been started; one that cannot be had is the child's end."""
    try:
        return os.pidfd_open(popen.pid)
    except OSError:
        popen.kill()
        popen.wait()
        raise


def _widen(pipe: int) -> None:
    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
    except OSError:
        pass  # the user's share of pipe memory is used up: the default size works as well, only slower


def remove_tree(path: os.PathLike[str]) -> None:
    """Remove a folder that a tool could fill: however deep it nests, and whatever modes it left. What cannot be removed
    stays, and is no error."""
    for command in (["rm", "-rf", "--"], ["chmod", "-R", "u+rwX", "--"], ["rm", "-rf", "--"]):
        if os.path.lexists(path):
            env = {"PATH": os.defpath}  # ours may be anything
            subprocess.run([*command, os.fspath(path)], stderr=subprocess.DEVNULL, check=False, env=env)


def owner_prefix(kind: str) -> str:
    """What the name of a temporary folder of this process begins with: whose it is, for `is_orphaned`."""
    return f"{kind}-{os.getpid()}-{start_time(os.getpid())}-"


def is_orphaned(name: str) -> bool:
    """Whether the process that a folder was named after is gone. A pid that was taken again has another start time."""
    _, pid, began, *_rest = [*name.split("-"), "", "", ""]
    return pid.isdigit() and str(start_time(int(pid))) != began


def start_time(pid: int) -> int | None:
    """When `pid` began, in clock ticks since boot: with the pid it names one process for ever. None: no such
    process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return None


def children(pid: int) -> list[int]:
    """The pids of the direct children of `pid`."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    except FileNotFoundError:
        pass
    return found


def descendants(pid: int) -> list[int]:
    """The pids of the whole tree below `pid`, as it is now."""
    found: list[int] = []
    todo = [pid]
    while todo:
        below = children(todo.pop())
        found += below
        todo += below
    return found


class LocalProcess:
    """A child on an event loop, read from the moment of `attach`."""

    def __init__(self, child: Child, *, has_inner: bool) -> None:
        self.child = child
        self.has_inner = has_inner
        self.inner_pidfd: int | None = None
        self.exited = asyncio.Event()
        self._inner_gone = asyncio.Event()
        self.returncode: int | None = None
        self._loop = asyncio.get_running_loop()
        self._unsent = bytearray()
        self._space = memoryview(bytearray(READ_SIZE))  # kept: a new buffer of this size is a mmap for each read
        self._open_ends = {child.stdout, child.stderr}
        self._writing = False

    @property
    def pid(self) -> int:
        return self.child.popen.pid

    def attach(self, on_stdout: Callable[[bytes], None], on_stderr: Callable[[bytes], None]) -> None:
        """Begin to read. Each callback gets what came, and b"" at the end of its pipe."""
        self._loop.add_reader(self.child.stdout, self._read, self.child.stdout, on_stdout)
        self._loop.add_reader(self.child.stderr, self._read, self.child.stderr, on_stderr)
        self._on_stdout = on_stdout
        self._loop.add_reader(self.child.pidfd, self._reap)

    def _read(self, fd: int, callback: Callable[[bytes], None]) -> None:
        try:
            data = bytes(self._space[: os.readv(fd, [self._space])])
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(fd)
            self._open_ends.discard(fd)
        callback(data)

    def pause(self) -> None:
        """Stop reading stdout: the pipe fills, and the writer waits."""
        self._loop.remove_reader(self.child.stdout)

    def resume(self) -> None:
        if self.child.stdout in self._open_ends:
            self._loop.add_reader(self.child.stdout, self._read, self.child.stdout, self._on_stdout)

    def send(self, data: bytes) -> None:
        """Write to stdin; what does not fit now is kept and written later. A closed pipe is no error: the end is seen
        elsewhere, with its reason."""
        if not self._unsent:
            try:
                data = data[os.write(self.child.stdin, data) :]
            except BlockingIOError:
                pass
            except OSError:
                return
        if data:
            self._unsent += data
            self._watch_writable(True)

    def _flush(self) -> None:
        try:
            del self._unsent[: os.write(self.child.stdin, memoryview(self._unsent)[:READ_SIZE])]
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()
        if not self._unsent:
            self._watch_writable(False)

    def _watch_writable(self, watch: bool) -> None:
        if watch is not self._writing:
            self._writing = watch
            if watch:
                self._loop.add_writer(self.child.stdin, self._flush)
            else:
                self._loop.remove_writer(self.child.stdin)

    def close_stdin(self) -> None:
        """Hang up: init ends everything inside. Safe to call twice."""
        if self.child.stdin >= 0:
            self._watch_writable(False)
            self._unsent.clear()
            os.close(self.child.stdin)
            self.child.stdin = -1

    def find_inner(self) -> int | None:
        """Hold the process inside by pidfd; its pid. To be called while it is known to be alive, after hello."""
        if self.has_inner and self.inner_pidfd is None:
            for pid in children(self.pid):
                try:
                    self.inner_pidfd = os.pidfd_open(pid)
                except ProcessLookupError:  # it ended just now: its pipes say so
                    return None
                self._loop.add_reader(self.inner_pidfd, self._inner_ended, self.inner_pidfd)
                return pid
        return None

    def _reap(self) -> None:
        if self.child.popen.poll() is not None:
            self._loop.remove_reader(self.child.pidfd)
            self.returncode = self.child.popen.returncode
            self.exited.set()

    async def wait(self, seconds: float) -> bool:
        """Whether the process, and with it all that its pid namespace held, is gone within `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self.exited.wait()
                if self.inner_pidfd is not None:
                    await self._inner_gone.wait()
        except TimeoutError:
            return False
        return True

    def _inner_ended(self, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        self._inner_gone.set()

    async def kill(self) -> bool:
        """KILL, from outside, whatever the process and its tree do. True when the kernel says that nothing is left."""
        if self.has_inner:
            self._signal(self.inner_pidfd if self.inner_pidfd is not None else self.child.pidfd)
        else:
            _kill_tree(self.pid)
            self._signal(self.child.pidfd)
        return await self.wait(KILL_PATIENCE)

    @staticmethod
    def _signal(pidfd: int) -> None:
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has ended by itself

    def close_all(self) -> None:
        """Give back the descriptors. The process must have ended."""
        self.close_stdin()
        for fd in (self.child.stdout, self.child.stderr, self.child.pidfd):
            self._loop.remove_reader(fd)
            os.close(fd)
        if self.inner_pidfd is not None:
            self._loop.remove_reader(self.inner_pidfd)
            os.close(self.inner_pidfd)
        self._open_ends.clear()


def _kill_tree(pid: int) -> None:
    """KILL what is below `pid` until a look finds nothing new: where no pid namespace does it, and init did not."""
    until = time.monotonic() + 1.0
    while (below := descendants(pid)) and time.monotonic() < until:
        for child in below:
            try:
                os.kill(child, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        time.sleep(0.001)
        if not [child for child in descendants(pid) if child not in below]:
            return
