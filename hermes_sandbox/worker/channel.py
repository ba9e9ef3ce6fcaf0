"""The worker's end of the pipe to the supervisor: frames in, frames out, and a frame that interrupts a running handler.

Handlers run on the main thread, and there is no other: a call costs no hand-over between threads, and a fork of the
worker is a plain fork. So that `cancel` reaches a handler that is running, the pipe is asked to raise SIGIO while a
call runs (O_ASYNC); the signal's handler reads the frame and raises Cancelled in the handler's place. A handler that
never comes back to the interpreter does not hear it; then the supervisor's next step ends the worker. Our own
bookkeeping must not be torn: a frame, or what programs.py does between the fork of a guard and the note that it is
there. It runs `undisturbed`, and hears of a cancel where it waits. A count, not the signal's mask, since another thread
of a tool's would get the signal.
"""

import _signal as signal  # the package wraps it in enums, which cost a cold start a millisecond
import _thread
import fcntl
import os
import select
import time

from hermes_worker import leanjson, limits, wire


def undisturbed(method):
    """A decorator for methods of what has a `worker`: a cancel interrupts them only where they wait."""

    def wrapper(self, *args, **kwargs):
        with self.worker.channel.undisturbed():
            return method(self, *args, **kwargs)

    wrapper.__name__, wrapper.__doc__ = method.__name__, method.__doc__
    return wrapper


class Cancelled(BaseException):
    """Raised in the place of a running handler when the supervisor cancels its call."""

    def __init__(self, grace):
        super().__init__("the call was cancelled")
        self.until = time.monotonic() + grace  # then what the call started is killed, however far it has come


class Hangup(Exception):
    """The supervisor closed the pipe."""


class Answer:
    """How a request ended, before its tree is swept: a reply of class `cls`, or the error `error` with its reason."""

    def __init__(self, cls, fields, error=None, why="", grace=0.0):
        self.cls = cls
        self.fields = fields
        self.error = error
        self.why = why
        self.grace = grace  # s that what the request started may still have after a TERM
        self.leftovers = 0  # processes that it left running and that were ended already


def done(cls, **fields):
    return Answer(cls, fields)


def failed(error, why, grace=0.0, **trouble):
    return Answer(wire.Trouble, trouble, error, why, grace)


def take_pipes(out, err):
    """Move the protocol pipe off fds 0 and 1; make those /dev/null and the captured prints `out` and `err`.

    Returns a Channel. Nothing that a tool or a child does with fds 0 to 2 can reach the protocol from here on."""
    reading = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, limits.private_fds())
    writing = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, limits.private_fds())
    prints = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, limits.private_fds()) for fd in (out, err)]
    os.close(out)
    os.close(err)
    null = fcntl.fcntl(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC), fcntl.F_DUPFD_CLOEXEC, limits.private_fds())
    return Channel(reading, writing, (null, *prints))


class Shield:
    """The context of `Channel.undisturbed`; contexts may lie in each other."""

    def __init__(self, channel):
        self.channel = channel

    def __enter__(self):
        if self.channel is not None:
            self.channel.held += 1

    def __exit__(self, *_error):
        if self.channel is not None:
            self.channel.held -= 1
            self.channel.raise_late()


_NO_SHIELD = Shield(None)


class Channel:
    def __init__(self, reading, writing, standard):
        self.reading = reading
        self.writing = writing
        self.standard = standard  # what fds 0, 1 and 2 have to be for a tool
        self.pid = os.getpid()
        self.space = bytearray(1 << 20)  # reading into a kept buffer: a new one of this size is a mmap each time
        self.parts = []  # of a frame whose end has not come yet
        self.frames = []
        self.current = None  # id of the request whose handler may be interrupted
        self.thread = _thread.get_ident()
        self.held = 0  # how many want not to be interrupted
        self.loading = False  # an import is going on: to interrupt it would leave half a module behind
        self.waiting = select.poll()
        self.waiting.register(reading, select.POLLIN)
        self.quiet_flags = fcntl.fcntl(reading, fcntl.F_GETFL)
        fcntl.fcntl(reading, fcntl.F_SETOWN, self.pid)
        self.shield = Shield(self)
        self.restore_standard()
        os.register_at_fork(after_in_child=self._cut_off)

    def restore_standard(self):
        """Give fds 0 to 2 back their meaning, whatever the last call did to them."""
        for number, fd in enumerate(self.standard):
            os.dup2(fd, number)

    def _cut_off(self):
        """In any fork of the worker: it is not the worker and must not be able to answer in its place."""
        for fd in (self.reading, self.writing):
            os.dup2(self.standard[0], fd, inheritable=False)

    def send(self, method, cls, **fields):
        self._write({"jsonrpc": "2.0", "method": method, "params": wire.message(cls, **fields)})

    def reply(self, request, cls, **fields):
        self._write({"jsonrpc": "2.0", "id": request, "result": wire.message(cls, **fields)})

    def fail(self, request, code, text, **trouble):
        error = {"code": code, "message": text, "data": wire.message(wire.Trouble, **trouble)}
        self._write({"jsonrpc": "2.0", "id": request, "error": error})

    def _write(self, frame):
        # A lone surrogate has no UTF-8; the supervisor would refuse the frame, so it is replaced here.
        text = leanjson.dumps(frame, False, allow_nan=False, separators=leanjson.COMPACT)
        line = text.encode("utf-8", "replace") + b"\n"
        with self.undisturbed():  # half a frame would be the end of the wire
            while line:
                line = line[os.write(self.writing, line) :]

    def undisturbed(self):
        """A context: what runs inside is not interrupted by a cancel; one that came meanwhile is raised behind it.
        Cancels come to the main thread: others need no shield."""
        return self.shield if _thread.get_ident() == self.thread else _NO_SHIELD

    def raise_late(self):
        """Behind a shield: raise the cancel that came meanwhile."""
        if not self.held and self.current is not None and (self.frames or self._readable()):
            self._on_io(None, None)

    def wait(self, poller, seconds):
        """What a select.poll or select.epoll says within `seconds` (None: however long it takes). A cancel comes here,
        inside of `undisturbed` too."""
        if self.current is not None:
            poller.register(self.reading, select.POLLIN)
        try:
            if hasattr(poller, "fileno"):  # an epoll, which counts in s
                ready = poller.poll(seconds)
            else:
                ready = poller.poll(None if seconds is None else -int(-seconds * 1000 // 1))
        finally:
            if self.current is not None:
                poller.unregister(self.reading)
        found = [event for event in ready if event[0] != self.reading]
        if len(found) < len(ready):
            held, self.held = self.held, 0
            try:
                self._on_io(None, None)
            finally:
                self.held = held
        return found

    def receive(self):
        """The next frame, a dict; waits for it. Raises Hangup at the end of the pipe."""
        while not self.frames:
            self._read()
        return self.frames.pop(0)

    def poll_frames(self):
        """The frames that are there now, without waiting."""
        while self._readable():
            self._read()
        frames, self.frames = self.frames, []
        return frames

    def _readable(self):
        return bool(self.waiting.poll(0))

    def _read(self):
        count = os.readv(self.reading, [self.space])
        if not count:
            raise Hangup
        self.parts.append(bytes(memoryview(self.space)[:count]))
        if b"\n" not in self.parts[-1]:
            return
        *lines, rest = b"".join(self.parts).split(b"\n")
        self.parts = [rest] if rest else []
        self.frames += [leanjson.loads(line) for line in lines]

    def listen(self, request):
        """From here to `unlisten`, `cancel` for `request` raises Cancelled in whatever runs, this call included."""
        self.current = request
        signal.signal(signal.SIGIO, self._on_io)  # each time: a tool may have taken the signal for itself
        fcntl.fcntl(self.reading, fcntl.F_SETFL, self.quiet_flags | os.O_ASYNC)
        if self.frames or self._readable():
            self._on_io(None, None)  # what arrived before O_ASYNC raised no signal

    def unlisten(self):
        self.current = None
        fcntl.fcntl(self.reading, fcntl.F_SETFL, self.quiet_flags)

    def _on_io(self, _number, _frame):
        if self.held or self.current is None or os.getpid() != self.pid:
            return
        self.held += 1  # another signal may come meanwhile
        try:
            frames = self.poll_frames()
        except Hangup:
            fcntl.fcntl(self.reading, fcntl.F_SETFL, self.quiet_flags)
            return  # init has seen it too, and ends us: a handler must not take it for an error of its own
        finally:
            self.held -= 1
        for index, frame in enumerate(frames):
            params = frame.get("params", {})
            if frame.get("method") == wire.CANCEL and params.get("id") == self.current:
                if self.loading:
                    os._exit(0)  # init does the rest; a worker with half a module in it is of no use to later calls
                self.current = None
                self.frames = frames[:index] + frames[index + 1 :]
                raise Cancelled(params["grace"])
        self.frames = frames
