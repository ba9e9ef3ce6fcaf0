"""Programs that go on when the call that started them is over: who they are, what they printed, how they ended.

Theory of operation
    Each is held by its guard's pid, its stdin and the memory in which its guard keeps its output, so that a question is
    answered from memory and never waits for a program, its guard or a pipe. The sweep after each call spares the guards
    that are known here, and what is below them. What a guard says is read whenever the worker waits: idle, while a
    program runs in front, in `pump`. Events are passed on to the supervisor as they come and may be lost when they come
    too fast; how a program ended is told once and kept.
"""

import os
import select
import time

from hermes_worker import wire
from hermes_worker.channel import undisturbed
from hermes_worker.reader import TOLD

MAX_RUNNING = 64
MAX_FINISHED = 64  # that are remembered, for at most KEEP_FINISHED s
KEEP_FINISHED = 30 * 60.0  # s
WRITE_PATIENCE = 2.0  # s that a program may take to make room in its stdin
KILL_GRACE = 2.0  # s between TERM and KILL
KILL_PATIENCE = 5.0  # s that a guard may take on top of that, on a busy machine
LEAVE_GRACE, LEAVE_MARGIN = 0.25, 0.1  # s; the supervisor waits for half a second


class Process:
    """One of them. `terminal`: whether it has one; `stdin`: our end of its input, None when it is closed; `guard`: None
    when all of it is dead; `left`: names of what it left running and was ended; `shown`: how many bytes of its output
    were shown by a poll."""

    def __init__(self, name, command, running, stdin, output, notify, terminal):
        self.terminal = terminal
        self.name = name
        self.command = command
        self.guard = running
        self.pid = running.program
        self.stdin = stdin
        self.output = output
        self.notify = notify
        self.started = time.time()
        self.ended = None
        self.status = None
        self.timed_out = False
        self.left = []
        self.shown = 0

    @property
    def running(self):
        return self.guard is not None

    def close_stdin(self):
        if self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None


class Background:
    most = MAX_RUNNING

    def __init__(self, worker):
        self.worker = worker
        self.processes = {}  # by name, in the order of their start
        self._front = None  # the guard of a program that runs in front meanwhile

    def running(self):
        return [each for each in self.processes.values() if each.running]

    def links(self):
        return [each.guard.fileno() for each in self.running()]

    @undisturbed
    def find(self, name):
        """A process by its name, or None: there is none, or it ended long ago."""
        self.pump()
        return self.processes.get(name)

    @undisturbed
    def all(self):
        self.pump()
        return list(self.processes.values())

    def _forget(self):
        finished = [each for each in self.processes.values() if not each.running]
        old = [each for each in finished if time.time() - each.ended > KEEP_FINISHED]
        for each in {*old, *finished[:-MAX_FINISHED]}:
            del self.processes[each.name]
            each.output.close()

    def add(self, command, running, stdin, output, notify=False, terminal=False):
        self._forget()
        name = "proc_" + os.urandom(6).hex()
        process = self.processes[name] = Process(name, command, running, stdin, output, notify, terminal)
        self._keep()
        self._tell(process, "started", text=command[:TOLD])
        return process

    def spare(self, front):
        """Have the sweep spare the guard of a program in front; None: of none any more."""
        self._front = front
        self._keep()

    def _keep(self):
        guards = [each.guard for each in self.running()] + ([self._front] if self._front is not None else [])
        self.worker.tree.guards = frozenset(each.pid for each in guards)

    def _tell(self, process, kind, **fields):
        self.worker.channel.send(wire.EVENT, wire.Event, session_id=process.name, kind=kind, **fields)

    def hear(self, fd):
        """A guard has said something. True when its link is over."""
        process = next((each for each in self.running() if each.guard.fileno() == fd), None)
        if process is None:
            return True
        packet = process.guard.receive()
        if packet is None or "gone" in packet:
            self._finish(process, packet or {})
            return True
        if "output" in packet:
            self._tell(process, "output", text=packet["output"])
        elif "match" in packet:
            self._tell(process, "match", text=packet["match"], more=packet["more"])
        elif "status" in packet:  # it ended, and what it left running goes on
            process.status = packet["status"]
        elif "pid" in packet:  # of a guard that was stopped, or slow
            process.pid = packet["pid"]
        return False

    def _finish(self, process, packet):
        """Its tree is dead; or its guard is, and what it left are orphans that the worker ends."""
        running, process.guard = process.guard, None
        self._keep()
        if packet:
            running.wait()
        else:
            running.kill()
            self.worker.tree.end()
        running.close()
        process.status = packet.get("status", process.status)
        process.left = packet.get("left", [])
        process.timed_out = packet.get("timed_out", False)
        process.ended = time.time()
        process.close_stdin()
        code, number = decoded(process.status)
        self._tell(process, "exited", code=code, signal=number, timed_out=process.timed_out, notify=process.notify)

    @undisturbed
    def pump(self, seconds=0.0, until=lambda: False):
        """Take what the guards say, for `seconds` or until `until()`."""
        end = time.monotonic() + seconds
        while True:
            poll = select.poll()
            for fd in self.links():
                poll.register(fd, select.POLLIN)
            left = 0.0 if until() else max(0.0, end - time.monotonic())
            ready = self.worker.channel.wait(poll, left)
            for fd, _events in ready:
                self.hear(fd)
            if not ready and left == 0.0:
                break
        self._forget()

    @undisturbed
    def kill(self, process):
        """End its tree, TERM first. Returns when the kernel says that nothing of it is left."""
        process.guard.end(KILL_GRACE)
        self.pump(KILL_GRACE + KILL_PATIENCE, lambda: not process.running)
        if process.running:  # its guard is stopped, or loses to a storm of forks
            self._finish(process, {})

    def end_all(self):
        """The worker leaves: TERM for all, and a moment to end in order. What is left then dies with the worker."""
        for process in self.running():
            process.guard.end(LEAVE_GRACE)
        self.pump(LEAVE_GRACE + LEAVE_MARGIN, lambda: not self.running())

    @undisturbed
    def write(self, process, data):
        """Write to its stdin what it takes within WRITE_PATIENCE s. Returns how many bytes that were. Raises OSError
        when it has closed its end."""
        taken = 0
        poll = select.poll()
        poll.register(process.stdin, select.POLLOUT)
        until = time.monotonic() + WRITE_PATIENCE
        while taken < len(data):
            try:
                taken += os.write(process.stdin, data[taken : taken + wire.CHUNK])
            except BlockingIOError:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self.worker.channel.wait(poll, left)
        return taken


def decoded(status):
    """(exit code, signal) of a wait status, one of them None; both where it is not known."""
    if status is None:
        return None, None
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None
