"""The first process inside: it starts the worker, outlives it, ends its whole tree, and tells how it ended.

Theory of operation
    Three processes and five pipes. The supervisor's pipe to fd 0 and from fd 1 belong to the *worker*; init reads
    nothing from fd 0 and only polls it for a hang-up, which means that the supervisor is gone or wants an end: then
    everything here is killed. fd 2 is *init's* own report to the supervisor (wire.py); the worker never holds it. Two
    pipes take what the worker and its children print on fd 1 and 2; init reads them at once, so that no print can block
    on a busy interpreter, and passes them on. Over the fifth the worker asks init to say when all prints of a call are
    passed on.

    init is pid 1 of the sandbox's pid namespace where there is one: nothing inside can kill or stop it, and its end is
    everybody's. Elsewhere it is a child subreaper, so that double forks and new sessions still come back to it. Either
    way it reports ENDED only when `wait` says that no process is left, and then exits.

    init is not dumpable, so that no process of the sandbox can read its memory or reopen its descriptors, and it
    forgets the environment that it prepares for the worker. Prints that happen before the last one is read are never
    lost: not by a crash of the worker, not by its kill.
"""

import _signal as signal
import binascii
import fcntl
import mmap
import os
import resource
import select
import sys
import termios
import time

from hermes_worker import kernel, leanjson, limits, tree, wire

WATCH_INTERVAL = 0.05  # s between two looks at a tree whose memory or CPU time no cgroup counts
PAGE = resource.getpagesize()
TICKS = os.sysconf("SC_CLK_TCK")


class Gauge:
    """Tells the worker, without a message, whether init has read or is reading prints: a counter in shared memory.

    init makes it odd before it reads and even after it has passed on what it read. The worker compares two readings; it
    may also spoil it, which blurs only the attribution of its own prints.
    """

    def __init__(self):
        self.memory = mmap.mmap(-1, mmap.PAGESIZE)
        self.count = 0

    def step(self):
        self.count += 1
        self.memory[:8] = self.count.to_bytes(8, "little")

    def read(self):
        return int.from_bytes(self.memory[:8], "little")


def unread(pipe):
    """How many bytes wait in a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def shared_memory(status):
    """Bytes of shared memory that a process maps, out of its /proc/PID/status."""
    number = status.partition(b"RssShmem:")[2].split(None, 1)[:1]
    return int(number[0]) * 1024 if number else 0


def filled(folder):
    """Bytes in a tmpfs, which is memory too."""
    found = os.statvfs(folder)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


class Prints:
    """The worker's view of its captured prints: are there new ones, and if so, ask init for the mark."""

    def __init__(self, gauge, pipes, ask):
        self.gauge = gauge
        self.pipes = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, limits.private_fds()) for fd in pipes]
        self.ask = fcntl.fcntl(ask, fcntl.F_DUPFD_CLOEXEC, limits.private_fds())
        for fd in (*pipes, ask):
            os.close(fd)
        self.mark = 0
        self.before = 0

    def begin(self):
        self.before = self.gauge.read()

    def end(self):
        """0 if nothing was printed since `begin`, else the mark that init will report behind the last print."""
        waiting = any(unread(pipe) for pipe in self.pipes)
        now = self.gauge.read()
        if not waiting and now == self.before and now % 2 == 0:
            return 0
        self.mark += 1
        os.write(self.ask, self.mark.to_bytes(8, "little"))
        return self.mark


class Init:
    def __init__(self, boot):
        self.boot = boot
        self.report_prefix = boot["nonce"].encode("ascii") + b" "
        self.gauge = Gauge()
        self.tree = tree.Tree(os.getpid() == 1)
        self.worker = 0
        self.status = None
        self.limit = ""
        self.observed = 0
        self.peak = 0
        self.killed = 0

    def report(self, method, cls, **fields):
        frame = {"jsonrpc": "2.0", "method": method, "params": wire.message(cls, **fields)}
        line = self.report_prefix + leanjson.dumps(frame, separators=leanjson.COMPACT).encode("ascii") + b"\n"
        while line:
            line = line[os.write(2, line) :]

    def start(self):
        """Fork the worker. In it, this returns the pieces that its main needs; in init, None."""
        self.out, out = os.pipe()
        self.err, err = os.pipe()
        self.asked, ask = os.pipe()
        self.wake, wake = os.pipe()
        for fd in (self.out, self.err, self.asked, self.wake, wake):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        kernel.set_dumpable(False)
        self.worker = os.fork()
        if self.worker == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in (self.asked, self.wake, wake):
                os.close(fd)
            return Prints(self.gauge, (self.out, self.err), ask), out, err
        for fd in (out, err, ask):
            os.close(fd)
        # The worker alone holds the pipe to the supervisor, so that its end is seen there as an end of file.
        os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
        for name in ("env", "packages"):
            self.boot.pop(name, None)
        return None

    def run(self):
        """Serve until the worker has ended or the supervisor hung up; then end all, report and exit."""
        poll = select.poll()
        poll.register(0, 0)
        for fd in (self.out, self.err, self.asked, self.wake):
            poll.register(fd, select.POLLIN)
        watching = self.boot.get("memory") is not None or self.boot.get("cpu_watch")
        next_look = time.monotonic() + WATCH_INTERVAL if watching else None
        while self.status is None:
            timeout = None if next_look is None else max(0, (next_look - time.monotonic()) * 1000)
            for fd, _events in poll.poll(timeout):
                if fd == 0:
                    self.end_tree()
                elif fd == self.asked:
                    self.answer_mark()
                elif fd == self.wake:
                    os.read(self.wake, 4096)
                    self.reap()
                elif not self.pass_on(fd, wire.CHUNK):
                    poll.unregister(fd)
            if next_look is not None and time.monotonic() >= next_look:
                self.look()
                next_look = time.monotonic() + WATCH_INTERVAL
        self.end_tree()
        self.drain()
        self.report_end()

    def pass_on(self, fd, size):
        """Read once and report what came. False at the end of the pipe."""
        self.gauge.step()
        try:
            data = os.read(fd, size)
        except BlockingIOError:
            data = None
        if data:
            stream = "stdout" if fd == self.out else "stderr"
            self.report(
                wire.PRINTED, wire.Printed, stream=stream, data=binascii.b2a_base64(data, newline=False).decode("ascii")
            )
        self.gauge.step()
        return data != b""

    def drain(self):
        """Pass on what is in the pipes now; at most one pipe's worth of each, since a writer may never stop."""
        for fd in (self.out, self.err):
            left = unread(fd)
            if left:
                self.pass_on(fd, left)

    def answer_mark(self):
        data = os.read(self.asked, 8)
        if len(data) == 8:
            self.drain()
            self.report(wire.DRAINED, wire.Drained, mark=int.from_bytes(data, "little"))

    def reap(self, options=os.WNOHANG):
        """Bury the dead; without WNOHANG wait until all are. True when no child is left. An orphan that is alive is no
        business of ours yet: the worker ends what a call left."""
        try:
            while True:
                pid, status = os.waitpid(-1, options | tree.WALL)
                if pid == 0:
                    return False
                if pid == self.worker:
                    self.status = status
        except ChildProcessError:
            return True

    def look(self):
        """The watch: sum the tree's memory and CPU time where no cgroup does, end it when it has too much memory."""
        cpu, memory, count, mapped = 0.0, 0, 0, 0
        for pid in self.tree.living():
            try:
                with open("/proc/%d/statm" % pid, "rb") as file:
                    resident, shared = file.read().split()[1:3]
                with open("/proc/%d/status" % pid, "rb") as file:
                    mapped = max(mapped, shared_memory(file.read()))
                with open("/proc/%d/stat" % pid, "rb") as file:
                    times = file.read().rpartition(b")")[2].split()[11:15]
            except (OSError, ValueError):  # it ended while we looked
                continue
            memory += (int(resident) - int(shared)) * PAGE
            cpu += sum(map(int, times)) / TICKS
            count += 1
        # Pages that processes share are theirs only once, so the one that maps the most counts for all of them.
        memory += mapped + sum(map(filled, self.boot["tmpfs"]))
        self.peak = max(self.peak, memory)
        if self.boot.get("memory") is not None and memory > self.boot["memory"]:
            self.limit, self.observed = "memory", memory
            self.end_tree()
        elif self.boot.get("cpu_watch"):
            self.report(wire.SPENT, wire.Spent, cpu_s=cpu, bytes=memory, pids=count)

    def end_tree(self):
        """Kill everything but ourselves and wait until the kernel says that nothing is left."""
        try:
            self.killed += len(self.tree.living())
        except OSError:
            pass  # no descriptor left, say: the count is for information, the end is not
        if self.tree.pid_namespace:
            self.tree.kill()  # one signal reaches all at once
            self.reap(0)
            return
        while True:  # a walk over /proc may miss what is being forked meanwhile: look again until nothing is left
            self.tree.kill()
            if self.reap():
                return
            time.sleep(0.002)

    def report_end(self):
        status = self.status or 0
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.report(
            wire.ENDED,
            wire.Ended,
            code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            cpu_s=usage.ru_utime + usage.ru_stime,
            peak_bytes=max(self.peak, usage.ru_maxrss * 1024),
            killed=self.killed,
            limit=self.limit,
            observed=self.observed,
        )


def become_worker(boot):
    """In the fork: what the worker must not share with init, and what must hold before a tool is loaded."""
    kernel.set_dumpable(True)
    kernel.set_child_subreaper()
    kernel.set_parent_death_signal(signal.SIGKILL)
    try:
        with open("/proc/self/oom_score_adj", "wb", 0) as file:
            file.write(b"500")  # when memory runs out the kernel takes the call, not init
    except OSError:
        pass  # the score is higher already: init is then as likely a victim, which costs the report, not safety
    os.environ.clear()
    os.environ.update(boot["env"])
    for name in ("HOME", "TMPDIR"):
        if boot["env"].get(name):
            os.makedirs(boot["env"][name], exist_ok=True)
    os.chdir(boot["cwd"])
    sys.path[:] = sys.path + boot["packages"]


def main(conf):
    """Called by the stub with the JSON of wire.Boot. Does not return."""
    boot = leanjson.loads(conf)
    os.setsid() if os.getpid() != os.getsid(0) else None
    kernel.set_child_subreaper()
    limits.apply(boot)
    if boot["seccomp"]:
        from hermes_worker import seccomp

        seccomp.apply()
    init = Init(boot)
    pieces = init.start()
    code = 0
    try:
        if pieces is None:
            init.run()
        else:
            from hermes_worker import main as worker

            become_worker(boot)
            worker.main(boot, *pieces)
    except BrokenPipeError:
        pass  # the supervisor is gone; as pid 1 our exit ends everything, as a subreaper we end it first
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 70  # EX_SOFTWARE: a fault of ours, told apart from a tool's own exit by the report's absence
    finally:
        if pieces is None:
            init.end_tree()
        os._exit(code)
