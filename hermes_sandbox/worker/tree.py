"""Find and end the processes that were started below this one.

In a pid namespace the kernel does it: `kill(-1)` reaches every process of the namespace except its init and the caller,
at once and without a race, and says ESRCH when there is none. Elsewhere the caller is a child subreaper, so that
orphans come to it, and walks /proc until `waitpid` says that it has no child left. So does a worker that has background
programs: their guards, and what is below them, are kept.
"""

import _signal as signal
import os
import time

SHOWN = 80  # bytes of a command line that a name shows
WALL = 0x40000000  # __WALL of wait(2): children too that were cloned to end without a SIGCHLD


def descendants(root, kept=()):
    """Pids below `root`, zombies left out, and `kept` with all that is below them."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        parent_and_state = _parent_and_state(pid)
        if parent_and_state and parent_and_state[1] not in "ZX" and pid not in kept:
            children.setdefault(parent_and_state[0], []).append(pid)
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def name_of(pid, own=""):
    """A process for a person: its command line, cut, or else the name of its program; and its pid. `own`: the command
    line of a shell that it may be a copy of."""
    words = _line(pid, "cmdline").replace("\0", " ").strip()
    if words and words == own.strip():
        words = "a subshell"
    return "%s (pid %d)" % (words or _line(pid, "comm").strip() or "?", pid)


def _line(pid, name):
    try:
        with open("/proc/%d/%s" % (pid, name), "rb") as file:
            return file.read(SHOWN).decode("utf-8", "replace")
    except OSError:  # it ended while we looked
        return ""


def _pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parent_and_state(pid):
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:  # it ended while we looked
        return None
    return int(fields[1]), fields[0].decode("ascii")


def _children(pid):
    """The pids of the children of a process with one thread; none where the kernel does not tell."""
    try:
        with open("/proc/%d/task/%d/children" % (pid, pid), "rb") as file:
            return file.read().split()
    except OSError:
        return []


def _send(pid, number):
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # gone already, or a set-uid program: then only its init's end reaches it


class Tree:
    """What this process, a worker or an init, has below it.

    `init`: for a worker outside a pid namespace its init's pid. A process can make itself init's child past the worker
    (CLONE_PARENT, or by taking the worker's subreaper flag away), so the worker looks below init."""

    def __init__(self, pid_namespace, init=None, watched=0):
        self.pid_namespace = pid_namespace
        self.root = 1 if pid_namespace else init or os.getpid()
        self.watched = watched  # a child whose exit status is wanted
        self.status = None
        self.guards: frozenset[int] = frozenset()  # pids of guards whose programs go on
        self.spared: frozenset[int] = frozenset()  # pids of what calls left running that is to be kept

    @property
    def kept(self):
        return self.guards | self.spared

    def spare(self):
        """From here on everything that lives now is kept."""
        self.spared = frozenset()
        self.spared = frozenset(self.living())

    def reap(self):
        """Reap every child that is dead. Returns whether a child is left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG | WALL)
                if pid == 0:
                    return True
                if pid == self.watched:
                    self.status = status
        except ChildProcessError:
            return False

    def _below(self):
        own = os.getpid()
        return [pid for pid in descendants(self.root, self.kept) if pid != own]

    def is_empty(self):
        if self.kept:
            return not self._below()
        if self.pid_namespace:
            try:
                os.kill(-1, 0)
                return False
            except ProcessLookupError:
                return True
        return not self.reap() and not (self.root != os.getpid() and len(_children(self.root)) > 1)

    def living(self):
        """Pids of this tree, without this process, its init, zombies and what is kept."""
        if self.kept or not self.pid_namespace:
            return self._below()
        own = (1, os.getpid())
        pairs = ((pid, _parent_and_state(pid)) for pid in _pids() if pid not in own)
        return [pid for pid, found in pairs if found and found[1] not in "ZX"]

    def kill(self):
        """KILL all of it, once."""
        for pid in [-1] if self.pid_namespace and not self.kept else self._below():
            _send(pid, signal.SIGKILL)

    def _ask_to_end(self, seconds):
        """TERM, each process once, also those that come meanwhile; until all are gone or `seconds` are over."""
        asked: set[int] = set()
        until, pause = time.monotonic() + seconds, 0.001
        while not self.is_empty() and time.monotonic() < until:
            for pid in self.living():
                if pid not in asked:
                    asked.add(pid)
                    _send(pid, signal.SIGTERM)
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
            self.reap()

    def end(self, grace=0.0):
        """TERM, then KILL after `grace` s, until nothing is left. Returns how many processes were still running."""
        self.reap()
        if self.is_empty():
            return 0
        running = len(self.living())
        if grace > 0:
            self._ask_to_end(grace)
        while not self.is_empty():
            self.kill()
            self._wait_empty(0.01)
        return running

    def _wait_empty(self, seconds):
        until = time.monotonic() + seconds
        while True:
            self.reap()
            if self.is_empty() or time.monotonic() >= until:
                return
            time.sleep(0.001)
