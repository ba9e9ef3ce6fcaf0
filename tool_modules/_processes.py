"""The tool process: looks at, feeds and ends the background commands of its task. Nothing in it waits for a program,
but `wait`, which is back in time, and `kill`, which answers when all of it is dead."""

from __future__ import annotations

import os
import time

from tools import sandbox
from tools.registry import tool_error, tool_result

POLLED = 4_000  # bytes of new output that a poll shows
WAITED = 20_000  # bytes that wait shows
LOG_LINES = 200
MAX_COMMAND = 200  # characters of a command in a list
MARGIN = 1.0  # s before the call's deadline at which a wait is back
END_OF_INPUT = b"\x04\x04"  # for a terminal; the first may only end an unfinished line

PROCESS = {
    "description": (
        "Background commands of terminal: list; poll (state and new output, at once); log (lines of output: offset, "
        "limit); wait (until it ends, at most timeout seconds); kill (answers when all of it is dead); write (data to "
        "its input), submit (data and a newline), close (its input)."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "action": {
                "type": "string",
                "enum": ["list", "poll", "log", "wait", "kill", "write", "submit", "close"],
            },
            "session_id": {"type": "string", "description": "Which, for all actions but list"},
            "data": {"type": "string", "description": "write, submit: the text"},
            "timeout": {"type": "number", "minimum": 0, "description": "wait: seconds (default: what the call has)"},
            "offset": {"type": "integer", "minimum": 0, "description": "log: first line (default: the last lines)"},
            "limit": {"type": "integer", "minimum": 1, "description": "log: number of lines (default 200)"},
        },
        "required": ["action"],
    },
}


def process(args, **_kw):
    background = sandbox.programs.background
    action = args["action"]
    if action == "list":
        return tool_result(processes=[_summary(each) for each in background.all()])
    if not args.get("session_id"):
        return tool_error("%s needs session_id" % action)
    found = background.find(args["session_id"])
    if found is None:
        return tool_error(
            "there is no background command %s in this task" % args["session_id"],
            hint="see process(action=list); ended ones are forgotten after 30 minutes",
        )
    return _ACTIONS[action](background, found, args)


def _summary(found):
    """State of one command, in the fields that every answer begins with."""
    answer = {"session_id": found.name, "command": found.command[:MAX_COMMAND], "pid": found.pid}
    answer["status"] = "running" if found.running else "exited"
    answer["uptime_s"] = round((found.ended or time.time()) - found.started, 1)
    if not found.running:
        if found.status is None:
            answer.update(
                exit_code=None, note="its end is not known: the process that watched it was killed or stopped"
            )
        elif os.WIFSIGNALED(found.status):
            number = os.WTERMSIG(found.status)
            answer.update(exit_code=128 + number, signal=number)
        else:
            answer["exit_code"] = os.WEXITSTATUS(found.status)
        if found.timed_out:
            answer["timed_out"] = True
        if found.left:
            answer["ended"] = found.left
    elif found.status is not None:
        answer["note"] = "its shell has ended; what it left running goes on"
    return answer


def _poll(_background, found, _args):
    offset, newest = found.output.newest()
    total = offset + len(newest)
    new = total - found.shown
    found.shown = total
    answer = _summary(found)
    answer["output"] = newest[-min(new, POLLED) :].decode("utf-8", "replace") if new else ""
    if new > POLLED:
        answer["omitted_bytes"] = new - POLLED
    return tool_result(answer)


def _log(_background, found, args):
    offset, newest = found.output.newest()
    lines = newest.decode("utf-8", "replace").split("\n")
    if lines[-1] == "":
        lines.pop()
    limit = args.get("limit", LOG_LINES)
    first = args["offset"] if "offset" in args else max(0, len(lines) - limit)
    answer = _summary(found)
    answer.update(lines=lines[first : first + limit], first_line=first, total_lines=len(lines))
    if offset:
        answer["omitted_bytes"] = offset  # the first line may be the end of one
    return tool_result(answer)


def _wait(background, found, args):
    most = max(0.0, sandbox.programs.call.remaining() - MARGIN)
    asked = args.get("timeout", most)
    background.pump(min(asked, most), lambda: not found.running)
    answer = _summary(found)
    answer["output"] = found.output.text(WAITED // 4, WAITED)
    if found.running:
        answer["timed_out"] = True
    return tool_result(answer)


def _kill(background, found, _args):
    if not found.running:
        return tool_result(_summary(found))
    background.kill(found)
    return tool_result({**_summary(found), "killed": True})


def _write(background, found, args, newline=b""):
    if "data" not in args:
        return tool_error("%s needs data" % args["action"])
    if not found.running or found.stdin is None:
        return tool_error("its input is closed" if found.running else "it has ended", **_summary(found))
    data = args["data"].encode("utf-8", "surrogateescape") + newline
    try:
        taken = background.write(found, data)
    except OSError as error:
        return tool_error("it does not take input any more: %s" % error.strerror, **_summary(found))
    if taken < len(data):
        return tool_error("it took only %d of %d bytes: it does not read its input" % (taken, len(data)), taken=taken)
    return tool_result({**_summary(found), "written": taken})


def _submit(background, found, args):
    return _write(background, found, {"data": "", **args}, b"\n")


def _close(background, found, _args):
    if found.terminal and found.stdin is not None:
        try:
            background.write(found, END_OF_INPUT)
        except OSError:
            pass  # it has ended meanwhile
    found.close_stdin()
    return tool_result({**_summary(found), "input": "closed"})


_ACTIONS = {
    "poll": _poll,
    "log": _log,
    "wait": _wait,
    "kill": _kill,
    "write": _write,
    "submit": _submit,
    "close": _close,
}
