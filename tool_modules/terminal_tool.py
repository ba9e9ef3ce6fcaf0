"""The tools terminal and process: commands in a shell whose state lasts, in front or in the background.

A command in front ends when its shell ends, whatever it left running holds its pipes: that is named, and ended or kept
as the policy's `children` says. It has no input. One that is over its time is ended with all that it started, and the
shell's state is what it was before it. Background commands belong to the task and end with it.
"""

from __future__ import annotations

from tools._processes import PROCESS, process
from tools._running import in_background, in_front
from tools.registry import registry, tool_error

TERMINAL = {
    "description": (
        "Run a shell command. Working folder, variables, functions, aliases and shell options last from one command to "
        "the next. It returns when the command's shell ends; there is no input, so a program that asks fails at once. "
        "Output is `output`, both streams as they came; with anything on stderr also `stdout` and "
        "`stderr` apart. A command that is over its timeout is ended with everything that it started (exit_code 124), "
        "and the shell's state stays as before it. For servers and long jobs use background=true, then the tool "
        "process."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "The command, of any length"},
            "background": {
                "type": "boolean",
                "description": "Start it and return at once, with a session_id for the tool process",
                "default": False,
            },
            "timeout": {
                "type": "number",
                "exclusiveMinimum": 0,
                "description": "Seconds it may take; in the background: it may live (default: as long as the task)",
            },
            "workdir": {
                "type": "string",
                "description": "Folder for this command alone, from the shell's own folder (default: that one)",
            },
            "pty": {
                "type": "boolean",
                "description": "Give it a terminal (40 rows, 120 columns), for programs that insist on one",
                "default": False,
            },
            "shell": {"type": "string", "enum": ["bash", "sh"], "description": "Default: bash if there is one"},
            "check_interval": {
                "type": "number",
                "minimum": 1,
                "description": "Background: seconds between two reports of new output (default 10)",
            },
            "notify_on_complete": {
                "type": "boolean",
                "description": "Background: report its end to whoever runs the agent",
                "default": False,
            },
            "watch_patterns": {
                "type": "array",
                "items": {"type": "string", "minLength": 1, "maxLength": 1000},
                "maxItems": 32,
                "description": "Background: report lines of output that contain one of these texts",
            },
        },
        "required": ["command"],
    },
}

ONLY_BACKGROUND = ("check_interval", "notify_on_complete", "watch_patterns")


def terminal(args, **kw):
    if not args["command"].strip():
        return tool_error("the command is empty")
    if "\0" in args["command"]:
        return tool_error("a command cannot hold a NUL character")
    if args.get("background"):
        return in_background(args, kw["task_id"])
    given = [name for name in ONLY_BACKGROUND if args.get(name)]
    if given:
        return tool_error("%s only has a meaning with background=true" % ", ".join(given))
    return in_front(args, kw["task_id"])


registry.register(name="terminal", toolset="terminal", schema=TERMINAL, handler=terminal)
registry.register(name="process", toolset="terminal", schema=PROCESS, handler=process)
