"""Runs a foreign program for `exec`: streams in and out as they come, signals passed on, its whole tree ended with it.

The command has ended when its own process has ended, whatever still holds its pipes; then everything it left running is
ended, what is in the pipes is passed on, and only then the reply is sent. Output is written to the supervisor's pipe as
it comes: a reader that is slow fills that pipe, the command blocks, and nothing is kept in memory here. Input comes in
pieces that are kept until the command takes them; CREDIT tells the supervisor how much was taken, so it never sends
more than STDIN_WINDOW ahead.
"""

import _signal as signal
import binascii
import os
import select

from hermes_worker import wire
from hermes_worker.channel import done, failed

READ_EVENTS = select.POLLIN | select.POLLHUP | select.POLLERR


class Commands:
    def __init__(self, worker):
        self.worker = worker

    def exec(self, request, params):
        """Start the command and stay with it. A command that cannot be started is the NOT_STARTED answer."""
        try:
            command = Command(self.worker, request, params)
        except OSError as error:
            return failed(wire.NOT_STARTED, str(error), errno=error.errno, kind=type(error).__name__)
        try:
            return command.run()
        finally:
            command.close()


class Command:
    def __init__(self, worker, request, params):
        self.worker = worker
        self.channel = worker.channel
        self.request = request
        self.pending = b""  # stdin that the command has not taken yet
        self.stdin_ended = False
        self.grace = 0.0
        self.cancelled = False
        self.wake, wake = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self.wake_writer = wake
        try:
            self.pid, self.stdin, self.out, self.err = _start(params["argv"], params["cwd"], params["env"])
        except OSError:
            self.close()
            raise
        for fd in (self.stdin, self.out, self.err):
            os.set_blocking(fd, False)

    def run(self):
        poll = select.poll()
        poll.register(self.channel.reading, select.POLLIN)
        poll.register(self.wake, select.POLLIN)
        streams = {self.out: "stdout", self.err: "stderr"}
        for fd in streams:
            poll.register(fd, READ_EVENTS)
        for frame in self.channel.poll_frames():
            self.obey(frame)  # stdin that came in one read with the request
        while True:
            self.watch_stdin(poll)
            for fd, _events in poll.poll():
                if fd == self.channel.reading:
                    for frame in self.channel.poll_frames():
                        self.obey(frame)
                elif fd == self.wake:
                    os.read(self.wake, 4096)
                elif fd == self.stdin:
                    self.feed()
                elif not self.pass_on(fd, streams[fd]):
                    poll.unregister(fd)
            if self.cancelled:
                self.worker.tree.end(self.grace)
                return self.finish(0, streams)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return self.finish(status, streams)

    def watch_stdin(self, poll):
        """Ask for room in the command's stdin only while there is something to put there."""
        if self.stdin is None:
            return
        if self.pending:
            poll.register(self.stdin, select.POLLOUT)
            return
        try:
            poll.unregister(self.stdin)
        except KeyError:
            pass
        if self.stdin_ended:
            os.close(self.stdin)
            self.stdin = None

    def feed(self):
        try:
            taken = os.write(self.stdin, self.pending[: wire.CHUNK])
        except BlockingIOError:
            return
        except OSError:  # the command closed its stdin: the rest is of no use to it
            taken, self.stdin_ended = len(self.pending), True
        self.pending = self.pending[taken:]
        self.channel.send(wire.CREDIT, wire.Credit, id=self.request, bytes=taken)

    def pass_on(self, fd, stream):
        """One read's worth to the supervisor. False at the end of the pipe."""
        try:
            data = os.read(fd, wire.CHUNK)
        except BlockingIOError:
            return True
        if data:
            text = binascii.b2a_base64(data, newline=False).decode("ascii")
            self.channel.send(wire.OUTPUT, wire.Output, id=self.request, stream=stream, data=text)
        return bool(data)

    def obey(self, frame):
        method, params = frame["method"], frame.get("params", {})
        if params.get("id") != self.request:
            return
        if method == wire.STDIN:
            data = binascii.a2b_base64(params["data"])
            if self.stdin is None or self.stdin_ended:
                self.channel.send(wire.CREDIT, wire.Credit, id=self.request, bytes=len(data))
            else:
                self.pending += data
                self.stdin_ended = params["eof"]
        elif method == wire.SIGNAL:
            _signal_group(self.pid, params["signal"])
        elif method == wire.CANCEL:
            self.cancelled, self.grace = True, params["grace"]

    def finish(self, status, streams):
        """The command is dead: end what it left, pass on what is in the pipes, and say how it ended."""
        leftovers = self.worker.tree.end()
        for fd, stream in streams.items():
            os.set_blocking(fd, False)
            while True:
                try:
                    data = os.read(fd, wire.CHUNK)
                except BlockingIOError:
                    break
                if not data:
                    break
                text = binascii.b2a_base64(data, newline=False).decode("ascii")
                self.channel.send(wire.OUTPUT, wire.Output, id=self.request, stream=stream, data=text)
        if self.cancelled:
            return failed(wire.WAS_CANCELLED, "cancelled")
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        answer = done(wire.ExecDone, code=code, signal=number)
        answer.leftovers = leftovers
        return answer

    def close(self):
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in (self.wake, self.wake_writer, *(getattr(self, name, None) for name in ("stdin", "out", "err"))):
            if fd is not None:
                os.close(fd)


def _signal_group(pid, number):
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # it ended just now


def _start(argv, cwd, env):
    """Fork and exec `argv` in a session of its own. Returns its pid and our ends of its three pipes.

    Raises OSError when the program or the folder is not there: the child sends its errno back over a fourth pipe."""
    pipes = [os.pipe() for _ in range(4)]
    (child_in, stdin), (out, child_out), (err, child_err), (failure, child_failure) = pipes
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            for number, fd in enumerate((child_in, child_out, child_err)):
                os.dup2(fd, number)
            for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGIO, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)  # Python ignores the first two, and a program would inherit that
            os.chdir(cwd)
            os.execvpe(argv[0], argv, env)
        except BaseException as error:
            os.write(child_failure, b"%d" % (getattr(error, "errno", None) or 8))
        finally:
            os._exit(127)
    for fd in (child_in, child_out, child_err, child_failure):
        os.close(fd)
    reason = os.read(failure, 16)
    os.close(failure)
    if reason:
        os.waitpid(pid, 0)
        for fd in (stdin, out, err):
            os.close(fd)
        raise OSError(int(reason), os.strerror(int(reason)), argv[0])
    return pid, stdin, out, err
