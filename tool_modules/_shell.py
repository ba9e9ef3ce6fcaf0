"""A shell for each command, with the state of the last one: what a long-lived shell has, and nothing that it can lose.

Theory of operation
    A long-lived shell can be poisoned: by a loop, `exec`, an unmatched quote, a ulimit, a closed descriptor. So each
    command gets a shell of its own. It reads a script that puts the state back (variables, functions, aliases, options)
    and holds the command; it says that it is ready; it evaluates the command; at its end, by whatever `exit`, it writes
    the new state. A shell that ends without writing (killed, replaced by `exec`, out of time) leaves the old state in
    force; one that never was ready did not run the command, and its state is dropped.

    The command may make aliases, functions and modes that our own words would then meet. So all of ours is parsed
    before a state is back: it stands on the shell's command line, which is read as a whole, and in a function that the
    script defines first. Aliases begin to count with the command; bash's functions are passed over by `builtin`.

    Script and state travel over descriptors of the shell's parent, which the shell opens by path: the command inherits
    none of them, and no file has to be writable. The state is the sandbox's own data and goes back into the same
    sandbox; it is bounded, and outside of a shell nothing but text.

    Not kept: traps, jobs, what `ulimit` set, posix mode and verbose, and errexit, which would end the next command at
    its first failure. Of `sh` what POSIX has it print: exported variables, aliases, options.
"""

from __future__ import annotations

import os
import re

MAX_STATE = 4 << 20  # bytes
READY, BEGIN, END = b"r", b"\0state\0", b"end"

# What a shell prints of itself, in parts that a NUL ends: it can be in none of them.
_PARTS = {
    "bash": ("pwd", "shopt -p", "declare -p", "declare -f", "declare -F", "alias -p", "set +o", "umask -p"),
    "sh": ("pwd", "export -p", "alias", "set +o", "umask"),
}
# Variables that bash sets by itself, or that do something when they are set.
_OWN = (
    rb"BASH\w*|COMP_\w+|DIRSTACK|EPOCH\w+|EUID|FUNCNAME|GROUPS|HISTCMD|LINENO|OPTERR|OPTIND|PIPESTATUS|POSIXLY_CORRECT"
    rb"|PPID|PWD|RANDOM|SECONDS|SHELLOPTS|SHLVL|SRANDOM|UID|_|__hs_\w+"
)
_OWN_VARIABLE = re.compile(rb"declare -\S+ (?:(?:" + _OWN + rb")(?:=|$)|TERM=\"(?:dumb|xterm-256color)\"$)")
_OWN_SHOPT = re.compile(rb"shopt -. (?:expand_aliases|extdebug|extglob|login_shell|restricted_shell)$")
_EXTGLOB = re.compile(rb"^shopt -. extglob$", re.MULTILINE)
_EXPORTED_FUNCTION = re.compile(rb"declare -f\w*x\w* ")
# Options that a shell has by itself; those that are not kept; those that are nobody's to set.
_USUAL = (b"braceexpand", b"hashall", b"interactive-comments")
_DROPPED = b"errexit verbose posix monitor history noexec onecmd privileged interactive stdin debug".split()
# `name='value'` as sh prints it: quoted pieces side by side, newlines as they are.
_PIECES = rb"""((?:'[^']*'|"[^"]*"|\\.|[^\s'"\\])*)"""
_SH_EXPORT = re.compile(rb"^export (\w+)(?:=" + _PIECES + rb")?\n", re.MULTILINE)
_SH_OWN = re.compile(rb"PWD|SHLVL|TERM|_|__hs_\w+")
_SH_ALIAS = re.compile(rb"^([^\s=']+)=" + _PIECES + rb"\n", re.MULTILINE)


class State:
    """What a shell left behind: its working folder, what brings the rest back, and the options that its command gets
    last. Without these, the state of a shell that has yet to run."""

    def __init__(self, folder, restore=b"", options=b""):
        self.folder = folder
        self.restore = restore
        self.options = options

    @property
    def is_new(self):
        return not self.restore


def find(shell):
    """The path of a shell, or None."""
    return next((path for path in ("/bin/" + shell, "/usr/bin/" + shell) if os.access(path, os.X_OK)), None)


def arguments(shell, script):
    """The command line of a shell that finds its script in this descriptor of its parent's. Nothing of the command
    stands in it: `pkill -f` would find it there."""
    by = "builtin " if shell == "bash" else ""
    words = (
        "%s. /proc/$PPID/fd/%d >/dev/null 2>&1" % (by, script),
        by + "trap '{ __hs_end; } 2>/dev/null' EXIT",
        "builtin shopt -s expand_aliases" if shell == "bash" else ":",
        by + 'eval "$__hs_options$__hs_command"',
        "{ __hs_end; } 2>/dev/null",
    )
    return [shell, *(["--noprofile", "--norc"] if shell == "bash" else []), "-c", "; ".join(words), shell]


def script(shell, state, command, terminal, answer):
    """What a shell reads first. `terminal`: it has one, and TERM should say which; `answer`: the descriptor of its
    parent's that it writes to, None: nobody wants to know."""
    place = os.devnull if answer is None else "/proc/$PPID/fd/%d" % answer
    lines = [_writer(shell, place).encode()]
    if terminal:
        lines.append(b"TERM=xterm-256color; export TERM")  # unless the state says otherwise
    lines.append(b"__hs_options=" + _quoted(state.options))
    lines.append(b"__hs_command=" + _quoted(command))
    if shell == "bash":
        lines += [state.restore, b"builtin printf r >" + place.encode()]
    else:  # from its aliases on every word may be another
        lines += [b"printf r >" + place.encode(), state.restore]
    return b"\n".join(lines) + b"\n"


def _writer(shell, place):
    """The function that writes the state, once, and leaves the exit code of the command as it was."""
    by = "builtin" if shell == "bash" else "command"
    parts = "; ".join("%s %s; %s printf '\\0'" % (by, part, by) for part in _PARTS[shell])
    return (
        '__hs_end() { __hs_code=$?; %(untrap)sif %(by)s test -z "${__hs_done-}"; then __hs_done=1; %(by)s set +e; '
        "{ %(by)s printf '\\0state\\0'; %(parts)s; %(by)s printf end; } >%(place)s; fi; %(by)s set +xv; "
        "%(by)s return $__hs_code; }"
        % {
            "by": by,
            "parts": parts,
            "place": place,
            "untrap": "builtin trap - DEBUG ERR RETURN; " if by == "builtin" else "",
        }
    )


def _quoted(text):
    return b"'" + text.replace(b"'", b"'\\''") + b"'"


def parse(shell, answer, old):
    """The State that a shell wrote, or None if it did not write all of it. `old`: the one before."""
    parts = answer.rpartition(BEGIN)[2].split(b"\0")
    names = _PARTS[shell]
    if BEGIN not in answer or len(parts) != len(names) + 1 or parts[-1] != END:
        return None
    found = dict(zip(names, parts))
    folder = os.fsdecode(found["pwd"][:-1])
    if not os.path.isabs(folder):
        folder = old.folder
    restore = _of_bash(found) if shell == "bash" else _of_sh(found)
    return State(folder, restore, _options(found["set +o"], shell))


def _options(part, shell):
    """Those that differ from what a shell has by itself."""
    words = [line.split() for line in part.split(b"\n")]
    changed = [w for w in words if len(w) == 3 and w[2] not in _DROPPED and (w[1] == b"-o") != (w[2] in _USUAL)]
    by = b"\\builtin " if shell == "bash" else b"\\"
    return b"".join(by + b" ".join(w) + b"; " for w in changed)


def _of_bash(found):
    """Functions come last, since they may be called like what the other lines begin with; each by itself, so that one
    that cannot be had costs no other."""
    lines = [line for line in found["shopt -p"].split(b"\n") if not _OWN_SHOPT.match(line)]
    lines += [line for line in found["declare -p"].split(b"\n") if not _OWN_VARIABLE.match(line)]
    lines += [found["umask -p"], found["alias -p"], b"shopt -s extglob"]
    lines += [b"builtin eval " + _quoted(b"function " + text) for text in _functions(found)]
    lines += [b"builtin " + line for line in found["declare -F"].split(b"\n") if _EXPORTED_FUNCTION.match(line)]
    lines += [b"builtin " + line for line in _EXTGLOB.findall(found["shopt -p"])]
    return b"\n".join(lines) + b"\n"


def _functions(found):
    """The texts of the functions, by their names, which `declare -F` prints in the same order."""
    text = found["declare -f"]
    for line in reversed(found["declare -F"].split(b"\n")):
        name = line.split(b" ", 2)[-1]
        head, mark, body = text.rpartition(b"\n" + name + b" () ") if name else (text, b"", b"")
        if name and not mark and text.startswith(name + b" () "):
            head, mark, body = b"", b"x", text[len(name) + 4 :]
        if mark and not name.startswith(b"__hs_"):
            yield name + b" () " + body
        text = head if mark else text


def _of_sh(found):
    exports = [m.group() for m in _SH_EXPORT.finditer(found["export -p"]) if not _SH_OWN.fullmatch(m[1])]
    aliases = [b"\\alias " + m.group() for m in _SH_ALIAS.finditer(found["alias"])]
    return b"".join(exports) + b"umask " + found["umask"] + b"".join(aliases)
