"""A shell for each command, with the state of the last one: what a long-lived shell has, and nothing that it can lose.

Theory of operation
    A long-lived shell can be poisoned: by a loop, `exec`, an unmatched quote, a ulimit, a closed descriptor. So each
    command gets a shell of its own. It reads a script that puts the state back (variables, functions, aliases, options)
    and holds the command; it evaluates the command; at its end, by whatever `exit`, it writes the new state. A shell
    that ends without writing (killed, replaced by `exec`, out of time) leaves the old state in force.

    Script and state travel over descriptors of the shell's parent, which the shell opens by path: the command inherits
    none of them, no file has to be writable, and a limit on file sizes does not matter. The state is the sandbox's own
    data and goes back into the same sandbox; it is bounded, and outside of a shell nothing but text.

    Not kept: traps, jobs, what `ulimit` set, and errexit, which would end the next command at its first failure. Of
    `sh` what POSIX has it print: exported variables, aliases, options.
"""

from __future__ import annotations

import os
import re
import shlex

MAX_STATE = 4 << 20  # bytes
END = b"end"
NAMED = 60  # characters of a command that a list of processes shows
_BEGIN = {"bash": b"shopt -s expand_aliases\n", "sh": b""}

# What a shell prints of itself, in parts that a NUL ends: it can be in none of them.
_PARTS = {
    "bash": ("shopt -p", "declare -p", "declare -f", "declare -F", "alias -p", "set +o", "umask -p"),
    "sh": ("export -p", "alias", "set +o", "umask"),
}
# Variables that bash sets by itself, or that do something when they are set.
_OWN = (
    rb"BASH\w*|COMP_\w+|DIRSTACK|EPOCH\w+|EUID|FUNCNAME|GROUPS|HISTCMD|LINENO|OPTERR|OPTIND|PIPESTATUS|PPID|PWD|RANDOM"
    rb"|SECONDS|SHELLOPTS|SHLVL|SRANDOM|UID|_|__hs_\w+"
)
_DROPPED = {
    "shopt -p": re.compile(rb"shopt -. (?:expand_aliases|extdebug|login_shell|restricted_shell)$"),
    "declare -p": re.compile(rb"declare -\S+ (?:" + _OWN + rb")(?:=|$)"),
    "declare -F": re.compile(rb"declare -f(?!\w*x)"),
    "export -p": re.compile(rb"export (?:PWD|SHLVL|_)(?:=|$)"),
    "set +o": re.compile(
        rb"set .o (?:errexit|monitor|history|noexec|onecmd|posix|privileged|interactive|stdin|debug)$"
    ),
}


class State:
    """What a shell left behind: its working folder, what brings the rest back, and the options that the command gets
    last. Without these, the state of a shell that has yet to run."""

    def __init__(self, folder, restore=b"", options=b":"):
        self.folder = folder
        self.restore = restore
        self.options = options

    @property
    def is_new(self):
        return not self.restore


def find(shell):
    """The path of a shell, or None."""
    return next((path for path in ("/bin/" + shell, "/usr/bin/" + shell) if os.access(path, os.X_OK)), None)


def arguments(shell, script, command):
    """The command line of a shell that finds its script in this descriptor of its parent's. In a list of processes it
    shows its command."""
    name = "%s: %s" % (shell, " ".join(command.split())[:NAMED])
    options = ["--noprofile", "--norc"] if shell == "bash" else []
    return [name, *options, "-c", '. /proc/$PPID/fd/%d >/dev/null 2>&1; eval "$__hs_boot"' % script, shell]


def script(shell, state, command, terminal, answer):
    """What a shell reads first: its state, then texts for `eval`. `terminal`: it has one, and TERM should say which;
    `answer`: the descriptor of its parent's that it writes its new state to, None: nobody wants it."""
    lines = [_BEGIN[shell], state.restore]
    if terminal:
        lines.append(b"case ${TERM-dumb} in dumb) TERM=xterm-256color; export TERM;; esac\n")
    texts = {b"boot": _boot(shell, answer).encode(), b"options": state.options, b"command": command}
    for name, text in texts.items():
        lines.append(b"__hs_" + name + b"='" + text.replace(b"'", b"'\\''") + b"'\n")
    return b"".join(lines)


def _boot(shell, answer):
    builtin = "builtin " if shell == "bash" else ""  # the command may have made functions of these names
    parts = " ".join("%s%s; %sprintf '\\0';" % (builtin, part, builtin) for part in _PARTS[shell])
    dump = "%sprintf '%%s\\0' \"${PWD-}\"; %s %sprintf %s" % (builtin, parts, builtin, END.decode())
    place = os.devnull if answer is None else "/proc/$PPID/fd/%d" % answer
    write = (
        '{ __hs_code=$?; case ${__hs_done-} in "") __hs_done=1; set +e; { %s; } >%s;; esac; set +x; } 2>/dev/null'
    ) % (dump, place)
    at_exit = shlex.quote(write + "; exit $__hs_code")
    command = 'eval "unset __hs_boot __hs_options __hs_command; $__hs_options; $__hs_command"'
    return "trap %s EXIT; %s; %s; exit $__hs_code" % (at_exit, command, write)


def parse(shell, answer):
    """The State that a shell wrote, or None if it did not write all of it."""
    folder, *parts, end = answer.split(b"\0") if answer.count(b"\0") > len(_PARTS[shell]) else (b"", b"")
    if end != END or len(parts) != len(_PARTS[shell]):
        return None
    restore, options = [], b":"
    for name, part in zip(_PARTS[shell], parts):
        if name in _DROPPED:
            part = b"\n".join(line for line in part.split(b"\n") if not _DROPPED[name].match(line))
        if name == "set +o":
            options = b"; ".join(part.split(b"\n")).strip(b"; ") or b":"
        elif name == "alias":
            restore.append(re.sub(rb"^(?=[^\s=']+=')", b"alias ", part, flags=re.MULTILINE))
        elif name == "umask":
            restore.append(b"umask " + part)
        else:
            restore.append(part)
    return State(os.fsdecode(folder), b"\n".join(restore) + b"\n", options)
