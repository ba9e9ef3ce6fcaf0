"""Which files a search sees: a walk in a fixed order that honours .gitignore, as git and ripgrep read it.

Hidden files and folders are left out, symbolic links are not followed. The patterns of a folder's .gitignore hold for
what is below it, those of the folders above the root too, up to the repository's; deeper files and later lines win; `!`
takes a file back in, a hidden one too, unless its folder is left out. A repository in a repository has its own rules.
"""

from __future__ import annotations

import codecs
import os
import re

from tools._textfile import Unusable, open_regular

MAX_IGNORE_FILE = 1 << 20  # bytes
MAX_ALTERNATIVES = 256  # of a glob with braces
GIT = ".git"
IGNORE = ".gitignore"


def glob_regex(glob):
    """A compiled regex for a path relative to where the glob stands, in .gitignore's dialect.

    Without a slash (but at the end) the name may be at any depth; with one the pattern stands where it is."""
    core = glob.strip("/")
    anchored = "/" in core or glob.startswith("/")
    return re.compile(("" if anchored else "(?:.*/)?") + _translate(core) + r"\Z", re.DOTALL)


def _translate(glob):
    out, at = [], 0
    while at < len(glob):
        char = glob[at]
        begins = at == 0 or glob[at - 1] == "/"
        if begins and glob.startswith("**/", at):
            out.append("(?:.*/)?")
            at += 3
            continue
        if begins and glob[at:] == "**":
            out.append(".+")
            break
        if char == "*":
            if out[-1:] != ["[^/]*"]:  # more of them say the same, and would take for ever
                out.append("[^/]*")
        elif char == "?":
            out.append("[^/]")
        elif char == "[" and _class_end(glob, at):
            end = _class_end(glob, at)
            out.append(_class(glob[at + 1 : end]))
            at = end
        elif char == "\\" and at + 1 < len(glob):
            at += 1
            out.append(re.escape(glob[at]))
        else:
            out.append(re.escape(char))
        at += 1
    return "".join(out)


def _class(inner):
    """A regex for what stands between the brackets."""
    negated = inner[0] in "!^"
    inner = re.sub(r"([\\\[\]&|~])", r"\\\1", inner[1:] if negated else inner)
    return "(?!/)[%s%s]" % ("^" if negated else "", inner.replace("^", r"\^"))


def _class_end(glob, at):
    """The index of the bracket that closes the class which opens at `at`, or 0."""
    first = at + 2 if glob[at + 1 : at + 2] in ("!", "^") else at + 1
    return max(0, glob.find("]", first + 1))


def expand_braces(glob):
    """*.{py,txt} as [*.py, *.txt]; nested ones too. Raises Unusable for absurdly many."""
    found = [glob]
    while True:
        expanded = []
        for each in found:
            inner = re.search(r"\{([^{}]*)\}", each)
            if inner is None:
                expanded.append(each)
            else:
                expanded += [each[: inner.start()] + one + each[inner.end() :] for one in inner.group(1).split(",")]
        if len(expanded) > MAX_ALTERNATIVES:
            raise Unusable("the glob has more than %d alternatives" % MAX_ALTERNATIVES)
        if expanded == found:
            return found
        found = expanded


def glob_filter(glob):
    """A function that says whether a path relative to the search's root matches the glob, braces included."""
    if not glob:
        return lambda path: True
    try:
        patterns = [glob_regex(each.removeprefix("./")) for each in expand_braces(glob)]
    except re.error as error:
        raise Unusable("the glob %r cannot be used: %s" % (glob[:200], error)) from None
    return lambda path: any(pattern.match(path) for pattern in patterns)


class Rules:
    """The lines of one .gitignore, as bytes: git knows no characters. `verdict` is True (left out), False (taken back
    in) or None (no line says)."""

    def __init__(self, data):
        self.rules = []
        for line in data[3 if data.startswith(codecs.BOM_UTF8) else 0 :].decode("latin-1").split("\n"):
            line = line.removesuffix("\r")
            if not line.endswith("\\ "):
                line = line.rstrip(" ")
            taken_in = line.startswith("!")
            pattern = line[1:] if taken_in else line
            if not pattern.strip("/") or line.startswith("#"):
                continue
            try:
                self.rules.append((glob_regex(pattern).match, pattern.endswith("/"), not taken_in))
            except re.error:
                continue  # git takes a pattern that cannot be one for one that matches nothing
        self.rules.reverse()

    def verdict(self, path, is_folder):
        for match, only_folders, left_out in self.rules:
            if (is_folder or not only_folders) and match(path):
                return left_out
        return None


class _Level:
    """What a folder's .gitignore says of the paths below it. `names`: what is in the folder."""

    def __init__(self, folder, names):
        self.prefix = len(os.fsencode(folder.rstrip("/"))) + 1  # bytes of a path above what the rules speak of
        self.is_repository = GIT in names
        self.rules = None
        if IGNORE in names:
            try:
                with open_regular(os.path.join(folder, IGNORE)) as file:
                    self.rules = Rules(file.read(MAX_IGNORE_FILE) or b"")
            except (Unusable, OSError):
                pass  # git goes on without it as well


def walk(root):
    """Paths of the files below the folder `root` that are not left out, relative to it, in the order of their parts."""
    root = os.path.realpath(root)
    start = len(root.rstrip("/")) + 1
    unfinished = [_open(root, _levels_above(root))]  # a loop, as folders may be nested deeper than calls
    while unfinished:
        entries, levels = unfinished[-1]
        entry = next(entries, None)
        if entry is None:
            unfinished.pop()
            continue
        is_folder = entry.is_dir(follow_symlinks=False)
        if not is_folder and not entry.is_file(follow_symlinks=False):
            continue
        verdict = _verdict(levels, entry.path, is_folder) if levels else None
        if verdict or entry.name == GIT or (verdict is None and entry.name.startswith(".")):
            continue
        if is_folder:
            unfinished.append(_open(entry.path, levels))
        else:
            yield entry.path[start:]


def _open(folder, levels):
    """(its entries in order, the levels that matter in it, the highest first)."""
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError:
        return iter(()), levels  # not ours to read
    level = _Level(folder, {entry.name for entry in entries if entry.name in (GIT, IGNORE)})
    if level.is_repository:
        levels = []  # a repository in a repository has its own rules
    return iter(entries), levels if level.rules is None else [*levels, level]


def _levels_above(root):
    """The rules of the folders above the root, the highest first, as far as one repository reaches."""
    levels = []
    while root != "/" and not os.path.lexists(os.path.join(root, GIT)):
        root = os.path.dirname(root)
        level = _Level(root, {name for name in (GIT, IGNORE) if os.path.lexists(os.path.join(root, name))})
        if level.rules is not None:
            levels.insert(0, level)
    return levels


def _verdict(levels, path, is_folder):
    path = os.fsencode(path).decode("latin-1")
    for level in reversed(levels):
        verdict = level.rules.verdict(path[level.prefix :], is_folder)
        if verdict is not None:
            return verdict
    return None
