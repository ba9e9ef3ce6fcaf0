"""Runs a command of the tool terminal: shell, folder, time and what the answer says."""

from __future__ import annotations

import os
import time

from tools import _shell, sandbox
from tools.registry import tool_error, tool_result

SIZE = (40, 120)  # rows and columns of a terminal
SHOWN_HEAD, SHOWN_TAIL = 20_000, 30_000  # bytes of output in an answer
STREAM_HEAD, STREAM_TAIL = 4_000, 6_000  # of one stream alone
CHECK_INTERVAL = 10.0  # s
TIMED_OUT = 124  # as timeout(1)

_states = {}  # (task, shell) -> what the last shell left


class Problem(Exception):
    """Why a command cannot be run."""


class Shell:
    """The shell for one command: which, where it starts, with which environment."""

    def __init__(self, args, task_id):
        self.name, self.path = _chosen(args.get("shell"))
        self.key = (task_id, self.name)
        self.state = _states.get(self.key) or _shell.State(os.getcwd())
        self.notes = []
        home = self._existing(self.state.folder)
        self.folder = os.path.join(home, os.path.expanduser(args["workdir"])) if args.get("workdir") else home
        if not _can_enter(self.folder):
            raise Problem("workdir: %s is no folder that can be entered" % self.folder)
        self.pty = bool(args.get("pty"))
        self.command = args["command"]
        # A shell that has a state finds its variables there: one that was unset must not come back.
        self.env = dict(os.environ) if self.state.is_new else {}
        self.env["PWD"] = self.folder

    def _existing(self, folder):
        found = folder
        while not _can_enter(found) and found != "/":
            found = os.path.dirname(found)
        if found != folder:
            self.notes.append("the working folder %s is gone or closed: the command started in %s" % (folder, found))
        return found

    def script(self, answer):
        """Its script as an open file; `answer` as in _shell.script."""
        command = self.command.encode("utf-8", "surrogateescape")
        return sandbox.programs.sheet(_shell.script(self.name, self.state, command, self.pty, answer))

    def arguments(self, script):
        return _shell.arguments(self.name, script)

    def keep(self, answer, workdir):
        """Take over the state that the shell wrote; None: more than is kept. Raises Problem if the command was not run
        since its state could not be brought back."""
        if answer is not None and not answer.startswith(_shell.READY) and not self.state.is_new:
            del _states[self.key]
            raise Problem("the shell's state could not be brought back and was dropped: this command was not run")
        state = None if answer is None else _shell.parse(self.name, answer, self.state)
        if state is None:
            why = "was not written at its end" if answer is not None else "is larger than %d bytes" % _shell.MAX_STATE
            self.notes.append("the shell's state %s: it stays as before this command" % why)
            return
        if workdir and os.path.realpath(state.folder) == os.path.realpath(self.folder):
            state.folder = self.state.folder
        _states[self.key] = self.state = state


def _can_enter(folder):
    return os.path.isdir(folder) and os.access(folder, os.X_OK)


def _chosen(name):
    for shell in (name,) if name else ("bash", "sh"):
        path = _shell.find(shell)
        if path is not None:
            return shell, path
    raise Problem("there is no %s here" % (name or "shell"))


def in_front(args, task_id):
    programs = sandbox.programs
    begun, first = time.monotonic(), programs.first_fd()
    try:
        shell = Shell(args, task_id)
        with shell.script(first + 1) as script, _Pipe() as state:
            done = programs.run(
                shell.path,
                shell.arguments(first),
                shell.env,
                shell.folder,
                args["command"],
                timeout=args.get("timeout"),
                size=SIZE if shell.pty else None,
                fds=(script.fileno(), state.writing),
                pipes=((state.reading, "state", _shell.MAX_STATE),),
            )
        if not done.timed_out and done.status is not None:
            shell.keep(done.extra["state"], args.get("workdir"))
    except Problem as problem:
        return tool_error(problem)
    return _answer(shell, done, args.get("timeout"), time.monotonic() - begun)


class _Pipe:
    def __enter__(self):
        self.reading, self.writing = os.pipe()
        return self

    def __exit__(self, *_exc):
        os.close(self.reading)
        os.close(self.writing)


def _answer(shell, done, timeout, seconds):
    answer = {"output": done.output.text(SHOWN_HEAD, SHOWN_TAIL), "exit_code": _code(done)}
    if done.streams["stderr"].total:
        for name, stream in done.streams.items():
            answer[name] = stream.text(STREAM_HEAD, STREAM_TAIL)
    answer["cwd"] = shell.state.folder
    answer["duration_s"] = round(seconds, 3)
    if done.timed_out:
        answer["error"] = (
            "the command did not end within %.4g s: it was ended with everything that it started, and the shell's "
            "state is as before it" % timeout
        )
    elif done.process is not None:
        answer.update(still_running=done.left, session_id=done.process.name)
        shell.notes.append("what it left running goes on in the background: see process")
    elif done.left:
        answer["ended"] = done.left
        shell.notes.append("what it left running was ended; use background=true for what should go on")
    if done.status is None and not done.timed_out:
        shell.notes.append(
            "the command killed the process that watched it: what it had started was ended, and the shell's state "
            "stays as before it"
        )
    if shell.name == "sh":
        answer["shell"] = "sh"
    if shell.notes:
        answer["note"] = "; ".join(shell.notes)
    return tool_result(answer)


def _code(done):
    if done.timed_out:
        return TIMED_OUT
    if done.status is None:
        return 128 + 9
    return 128 + os.WTERMSIG(done.status) if os.WIFSIGNALED(done.status) else os.WEXITSTATUS(done.status)


def in_background(args, task_id):
    programs = sandbox.programs
    if not programs.call.stays:
        return tool_error(
            "this sandbox ends with the call, so nothing can go on in its background: it serves one call alone (on "
            "the command line, with reuse = never, or for a call with limits of its own)",
            hint="run the command in front, or start it from a Supervisor that lives on",
        )
    running = len(programs.background.running())
    if running >= programs.background.most:
        return tool_error("%d background commands are running, which is the most: end one with process" % running)
    try:
        shell = Shell(args, task_id)
    except Problem as problem:
        return tool_error(problem)
    with shell.script(None) as script:
        started = programs.start(
            shell.path,
            shell.arguments(programs.first_fd()),
            shell.env,
            shell.folder,
            args["command"],
            size=SIZE if shell.pty else None,
            fds=(script.fileno(),),
            life=args.get("timeout"),
            interval=args.get("check_interval") or CHECK_INTERVAL,
            patterns=args.get("watch_patterns") or (),
            notify=bool(args.get("notify_on_complete")),
        )
    answer = {"session_id": started.name, "pid": started.pid, "status": "running", "cwd": shell.folder}
    if shell.notes:
        answer["note"] = "; ".join(shell.notes)
    return tool_result(answer)
