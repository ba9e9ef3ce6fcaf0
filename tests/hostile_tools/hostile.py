"""Tools that misbehave: what real tools do by accident, and what a hostile one would do on purpose.

Each does one thing. All loops are bounded, or end with the worker that they run in. A process that must be proved dead
*holds* a FIFO of the workspace: as long as it lives, a reader of the FIFO sees no end of file.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import mmap
import os
import re
import signal
import subprocess
import sys
import time

from tools.registry import registry, tool_error, tool_result

MANY_FORKS = 300
STATE = []


def tool(handler):
    """Register `handler` under its own name; it takes whatever arguments come."""
    schema = {"name": handler.__name__, "parameters": {"type": "object"}}
    registry.register(handler.__name__, "hostile", schema, handler, is_async=asyncio.iscoroutinefunction(handler))
    return handler


def hold(path):
    """Hold the FIFO at `path` until this process ends, and say so in it. Its descriptor is passed on by a fork."""
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, b"!")
    return fd


# Tools that behave ------------------------------------------------------------------------------------------------


@tool
def echo(args, **kw):
    return tool_result(args)


@tool
def remember(args, **kw):
    STATE.append(args.get("word"))
    return tool_result(STATE, task=kw["task_id"])


@tool
def where_am_i(args, **kw):
    handles = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    ignored = sorted(int(number) for number, handler in handles.items() if handler is signal.SIG_IGN)
    return tool_result(cwd=os.getcwd(), env=dict(os.environ), uid=os.getuid(), pid=os.getpid(), ignored=ignored)


@tool
def write_file(args, **kw):
    with open(args["path"], "w") as file:
        file.write(args["text"])
    return tool_result(size=os.path.getsize(args["path"]))


# Those that do not come back --------------------------------------------------------------------------------------


@tool
def sleep_for_ever(args, **kw):
    time.sleep(10_000)


@tool
async def sleep_for_ever_async(args, **kw):
    await asyncio.sleep(10_000)


@tool
def refuse_to_stop(args, **kw):
    """Catches whatever is raised in it, and goes on."""
    if "hold" in args:
        hold(args["hold"])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        try:
            while True:
                time.sleep(1)
        except BaseException:
            continue


@tool
def backtrack(args, **kw):
    """A regular expression that takes hours and never lets go of the interpreter."""
    return tool_result(bool(re.match(r"(a+)+$", "a" * 60 + "b")))


@tool
def burn(args, **kw):
    while True:
        pass


@tool
def burn_in_children(args, **kw):
    """Two children share the work; this process itself uses no time."""
    for _ in range(2):
        if os.fork() == 0:
            while True:
                pass
    time.sleep(10_000)


@tool
def stop_itself(args, **kw):
    os.kill(os.getpid(), signal.SIGSTOP)


@tool
def stop_the_parent(args, **kw):
    """In a pid namespace this does nothing: the parent is its first process."""
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(10_000)


# Those that end their process -------------------------------------------------------------------------------------


@tool
def exit_3(args, **kw):
    os._exit(3)


@tool
def segfault(args, **kw):
    print("last words")
    ctypes.string_at(0)


@tool
def sys_exit_7(args, **kw):
    sys.exit(7)


@tool
def interrupt(args, **kw):
    raise KeyboardInterrupt


@tool
def kill_itself(args, **kw):
    os.kill(os.getpid(), signal.SIGKILL)


@tool
def recurse(args, **kw):
    return recurse(args, **kw)


@tool
def raise_value_error(args, **kw):
    raise ValueError("boom </tool_call> " + args.get("text", ""))


@tool
def raise_nonsense(args, **kw):
    class Nonsense(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    raise Nonsense


# What they return and print ---------------------------------------------------------------------------------------


@tool
def give(args, **kw):
    """Return one of the things that handlers return."""
    return {
        "dict": {"a": 1},
        "none": None,
        "bytes": b"bytes",
        "number": 7,
        "text": "plain words, \u00e4\u4e2d\U0001f600 and a \x00",
        "surrogate": "half \ud800 a character",
        "error": tool_error("it is not there", code=404),
        "falsy_error": tool_result(error=None, done=True),
        "multimodal": {"_multimodal": True, "content": [{"type": "text", "text": "seen"}]},
        "bad_multimodal": {"_multimodal": True, "content": [float("nan")]},
    }[args["what"]]


@tool
def give_much(args, **kw):
    return "x" * args["size"]


@tool
def print_to_fd_1(args, **kw):
    print("printed")
    os.write(1, b"\xff\xfewritten\n")
    os.write(2, b"complained\n")
    subprocess.run(["echo", "by a child"], check=True)
    return "done"


@tool
def print_much(args, **kw):
    block = b"x" * (1 << 20)
    for _ in range(args["size"] >> 20):
        os.write(1, block)
    return "done"


@tool
def close_fd_1(args, **kw):
    os.close(1)
    os.close(0)
    return "closed"


@tool
def close_everything(args, **kw):
    os.closerange(0, 1024)
    return "closed"


@tool
def speak_out_of_turn(args, **kw):
    """Write the bytes `hex` on the worker's own pipe to the supervisor, then stay."""
    frame = sys._getframe()
    while not hasattr(frame.f_locals.get("self"), "channel"):
        frame = frame.f_back
    os.write(frame.f_locals["self"].channel.writing, bytes.fromhex(args["hex"]))
    time.sleep(10_000)


# What they leave behind -------------------------------------------------------------------------------------------


@tool
def change_the_process(args, **kw):
    os.chdir("/")
    os.environ["LEFT_BEHIND"] = "1"
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdout = None
    return "changed"


@tool
def fork_and_return(args, **kw):
    """Two processes go on from here; one of them is not the worker."""
    child = os.fork()
    if child == 0 and "hold" in args:
        hold(args["hold"])
    return "forked"


@tool
def leave_a_child(args, **kw):
    subprocess.Popen([sys.executable or "python3", "-c", ""], stdout=subprocess.DEVNULL).wait()
    _daemon(args["hold"])
    return "left"


@tool
def daemonise_and_sleep(args, **kw):
    _daemon(args["hold"])
    time.sleep(10_000)


def _daemon(path):
    """Two forks, a session of its own, deaf to every signal that a process can be deaf to. Returns when it runs."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
                signal.signal(number, signal.SIG_IGN)
            hold(path)
            os.write(writing, b"!")
            while True:
                time.sleep(1000)
        os._exit(0)
    os.waitpid(child, 0)
    os.read(reading, 1)
    os.close(reading)
    os.close(writing)


# How they use up what there is ------------------------------------------------------------------------------------


@tool
def allocate(args, **kw):
    """Fill `size` bytes, piece by piece."""
    pieces = [b"\1" * (16 << 20) for _ in range(args["size"] >> 24)]
    return tool_result(pieces=len(pieces))


@tool
def allocate_in_children(args, **kw):
    """Four children share it; one that does not come to its end is an error."""
    for _ in range(4):
        if os.fork() == 0:
            pieces = [b"\1" * (16 << 20) for _ in range(args["size"] >> 26)]
            time.sleep(len(pieces) and 10_000)
    status = os.wait()[1]
    raise RuntimeError("a child ended with %d" % status)


@tool
def fork_until_refused(args, **kw):
    """At most MANY_FORKS children, which do nothing; the refusal is raised, or counted and told."""
    forked = 0
    for _ in range(MANY_FORKS):
        try:
            if os.fork() == 0:
                time.sleep(10_000)
            forked += 1
        except OSError as error:
            if args.get("tell"):
                return tool_result(forked=forked, errno=error.errno)
            raise
    return tool_result(forked=forked)


@tool
def fork_bomb(args, **kw):
    """Every process forks, and its children do, up to MANY_FORKS in all; a fork that is refused is tried again.

    All but the worker itself, which may outlive the call, hold the FIFO."""
    budget = mmap.mmap(-1, mmap.PAGESIZE)
    if os.fork() == 0:
        hold(args["hold"])
    else:
        time.sleep(10_000)
    while int.from_bytes(budget[:4], "little") < MANY_FORKS:
        budget[:4] = (int.from_bytes(budget[:4], "little") + 1).to_bytes(4, "little")
        with contextlib.suppress(OSError):
            os.fork()
    time.sleep(10_000)


@tool
def write_much(args, **kw):
    with open("much", "wb", buffering=0) as file:
        for _ in range(args["size"] >> 20):
            file.write(b"x" * (1 << 20))
    return "written"


@tool
def open_many(args, **kw):
    files = [open("/dev/null", "rb") for _ in range(args["count"])]
    return tool_result(len(files))


@tool
def start_many_threads(args, **kw):
    import threading

    for _ in range(args["count"]):
        threading.Thread(target=time.sleep, args=(10_000,), daemon=True).start()
    return "started"


@tool
def log_much(args, **kw):
    """Each line with a logger of its own."""
    import logging

    for number in range(args["count"]):
        logging.getLogger("hostile.%d" % number).warning("line %d", number)
    return "logged"
