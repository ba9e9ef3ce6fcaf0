"""A guard: the process between the worker and a program, so that the program's whole tree has a name and an end.

Theory of operation
    A guard is a fork of the worker that is a child subreaper: what its program forks, daemons and new sessions
    included, stays below it and is mixed up with nobody else's. It starts the program, waits for *its* end (never for
    a pipe's), ends what is left below it, or keeps it where the policy says so, and only then says that all is gone.
    One guard is kept for programs in front and serves one after the other; each program in the background has one of
    its own, which also reads what that prints (rolling.py). In front the worker reads the pipes itself.

    The link is a socket pair of packets. The worker sends a program with its descriptors, `read` or `end GRACE`; the
    guard says what it started, what it read, and how it ended. If the worker goes, the guard reads an end of file and
    ends its tree.

    A program may kill or stop its guard: they have the same uid. Then its orphans fall to the worker, which is a
    subreaper too, knows its guards by pid, and ends every other child. Nothing waits for a guard without a limit.
"""

from __future__ import annotations

import _signal as signal
import errno
import fcntl
import os
import resource
import select
import socket
import time

from hermes_worker import kernel, leanjson, limits, tree
from hermes_worker.program import DEFAULTED, IGNORED, Program, first_fd, sheet

LONGEST_WAIT = 3600.0  # s; poll takes no more than some weeks
MAX_PACKET = 32 << 10  # bytes
MAX_FDS = 8  # that come with a program
LEAST_GRACE = 0.2  # s that a program has between TERM and KILL, however young it is
LIFE_GRACE = 2.0  # s between TERM and KILL for a program whose life is over
LOOKS = 10  # at a tree that has processes and shows none
NAMED = 20  # processes that were left running and are named
PATIENCE = 1.0  # s on top of a grace that a guard may take to end its tree; then it is killed itself


class Guard:
    """The worker's handle: the guard's pid, our end of the link, and the pid of its program."""

    def __init__(self, pid, link):
        self.pid = pid
        self.link = link
        self.program = 0

    def fileno(self):
        return self.link.fileno()

    def start(self, program):
        """Have it start a program. Raises OSError when that cannot be started."""
        words = {name: value for name, value in vars(program).items() if name not in ("stdio", "fds")}
        words["stdio"] = len(program.stdio)
        with sheet(leanjson.dumps(words).encode("ascii")) as spec:  # an environment may be larger than a packet
            socket.send_fds(self.link, [b"start"], [spec.fileno(), *program.stdio, *program.fds])
        # The program may kill or stop its guard before that has said that it started.
        started = (self.receive() if self.says_something(PATIENCE) else None) or {"pid": 0}
        if "errno" in started:
            raise OSError(started["errno"], os.strerror(started["errno"]), program.path)
        self.program = started["pid"]

    def receive(self):
        """The next packet, a dict; None when the guard is gone. To be called when there is one, or an end."""
        try:
            data = self.link.recv(MAX_PACKET)
        except ConnectionResetError:
            data = b""
        return leanjson.loads(data) if data else None

    def says_something(self, seconds):
        """Whether there is a packet, or an end, within `seconds`."""
        poll = select.poll()
        poll.register(self.link, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def say(self, text):
        try:
            self.link.send(text.encode("ascii"), socket.MSG_DONTWAIT)
        except OSError:
            pass  # it is gone, or stopped and its link is full: whoever waits for it does so with a limit

    def is_well(self):
        """Whether it is alive and waits for a program."""
        try:
            with open("/proc/%d/stat" % self.pid, "rb") as file:
                return file.read().rpartition(b")")[2].split()[0] in (b"S", b"R")
        except OSError:
            return False

    def end(self, grace):
        """Ask it to end its program's tree: TERM, then KILL after `grace` s. One that its program stopped goes on."""
        self.say("end %g" % grace)
        try:
            os.kill(self.pid, signal.SIGCONT)
        except ProcessLookupError:
            pass  # it is gone: so says its link

    def leave(self, grace):
        """Have it end its program's tree and then itself, without anybody waiting."""
        self.end(grace)
        self.link.shutdown(socket.SHUT_WR)

    def wait(self):
        """Until it is dead and reaped, after it said that its tree is."""
        self.says_something(PATIENCE)
        self.kill()

    def kill(self):
        """KILL the guard itself. If it had a tree left, that falls to the worker."""
        try:
            if os.waitpid(self.pid, os.WNOHANG)[0] == 0:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
        except ChildProcessError:
            pass  # it was reaped already

    def close(self):
        self.link.close()


def fork(output=None):
    """A new guard. `output`: the reader.Reader of its one program's output; None: it serves one program after the other
    and reads nothing."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        try:
            _Keeper(theirs, output).serve()
        finally:
            os._exit(70)
    theirs.close()
    return Guard(pid, ours)


class _Keeper:
    """The guard's own side. Lives in the fork, and leaves it only by the process's end."""

    def __init__(self, link, output):
        self.output = output
        self.program: Program | None = None
        self.until: float | None = None
        self.began = 0.0
        self.ended = False  # the program is dead, what it left running goes on, and that was told
        self.reading = False
        self.cost = 0.0, 0
        self.timed_out = False
        self.tree = tree.Tree(False)
        signal.set_wakeup_fd(-1)
        for number in DEFAULTED:
            signal.signal(number, signal.SIG_DFL)
        for number in IGNORED:  # a command that ends "all pythons" does not mean its guard
            signal.signal(number, signal.SIG_IGN)
        limits.free_cpu()
        self._close_others(link)
        kernel.set_child_subreaper()
        self.wake, wake = (_moved(fd) for fd in os.pipe())
        for fd in (self.wake, wake):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self.poll = select.poll()
        for fd in (self.link.fileno(), self.wake):
            self.poll.register(fd, select.POLLIN)
        self.condition = _condition()

    def _close_others(self, link):
        """Close everything that is the worker's: another program's stdin would else stay open here."""
        self.link = socket.socket(fileno=_moved(link.detach()))
        ours = {self.link.fileno(), *(self.output.pipes if self.output is not None else ())}
        low = 3
        for fd in (*sorted(ours), resource.getrlimit(resource.RLIMIT_NOFILE)[0]):
            os.closerange(low, fd)
            low = fd + 1

    def serve(self):
        if self.output is not None and self.output.at_once:
            self.begin_to_read()
        while True:
            if self.program is not None:
                self.look()
            for fd, _events in self.poll.poll(self.patience()):
                if fd == self.wake:
                    os.read(self.wake, 4096)
                elif fd == self.link.fileno():
                    self.obey()
                else:
                    self.read(fd)
            if self.until is not None and time.monotonic() >= self.until:
                self.timed_out = True
                self.finish(LIFE_GRACE)

    def obey(self):
        try:
            data, fds, _flags, _address = socket.recv_fds(self.link, MAX_PACKET, MAX_FDS)
        except ConnectionResetError:  # the worker is gone, and had not read all
            data, fds = b"", []
        for fd in fds:
            os.set_inheritable(fd, False)
        word, _, value = data.decode("ascii").partition(" ")
        if word == "start":
            self.start(fds)
        elif word == "read":
            self.begin_to_read()
        elif word == "end" and self.program is not None:
            self.finish(float(value))
        elif not word:  # the worker is gone, or wants no more of us
            self.tree.end()
            os._exit(0)

    def start(self, fds):
        with open(fds[0], "rb") as spec:
            words = leanjson.loads(spec.read())
        count = words.pop("stdio")
        self.program = program = Program(stdio=fds[1 : 1 + count], **words)
        for number, fd in enumerate(fds[1 + count :], first_fd()):
            os.dup2(fd, number, inheritable=False)
            os.close(fd)
        try:
            with limits.CpuLimit(program.cpu_time):  # which the program inherits; what the guard used counts for nobody
                self.tree.watched, self.tree.status = program.spawn(), None
        except Exception as error:
            self.program = None
            self.tell(errno=getattr(error, "errno", None) or errno.EINVAL)
            if self.output is not None:
                os._exit(0)
            return
        finally:
            for fd in program.stdio:
                os.close(fd)
        self.began, self.cost = time.monotonic(), _spent()
        self.until = None if program.life is None else self.began + program.life
        self.tell(pid=self.tree.watched)

    def look(self):
        """Bury the dead; when the program is among them, end or keep the rest of its tree."""
        left = self.tree.reap()
        if self.tree.status is None:
            return
        if not left or self.program is None or not self.program.keep:
            self.finish(0.0)
        elif not self.ended:
            self.ended = True
            self.tell(status=self.tree.status, kept=self.names(), **self.spent())

    def finish(self, grace):
        """End the tree and say how the program ended. A guard that has an output to read has done its part then."""
        names = self.names()
        if grace:  # what has only begun has nothing to tidy up, and loses a TERM while it starts another program
            grace = min(grace, max(LEAST_GRACE, time.monotonic() - self.began))
        self.tree.end(grace)
        if self.reading:
            for line, more in self.output.drain():
                self.tell_match(line, more)
            self.tell_news(self.output.news(at_once=True))
        self.program = self.until = None
        # One that its program gave other limits or another priority is none for the next program.
        last = self.output is not None or self.condition != _condition()
        self.tell(status=self.tree.status, left=names, timed_out=self.timed_out, gone=True, last=last, **self.spent())
        if last:
            os._exit(0)

    def spent(self):
        cpu, peak = _spent()
        return {"cpu": cpu - self.cost[0], "peak": peak}

    def names(self):
        """Of what is below, the program left out. A process that changes its parent meanwhile is missed: look again."""
        own = " ".join(self.program.argv)[: tree.SHOWN] if self.program is not None else ""
        for _ in range(LOOKS):
            if not self.tree.reap():  # which is cheaper than a look
                break
            living = [pid for pid in self.tree.living() if pid != self.tree.watched]
            if living or self.tree.status is None:
                return [tree.name_of(pid, own) for pid in living[:NAMED]]
            time.sleep(0.001)
        return []

    def patience(self):
        """ms until there is something to do without being asked; what is to be told now is told."""
        waits = [] if self.until is None else [self.until - time.monotonic()]
        if self.reading:
            self.tell_news(self.output.news())
            due = self.output.due()
            if due is not None:
                waits.append(due)
        return max(0.0, min([*waits, LONGEST_WAIT])) * 1000 + 1

    def begin_to_read(self):
        self.reading = True
        if not self.output.at_once:
            self.output.skip_news()  # the worker has shown it
        for fd in self.output.pipes:
            self.poll.register(fd, select.POLLIN)

    def read(self, fd):
        try:
            found = self.output.read(fd)
        except EOFError:
            self.poll.unregister(fd)
            return
        if found is not None:
            self.tell_match(*found)

    def tell_match(self, line, more):
        self.tell_if_there_is_room(match=line.decode("utf-8", "replace"), more=more)

    def tell_news(self, news):
        if news:
            self.tell_if_there_is_room(output=news.decode("utf-8", "replace"))

    def tell(self, **packet):
        try:
            self.link.send(leanjson.dumps(packet).encode("ascii"))
        except OSError:
            pass  # the worker is gone: the next look at the link says so

    def tell_if_there_is_room(self, **packet):
        """For what may be lost: the worker is busy, and the program must not wait for that."""
        try:
            self.link.send(leanjson.dumps(packet).encode("ascii"), socket.MSG_DONTWAIT)
        except OSError:
            pass


def _spent():
    """CPU s of the children that were waited for, and the most memory in bytes that one of them had."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def _condition():
    """What a program can change of its guard, and what the next one would inherit."""
    numbers = sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")})
    with open("/proc/self/oom_score_adj", "rb") as file:
        score = file.read()
    return (
        [resource.getrlimit(number) for number in numbers],
        os.getpriority(os.PRIO_PROCESS, 0),
        os.sched_getaffinity(0),
        score,
    )


def _moved(fd):
    """The descriptor out of the way of those that a program finds by number."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, first_fd() + MAX_FDS)
    os.close(fd)
    return moved
