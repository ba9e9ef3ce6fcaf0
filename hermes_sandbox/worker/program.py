"""A program that a tool runs: what it is given, and how it is started. Here too is how a text gets to it that no
command line and no environment could hold."""

from __future__ import annotations

import _signal as signal
import fcntl
import os

from hermes_worker import limits

# What a guard lets pass: a command that ends "all pythons" does not mean its guard.
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
DEFAULTED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGIO, signal.SIGCHLD, *IGNORED)
PIPE = 64 << 10  # bytes that a pipe holds by itself
F_SETPIPE_SZ = 1031  # Python has the name from 3.10 on


class Program:
    """What to start: the program at `path`, as `argv`. `stdio`: its three descriptors, or the one of its terminal,
    whose path is `tty`. `fds`: what it finds as /proc/$PPID/fd/N, with N from `first_fd()` on. `keep`: what it leaves
    running is kept; `life`: s until it is ended, `cpu_time`: CPU s of each of its processes, None: no limit."""

    def __init__(self, path, argv, env, cwd, stdio, tty=None, fds=(), keep=False, life=None, cpu_time=None):
        self.path = path
        self.argv = argv
        self.env = env
        self.cwd = cwd
        self.stdio = tuple(stdio)
        self.tty = tty
        self.fds = tuple(fds)
        self.keep = keep
        self.life = life
        self.cpu_time = cpu_time

    def spawn(self):
        """Start it in a session of its own. Returns its pid; raises OSError."""
        os.chdir(self.cwd)
        actions: list[tuple[object, ...]] = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(self.stdio)]
        if self.tty is not None:  # opened first by a session's leader, it becomes its controlling terminal
            actions = [(os.POSIX_SPAWN_OPEN, 0, self.tty, os.O_RDWR, 0)]
            actions += [(os.POSIX_SPAWN_DUP2, 0, number) for number in (1, 2)]
        try:
            return os.posix_spawn(
                self.path, self.argv, self.env, file_actions=actions, setsid=True, setsigmask=[], setsigdef=DEFAULTED
            )
        except NotImplementedError:  # a Python that was built for a C library before glibc 2.26
            return self._fork()

    def _fork(self):
        """As `spawn`, and dearer. A program that cannot be started ends with 127."""
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                stdio = (os.open(self.tty, os.O_RDWR),) * 3 if self.tty is not None else self.stdio
                for number, fd in enumerate(stdio):
                    os.dup2(fd, number)
                for number in DEFAULTED:
                    signal.signal(number, signal.SIG_DFL)
                os.execve(self.path, self.argv, self.env)
            finally:
                os._exit(127)
        return pid


def sheet(data):
    """An open file with `data` in it, to be read once: a pipe if that holds it, since a limit on file sizes counts for
    memory files too; else such a one. Raises OSError."""
    reading, writing = os.pipe()
    try:
        if len(data) > PIPE:
            fcntl.fcntl(writing, F_SETPIPE_SZ, len(data))
        os.set_blocking(writing, False)
        if os.write(writing, data) == len(data):
            return open(reading, "rb", buffering=0)
    except OSError:
        pass  # nobody gets so large a pipe, or none more
    finally:
        os.close(writing)
    os.close(reading)
    file = _memory_file()
    try:
        left = memoryview(data)
        while left:
            left = left[file.write(left) :]
    except OSError:
        file.close()
        raise
    file.seek(0)
    return file


def _memory_file():
    try:
        return open(os.memfd_create("sheet"), "r+b", buffering=0)
    except AttributeError:  # as for `spawn`
        import tempfile

        return tempfile.TemporaryFile(buffering=0)


def first_fd():
    """The number under which a program finds the first of its `fds`."""
    return limits.private_fds()
