"""Programs that tools run, in front and in the background, each behind a guard of its own (guard.py).

Theory of operation
    A program *in front* belongs to the call: `run` stays with it, passes on what it prints, ends it when its time is
    over, and returns when its tree is dead. What it prints is passed on in summary: enough for the idle clock, the
    output limit and the tails of a record, however much there is.

    A program *in the background* outlives its call, in the worker's own life; background.py knows it from then on.
    One that was in front, and left something running that is to be kept, moves there with its guard.

    Tool code reaches all of this as `tools.sandbox` (tools_shim.py).
"""

from __future__ import annotations

import _signal as signal
import binascii
import errno
import fcntl
import os
import select
import struct
import termios
import time

from hermes_worker import guard, wire
from hermes_worker.background import Background, decoded
from hermes_worker.channel import undisturbed
from hermes_worker.program import IGNORED, Program, first_fd, sheet
from hermes_worker.reader import FULL_PIPE, Reader
from hermes_worker.rolling import Rolling

KEPT_HEAD, KEPT_TAIL = 20_000, 200_000  # bytes of a program's output, both streams in the order of their coming
STREAM_HEAD, STREAM_TAIL = 4_000, 6_000  # bytes of each stream by itself
SUMMARY_PAUSE = 0.05  # s between two reports of what a program in front prints
SUMMARY_TAIL = 16 << 10  # bytes of a report
MARGIN = 0.2  # s before the call's deadline at which a program in front that is over its time is killed


class Finished:
    """How a program in front ended. `status`: as `wait` gives it, None when its guard was killed. `left`: the names of
    what it left running and was ended; `process`: the background process that it became; `extra`: what came over each
    further pipe, None where that was too much. `output` has both streams."""

    def __init__(self):
        self.status = None
        self.timed_out = False
        self.left = []
        self.process = None
        self.output = Rolling(KEPT_HEAD, KEPT_TAIL)
        self.streams = {"stdout": Rolling(STREAM_HEAD, STREAM_TAIL), "stderr": Rolling(STREAM_HEAD, STREAM_TAIL)}
        self.extra = {}


class Summary:
    """Tells the supervisor what a program in front prints: its latest bytes, and how many came before them."""

    def __init__(self, channel, request):
        self.channel = channel
        self.request = request
        self.latest = {"stdout": b"", "stderr": b""}
        self.skipped = {"stdout": 0, "stderr": 0}
        self.next_time = 0.0

    def add(self, stream, data):
        whole = self.latest[stream] + data
        self.latest[stream] = whole[-SUMMARY_TAIL:]
        self.skipped[stream] += len(whole) - len(self.latest[stream])
        if time.monotonic() >= self.next_time:
            self.send()

    def due(self):
        """s until there is something to send; None if there is nothing."""
        return max(0.0, self.next_time - time.monotonic()) if any(self.latest.values()) else None

    def send(self):
        self.next_time = time.monotonic() + SUMMARY_PAUSE
        for stream, latest in self.latest.items():
            if latest:
                text = binascii.b2a_base64(latest, newline=False).decode("ascii")
                fields = {"id": self.request, "stream": stream, "data": text, "skipped": self.skipped[stream]}
                self.channel.send(wire.OUTPUT, wire.Output, **fields)
                self.latest[stream], self.skipped[stream] = b"", 0


class Foreground:
    """One run of a program in front. `pipes`: descriptor to read -> "stdout", "stderr", or a name of the caller's;
    `most`: of those, how many bytes are kept."""

    def __init__(self, programs, running, pipes, most, done):
        self.programs = programs
        self.channel = programs.worker.channel
        self.guard = running
        self.pipes = pipes
        self.most = most
        self.done = done
        self.summary = Summary(self.channel, programs.call.request)
        self.end = None  # the guard's last packet on it

    def run(self, timeout):
        """Stay with it to its end; end it after `timeout` s, None: when the call ends. A cancel of the call gets
        through where it waits, and nowhere else."""
        # Of two pipes that became readable it names the one first that was so first: the order of what was printed,
        # where it can be told.
        with select.epoll() as self.poll:
            for fd in (self.guard.fileno(), *self.pipes, *self.programs.background.links()):
                self.poll.register(fd, select.EPOLLIN)
            self._follow(None if timeout is None else time.monotonic() + timeout)
        self.drain()
        self.summary.send()

    def _follow(self, until):
        while self.end is None:
            waits = [self.summary.due(), None if until is None else max(0.0, until - time.monotonic())]
            for fd, _events in self.channel.wait(
                self.poll, min((each for each in waits if each is not None), default=None)
            ):
                self.take(fd)
            if self.summary.due() == 0.0:
                self.summary.send()
            if until is not None and time.monotonic() >= until and self.end is None:
                until = self._hurry()

    def _hurry(self):
        """Its time is over: ask its guard to end it, then end the guard. Returns when to come back."""
        if self.done.timed_out:
            self.guard.kill()
            return time.monotonic() + guard.PATIENCE
        self.done.timed_out = True
        call = self.programs.call
        grace = min(call.grace, max(MARGIN, call.remaining() - MARGIN))
        self.guard.end(grace)
        return time.monotonic() + grace + guard.PATIENCE

    def take(self, fd):
        """Something is there on a descriptor."""
        if fd == self.guard.fileno():
            packet = self.guard.receive()
            if packet is None or not {"gone", "kept", "errno"}.isdisjoint(packet):
                self.end = packet or {}
                self.done.status = self.end.get("status")
                self.done.left = self.end.get("kept") or self.end.get("left", [])
        elif fd not in self.pipes:
            self.programs.background.hear(fd)  # a link that is over is closed, and with that out of the poll
        elif self.read(fd) == b"":
            self.poll.unregister(fd)

    def read(self, fd):
        """One read's worth; b"" at the end of the pipe, None if nothing is there."""
        try:
            data = os.read(fd, wire.CHUNK)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EIO:  # a terminal that nobody holds open any more
                raise
            return b""
        name = self.pipes[fd]
        if name in self.done.streams:
            self.done.output.add(data)
            self.done.streams[name].add(data)
            self.summary.add(name, data)
        elif self.done.extra[name] is not None:
            self.done.extra[name] += data
            if len(self.done.extra[name]) > self.most[name]:
                self.done.extra[name] = None
        return data

    def drain(self):
        """What is in the pipes now, without waiting: somebody may hold them open for ever."""
        for fd in self.pipes:
            os.set_blocking(fd, False)
            left = FULL_PIPE
            while left > 0 and (data := self.read(fd)):
                left -= len(data)


class Call:
    """What a handler may know of the call that it serves. `grace` in s; `stays`: whether the worker lives on after it;
    `keep`: whether what it leaves running is kept."""

    def __init__(self, request, params):
        self.request = request
        self.until = time.monotonic() + params["timeout"]
        self.grace = params["grace"]
        self.stays = params["stays"]
        self.keep = params["children"] == "keep" and self.stays
        self.cpu_time = params.get("cpu_time")

    def remaining(self):
        """s until the call's deadline."""
        return self.until - time.monotonic()


class Programs:
    """The programs of one worker. `call`: the one that is served; `last_status`: of its last program in front; `cpu`
    and `peak`: what these used, in s and bytes."""

    call: Call
    first_fd = staticmethod(first_fd)
    sheet = staticmethod(sheet)

    def __init__(self, worker):
        self.worker = worker
        self.background = Background(worker)
        for number in IGNORED:  # caught, not ignored: what the worker starts would inherit that
            signal.signal(number, lambda *_: None)
        self.last_status = None
        self.cpu, self.peak = 0.0, 0
        self._front: guard.Guard | None = None  # the guard that is kept for programs in front
        self._abandoned = []  # guards whose call was cancelled: the sweep ends them

    def begin(self, request, params):
        self.call = Call(request, params)
        self.last_status = None
        self.cpu, self.peak = 0.0, 0

    def end(self):
        """After the sweep of a call. Returns how its last program in front ended, as fields of wire.CallDone."""
        while self._abandoned:
            self._abandoned.pop().close()
        code, number = decoded(self.last_status)
        return {name: value for name, value in (("code", code), ("signal", number)) if value is not None}

    def abandoned(self):
        """How many guards of this call the sweep finds alive, at most."""
        return len(self._abandoned)

    def wait(self, channel):
        """Until the supervisor has said something; meanwhile what guards say is passed on."""
        while self.background.links() and not channel.frames:
            poll = select.poll()
            for fd in (channel.reading, *self.background.links()):
                poll.register(fd, select.POLLIN)
            ready = [fd for fd, _events in poll.poll()]
            if channel.reading in ready:
                return
            for fd in ready:
                self.background.hear(fd)

    @undisturbed
    def run(self, path, argv, env, cwd, command, timeout=None, size=None, fds=(), pipes=()):
        """Run a program in front, without input, for at most `timeout` s. `size`: (rows, columns) of a terminal for it,
        None: pipes. `fds`: what it finds as /proc/$PPID/fd/N; `pipes`: (descriptor, name, most bytes) of further pipes
        to read; `command`: its name, if it goes on in the background. Raises OSError when it cannot be started."""
        done = Finished()
        done.extra = {name: b"" for _fd, name, _most in pipes}
        sources, stdio, tty, _stdin = _plumbing(size, stdin=False)
        try:
            front = self._front_guard(tuple(sources), done.output)
            try:
                program = Program(
                    path, argv, env, cwd, stdio, tty, fds, front is not self._front, cpu_time=self.call.cpu_time
                )
                front.start(program)
            except OSError:
                if front is not self._front:
                    front.kill()
                    front.close()
                raise
            finally:
                for fd in stdio:
                    os.close(fd)
            followed = {**sources, **{fd: name for fd, name, _most in pipes}}
            most = {name: bound for _fd, name, bound in pipes}
            self._stay(Foreground(self, front, followed, most, done), command, timeout)
        finally:
            for fd in sources:
                os.close(fd)
        return done

    def _front_guard(self, sources, output):
        """The guard of programs in front; one of its own for a program that may leave something running."""
        if self.call.keep and len(self.background.running()) < self.background.most:
            return guard.fork(Reader(sources, output, 1.0, at_once=False))
        if self._front is not None and not self._front.is_well():
            self._front.kill()
            self._front.close()
            self._front = None
        if self._front is None:
            self._front = guard.fork()
        return self._front

    def _stay(self, front, command, timeout):
        running = front.guard
        self.background.spare(running)
        try:
            front.run(timeout)
        except BaseException as error:
            # It ends its program in the grace that the call's end has, and then itself; the sweep sees to that.
            running.leave(max(0.0, getattr(error, "until", 0.0) - time.monotonic()))
            self._abandoned.append(running)
            self._front = None if running is self._front else self._front
            raise
        finally:
            self.background.spare(self._front)
        self.last_status = front.done.status
        self.cpu += front.end.get("cpu", 0.0)
        self.peak = max(self.peak, front.end.get("peak", 0))
        if "kept" in front.end:
            running.say("read")
            front.done.process = self.background.add(command, running, None, front.done.output)
            front.done.process.status = front.done.status
        elif front.end.get("last", True):
            self._front = None if running is self._front else self._front
            self.background.spare(self._front)
            running.wait()
            running.close()
            if "gone" not in front.end:  # it was killed: what it had left are orphans
                self.worker.tree.end()

    @undisturbed
    def start(
        self, path, argv, env, cwd, command, size=None, fds=(), life=None, interval=1.0, patterns=(), notify=False
    ):
        """Start a program in the background. Raises OSError when it cannot be started."""
        rolling = Rolling(KEPT_HEAD, KEPT_TAIL)
        sources, stdio, tty, stdin = _plumbing(size, stdin=True)
        running = None
        try:
            running = guard.fork(Reader(tuple(sources), rolling, interval, patterns))
            running.start(Program(path, argv, env, cwd, stdio, tty, fds, self.call.keep, life))
        except OSError:
            if running is not None:
                running.kill()
                running.close()
            os.close(stdin)
            raise
        finally:
            for fd in (*stdio, *sources):
                os.close(fd)
        os.set_blocking(stdin, False)
        return self.background.add(command, running, stdin, rolling, notify, terminal=size is not None)


def _plumbing(size, stdin):
    """Descriptors for a program: what we read (descriptor -> stream), what it gets, its terminal's path, and our end of
    its stdin. In the background both of its streams are one pipe, so that their order is kept."""
    if size is not None:
        master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        modes = termios.tcgetattr(slave)
        modes[1] &= ~termios.ONLCR  # what it prints is read by a program: lines end in \\n alone
        termios.tcsetattr(slave, termios.TCSANOW, modes)
        tty = os.ttyname(slave)
        return {master: "stdout"}, (slave,), tty, os.dup(master) if stdin else None
    if stdin:
        (child_in, ours), (out, child_out) = os.pipe(), os.pipe()
        return {out: "stdout"}, (child_in, child_out, os.dup(child_out)), None, ours
    (out, child_out), (err, child_err) = os.pipe(), os.pipe()
    return {out: "stdout", err: "stderr"}, (os.open(os.devnull, os.O_RDONLY), child_out, child_err), None, None
