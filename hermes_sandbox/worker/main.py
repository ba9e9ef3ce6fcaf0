"""The worker: takes the pipes, says hello, and serves one request after the other on its only thread.

Theory of operation
    The pipes are taken before any tool code is loaded (channel.py), so that nothing a tool does to fds 0 to 2 reaches
    the protocol. Each request runs to its end before the next is read: tool code by calls.py, commands by commands.py.
    After each, whatever it left running is ended, fds 0 to 2 and the working folder are put back, and only then the
    reply is written; so a reply means that nothing of the call is alive. A process that a tool forked and that comes
    back here is not the worker and leaves at once.

    All of this is honest only as long as the tool is: its code runs in this interpreter and may rewrite it. What holds
    against a hostile tool is outside: init, the sandbox, and the supervisor, which believes nothing that it reads.
"""

import faulthandler
import io
import os
import resource
import sys

from hermes_worker import calls, channel, commands, limits, tree, wire


class Worker:
    def __init__(self, boot, prints, pipes):
        self.boot = boot
        self.prints = prints
        self.channel = pipes
        self.tree = tree.Tree(boot["pid_namespace"], None if boot["pid_namespace"] else os.getppid())
        self.used = usage()
        self.programs = None
        self.serving = None  # id and params of the call that is served
        self.tools = calls.Tools(self)
        self.commands = commands.Commands(self)
        self.streams = sys.stdin, sys.stdout, sys.stderr = standard_streams()
        self.methods = {
            wire.DESCRIBE: self.tools.describe,
            wire.CHECK: self.tools.check,
            wire.CALL: self.tools.call,
            wire.EXEC: self.commands.exec,
        }

    def serve(self):
        self.channel.send(
            wire.HELLO,
            wire.Hello,
            wire=wire.VERSION,
            nonce=self.boot["nonce"],
            python="%d.%d.%d" % sys.version_info[:3],
            uid=os.getuid(),
        )
        while True:
            if self.programs is not None:
                self.programs.wait(self.channel)
            frame = self.channel.receive()
            if frame["method"] == wire.BYE:
                if self.programs is not None:
                    self.programs.background.end_all()
                return
            if "id" not in frame:
                continue  # a notification for a request that has ended meanwhile
            self.serve_request(frame["id"], frame["method"], frame["params"])

    def serve_request(self, request, method, params):
        handle = self.methods.get(method)
        if handle is None:
            self.channel.fail(request, wire.METHOD_NOT_FOUND, "this worker has no method %r" % method)
            return
        self.prints.begin()
        before = self.used  # what was used when the last request ended: nothing has run since
        with limits.CpuLimit(params.get("cpu_time")):
            answer = handle(request, params)
        if os.getpid() != self.channel.pid:
            os._exit(0)  # a fork that a tool left behind, back from the handler: the worker answers, not its copy
        leftovers = answer.leftovers + self.sweep(params, answer)
        self.flush()
        self.used = usage()
        ending = {"leftovers": leftovers, "mark": self.prints.end()}
        programs = self.programs
        if programs is not None:
            ending.update(programs.end())
        # Guards tell what programs cost, and are reaped whenever they end: then the children's sum is the guards' life.
        by_guards = (programs.cpu, programs.peak) if programs is not None else ()
        ending["cost"] = spent(before, self.used, *by_guards)
        extra = {name: value for name, value in ending.items() if name in answer.cls.__annotations__}
        extra.update(answer.fields)  # what the request itself says of its program is more
        if answer.error is not None:
            self.channel.fail(request, answer.error, answer.why, **extra)
        else:
            self.channel.reply(request, answer.cls, **extra)
        self.put_back()

    def begin_call(self, request, params):
        self.serving = request, params
        if self.programs is not None:
            self.programs.begin(request, params)

    def sweep(self, params, answer):
        """End what the request left running, or keep it where the policy says so and the request went well. Returns how
        many processes were ended."""
        if params.get("children") == "keep" and answer.error is None:
            self.tree.spare()
            return 0
        guards = self.programs.abandoned() if self.programs is not None else 0  # which are ours, not the call's
        return max(0, self.tree.end(answer.grace) - guards)

    def sandbox(self):
        """The programs of this worker, made when a tool first asks for them."""
        if self.programs is None:
            from hermes_worker import programs

            self.programs = programs.Programs(self)
            if self.serving is not None:
                self.programs.begin(*self.serving)
        return self.programs

    def flush(self):
        """Push what the tool printed out of Python's buffers, into the pipes that init reads."""
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (AttributeError, ValueError, OSError):
                pass  # the tool replaced, closed or broke it; put_back mends it

    def put_back(self):
        """Undo what a call did to the things every call starts with."""
        self.channel.restore_standard()
        if any(stream.closed for stream in self.streams):
            self.streams = standard_streams()
        sys.stdin, sys.stdout, sys.stderr = self.streams
        try:
            os.chdir(self.boot["cwd"])
        except OSError:
            pass  # the tool removed its own workspace: the next call will say so


def standard_streams():
    """stdin, stdout and stderr over fds 0 to 2, unbuffered: the last words of a tool that crashes are not lost."""
    raw = [open(fd, "rb" if fd == 0 else "wb", 0, closefd=False) for fd in range(3)]
    return [io.TextIOWrapper(file, "utf-8", "replace", write_through=True) for file in raw]


def usage():
    """CPU seconds of this process, and of the children that it waited for, and peak bytes of both, so far."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    own_cpu, children_cpu = (each.ru_utime + each.ru_stime for each in (own, children))
    return own_cpu, children_cpu, max(own.ru_maxrss, children.ru_maxrss) * 1024


def spent(before, after, children=None, peak=0):
    """wire.Cost of what lies between two readings of `usage`. `children` and `peak`: CPU s and bytes of the children,
    if known better."""
    if children is None:
        children = after[1] - before[1]
    return wire.message(wire.Cost, cpu_s=after[0] - before[0] + children, peak_bytes=max(after[2], peak))


def main(boot, prints, out, err):
    """Runs in init's fork; returns when the supervisor says bye or hangs up."""
    pipes = channel.take_pipes(out, err)
    faulthandler.enable(file=2)  # a crash leaves its stack in the captured stderr
    worker = Worker(boot, prints, pipes)
    try:
        worker.serve()
    except channel.Hangup:
        pass
