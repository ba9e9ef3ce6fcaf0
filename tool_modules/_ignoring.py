"""Which files a search sees: a walk in a fixed order that honours .gitignore, as git and ripgrep read it.

Hidden files and folders are left out, symbolic links are not followed. Patterns of a folder's .gitignore hold for what
is below it; deeper files and later lines win; `!` takes a file back in, unless its folder is left out.
"""

from __future__ import annotations

import os
import re

from tools._textfile import Unusable, open_regular

MAX_IGNORE_FILE = 1 << 20  # bytes
MAX_ALTERNATIVES = 256  # of a glob with braces


def glob_regex(glob):
    """A compiled regex for a path relative to where the glob stands, in .gitignore's dialect.

    Without a slash (but at the end) the name may be at any depth; with one the pattern stands where it is."""
    anchored = "/" in glob.strip("/") or glob.startswith("/")
    core = _translate(glob.strip("/"))
    return re.compile(("" if anchored else "(?:.*/)?") + core + r"\Z", re.DOTALL)


def _translate(glob):
    out, at = [], 0
    while at < len(glob):
        char = glob[at]
        if glob.startswith("**/", at) and (at == 0 or glob[at - 1] == "/"):
            out.append("(?:.*/)?")
            at += 3
            continue
        if glob[at:] == "**" and (at == 0 or glob[at - 1] == "/"):
            out.append(".*")
            break
        if char == "*":
            out.append("[^/]*")
        elif char == "?":
            out.append("[^/]")
        elif char == "[" and (end := _class_end(glob, at)):
            inner = glob[at + 1 : end].replace("\\", "\\\\")
            out.append("[" + ("^" + inner[1:] if inner[0] in "!^" else inner) + "]")
            at = end
        elif char == "\\" and at + 1 < len(glob):
            at += 1
            out.append(re.escape(glob[at]))
        else:
            out.append(re.escape(char))
        at += 1
    return "".join(out)


def _class_end(glob, at):
    """The index of the bracket that closes the class which opens at `at`, or 0."""
    first = at + 2 if glob[at + 1 : at + 2] in ("!", "^") else at + 1
    return glob.find("]", first + 1) + 1 and glob.find("]", first + 1)


def expand_braces(glob):
    """*.{py,txt} as [*.py, *.txt]; nested ones too. Raises Unusable for absurdly many."""
    found = [glob]
    while any("{" in each for each in found):
        expanded = []
        for each in found:
            inner = re.search(r"\{([^{}]*)\}", each)
            if inner is None:
                return found
            for choice in inner.group(1).split(","):
                expanded.append(each[: inner.start()] + choice + each[inner.end() :])
        if len(expanded) > MAX_ALTERNATIVES:
            raise Unusable("the glob has more than %d alternatives" % MAX_ALTERNATIVES)
        found = expanded
    return found


def glob_filter(glob):
    """A function that says whether a path relative to the search's root matches the glob, braces included."""
    if not glob:
        return lambda path: True
    try:
        patterns = [glob_regex(each) for each in expand_braces(glob)]
    except re.error as error:
        raise Unusable("file_glob %r cannot be used: %s" % (glob, error)) from None
    return lambda path: any(pattern.match(path) for pattern in patterns)


class Rules:
    """The lines of one .gitignore. `verdict` is True (left out), False (taken back in) or None (no line says)."""

    def __init__(self, text):
        self.rules = []
        for line in text.splitlines():
            line = re.sub(r"(?<!\\) +$", "", line)
            if not line or line.startswith("#"):
                continue
            taken_in = line.startswith("!")
            line = line[1:] if taken_in else line
            try:
                self.rules.append((glob_regex(line), line.endswith("/"), not taken_in))
            except re.error:
                continue  # git takes a pattern that cannot be one for one that matches nothing

    def verdict(self, path, is_folder):
        for pattern, only_folders, left_out in reversed(self.rules):
            if (is_folder or not only_folders) and pattern.match(path):
                return left_out
        return None


def walk(root):
    """Paths of the files below `root` that are not left out, relative to it, in the order of their parts."""
    yield from _walk(root, "", [])


def _walk(root, folder, stack):
    here = os.path.join(root, folder) if folder else root
    try:
        with os.scandir(here) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError:
        return  # not ours to read
    rules = _rules_of(here)
    if rules is not None:
        stack = [*stack, (folder, rules)]
    for entry in entries:
        if entry.name.startswith("."):
            continue
        path = folder + "/" + entry.name if folder else entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        if _left_out(stack, path, is_folder):
            continue
        if is_folder:
            yield from _walk(root, path, stack)
        elif entry.is_file(follow_symlinks=False):
            yield path


def _rules_of(folder):
    try:
        with open_regular(os.path.join(folder, ".gitignore")) as file:
            return Rules(file.read(MAX_IGNORE_FILE).decode("utf-8", "surrogateescape"))
    except (Unusable, OSError):
        return None


def _left_out(stack, path, is_folder):
    for folder, rules in reversed(stack):
        verdict = rules.verdict(path[len(folder) + 1 :] if folder else path, is_folder)
        if verdict is not None:
            return verdict
    return False
