"""Loads tool modules and runs their handlers, checks and descriptions.

A module is imported for a call into this process, once: that is what a warm worker is for. To *describe* or to *check*
it, it is imported in a fork, which reports over a pipe and is ended: a module that hangs, exits, crashes or changes the
interpreter at import costs nobody else anything, and the same worker goes on with the next.
"""

import _signal as signal
import os
import select
import sys
import time

from hermes_worker import leanjson, tools_shim, wire
from hermes_worker.channel import Answer, Cancelled, done, failed

MAX_DESCRIPTION = 4 << 20  # bytes that a fork may report of one module
TRACE_CHARS = 8000


class Tools:
    def __init__(self, worker):
        self.worker = worker
        self.loop = None
        self.logging = False
        tools_shim.install(os.path.join(sys.path[0], "tools"), worker.sandbox)

    def load(self, module):
        """Import a tool module by its name below `tools`; raises what the import raises."""
        name = "tools." + module
        if name not in sys.modules:
            __import__(name)
        if not self.logging and "logging" in sys.modules:
            self.logging = True
            _send_logs(self.worker.channel)

    def call(self, request, params):
        """Run a handler. Never raises: every end of the handler is an Answer."""
        channel = self.worker.channel
        self.worker.begin_call(request, params)
        stage = wire.LOAD_FAILED
        try:
            # Only an import that is going on must not be interrupted: half a module would stay behind.
            channel.loading = "tools." + params["module"] not in sys.modules
            channel.listen(request)
            self.load(params["module"])
            entry = tools_shim.registry.entries.get(params["tool"])
            if entry is not None and entry.is_async:
                with channel.undisturbed():  # it may import
                    self.event_loop()
            channel.loading = False
            if entry is None:
                return failed(wire.LOAD_FAILED, "%(module)s.py does not register %(tool)s any more" % params)
            stage = wire.TOOL_RAISED
            result = entry.handler(params["args"], **params["context"])
            if entry.is_async or hasattr(result, "__await__"):
                result = self.run_async(result)
            return _result(result, params["result_limit"])
        except Cancelled as end:
            return failed(wire.WAS_CANCELLED, "cancelled", grace=end.until - time.monotonic())
        except BaseException as error:  # SystemExit and KeyboardInterrupt are a tool's failure, not the worker's
            return _raised(stage, error)
        finally:
            channel.loading = False
            if os.getpid() == channel.pid:
                channel.unlisten()

    def event_loop(self):
        """One loop for the worker's life, so that a tool's clients outlive the call that opened them."""
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        return self.loop

    def run_async(self, coroutine):
        import asyncio

        loop = self.event_loop()
        task = asyncio.ensure_future(coroutine, loop=loop)
        try:
            return loop.run_until_complete(task)
        except Cancelled:
            task.cancel()
            loop.run_until_complete(asyncio.wait([task], timeout=0.5))
            raise

    def describe(self, request, params):
        """What the module registers, found out in a fork."""

        def look():
            self.load(params["module"])
            own = "tools." + params["module"]
            entries = [e for e in tools_shim.registry.entries.values() if not _is_sibling(e.module, own)]
            return {"registrations": [entry.describe() for entry in entries]}

        found = self.in_fork(request, look)
        if isinstance(found, Answer):
            return found
        return done(wire.DescribeDone, registrations=found.get("registrations", []), problem=found.get("problem", ""))

    def check(self, request, params):
        """What check_fn and dynamic_schema_overrides of each tool of the module say, found out in a fork."""

        def look():
            self.load(params["module"])
            return {"tools": [_state(entry) for entry in tools_shim.registry.entries.values()]}

        found = self.in_fork(request, look)
        if isinstance(found, Answer):
            return found
        return done(wire.CheckDone, tools=found.get("tools", []), problem=found.get("problem", ""))

    def in_fork(self, request, look):
        """The dict that `look` returns in a fork of this worker, or {"problem": why not}, or an Answer if cancelled."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _report(writing, look)
        os.close(writing)
        data, cancelled = self.read_report(request, reading)
        os.close(reading)
        if data is None or cancelled:
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if cancelled:
            return failed(wire.WAS_CANCELLED, "cancelled")
        if data is None:
            return {"problem": "it describes itself with more than %d bytes" % MAX_DESCRIPTION}
        if data:
            return leanjson.loads(data)
        return {"problem": _how_it_died(status)}

    def read_report(self, request, reading):
        """All that the fork wrote (None: too much), and whether the supervisor cancelled meanwhile.

        It reads to the fork's final newline, not to the end of the pipe: a process that the module left behind may
        hold the pipe for ever."""
        channel = self.worker.channel
        poll = select.poll()
        poll.register(reading, select.POLLIN)
        poll.register(channel.reading, select.POLLIN)
        data = b""
        while True:
            for fd, _events in poll.poll():
                if fd == channel.reading:
                    if any(f["method"] == wire.CANCEL and f["params"]["id"] == request for f in channel.poll_frames()):
                        return b"", True
                    continue
                chunk = os.read(reading, wire.CHUNK)
                data += chunk
                if not chunk:
                    return b"", False
                if data.endswith(b"\n"):
                    return data, False
                if len(data) > MAX_DESCRIPTION:
                    return None, False


def _report(writing, look):
    """In the fork: run `look`, write its answer as one line, and end without any clean-up of a module's."""
    pid = os.getpid()
    try:
        answer = look()
    except BaseException as error:
        answer = {"problem": _one_line(error)}
    if os.getpid() != pid:
        os._exit(0)
    try:
        text = leanjson.dumps(answer, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        text = leanjson.dumps({"problem": "what it registers is no JSON: " + _one_line(error)})
    line = text.encode("ascii") + b"\n"
    try:
        while line:
            line = line[os.write(writing, line) :]
    finally:
        os._exit(0)


def _is_sibling(module, own):
    return module.startswith("tools.") and module != own and not module.startswith(own + ".")


def _state(entry):
    """wire.ToolState of one entry. A check that raises says no; overrides that raise are left out."""
    state = {"name": str(entry.name), "available": True}
    if entry.check_fn is not None:
        try:
            state["available"] = bool(entry.check_fn())
            if not state["available"]:
                state["reason"] = "its check_fn said no"
        except BaseException as error:
            state.update(available=False, reason="its check_fn raised " + _one_line(error))
    if entry.overrides_fn is not None:
        try:
            overrides = entry.overrides_fn()
            leanjson.dumps(overrides, allow_nan=False)
            state["overrides"] = overrides if isinstance(overrides, dict) else None
        except Exception as error:
            state["reason"] = "its dynamic_schema_overrides raised " + _one_line(error)
    return wire.message(wire.ToolState, **state)


def _result(result, limit):
    """The contract of a handler's return value: text passes unchanged, and so does a _multimodal dict."""
    if isinstance(result, str):
        fields: dict[str, object] = {"text": result}
        size = len(result)
        if size <= limit < size * 4:
            size = len(result.encode("utf-8", "replace"))
    elif isinstance(result, dict) and result.get("_multimodal") is True and isinstance(result.get("content"), list):
        try:
            size = len(leanjson.dumps(result, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            return failed(wire.BAD_RESULT, "its _multimodal dict is no JSON: %s" % error, kind="dict")
        fields = {"multimodal": result}
    else:
        kind = type(result).__name__
        return failed(wire.BAD_RESULT, "the handler returned %s, not a string" % kind, kind=kind)
    if size > limit:
        return failed(wire.RESULT_TOO_LARGE, "the result is too large", size=size)
    return done(wire.CallDone, **fields)


def _raised(stage, error):
    import traceback  # with what it imports it costs a cold start some ms, and most calls do not raise

    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    number = error.errno if isinstance(error, OSError) else None
    return failed(
        stage,
        _one_line(error),
        kind=type(error).__name__,
        errno=number if isinstance(number, int) else None,
        trace=trace[-TRACE_CHARS:],
    )


def _one_line(error):
    """`Type: message`, safe against an exception whose str() raises or is endless."""
    try:
        text = str(error)
    except Exception:
        text = "(its message cannot be read)"
    return ("%s: %s" % (type(error).__name__, text) if text else type(error).__name__)[:2000]


def _how_it_died(status):
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        from signal import Signals

        try:
            name = Signals(number).name
        except ValueError:
            name = "signal %d" % number
        return "its import ended the process by %s" % name
    return "its import ended the process with exit code %d" % os.WEXITSTATUS(status)


def _send_logs(channel):
    """Let what tools log reach the supervisor as records, not as text on stderr."""
    import logging

    class Handler(logging.Handler):
        def emit(self, record):
            if os.getpid() == channel.pid:
                fields = {"level": record.levelno, "name": record.name, "message": self.format(record)[:TRACE_CHARS]}
                channel.send(wire.LOG, wire.Log, **fields)

    logging.getLogger().addHandler(Handler())
