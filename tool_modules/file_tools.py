"""The file tools: read_file, write_file, patch, search_files. They run inside the sandbox, where the files are.

The handlers only take arguments apart and put answers together; the work is in the siblings. _textfile opens and
decodes, _placing writes; _reading; _diffs and _v4a say what a patch wants, _fitting where that is, _patching and
_replacing what becomes of the files, which meet in _drafts; _searching asks _ripgrep or _lines, which sees what
_ignoring leaves. Whatever goes wrong is raised as Unusable and becomes an answer here.
"""

from __future__ import annotations

import re

from tools import _patching, _reading, _replacing, _searching
from tools._placing import write_atomic
from tools._textfile import Unusable, check_path, encode
from tools.registry import registry, tool_error, tool_result

TYPES = {"string": str, "integer": int, "boolean": bool}


def read_file(path, offset, limit):
    return _reading.read(path, offset, limit)


def write_file(path, content, cross_profile):
    data = encode(content)
    write_atomic(path, data)
    return {"success": True, "path": path, "bytes_written": len(data)}


def patch(mode, path, old_string, new_string, replace_all, patch, cross_profile):
    if patch and (mode == "patch" or not old_string):
        return _patching.apply_patch(patch, path or "")
    if mode == "patch":
        raise Unusable("mode=patch needs the argument patch, with a unified diff or a V4A patch in it")
    if not path:
        raise Unusable("mode=replace needs the argument path")
    return _replacing.replace(path, old_string, new_string, replace_all)


def handler_of(work, schema):
    """A handler that gives `work` all the parameters of the schema, the defaults for those that did not come."""
    properties = schema["properties"]

    def handler(args, **kw):
        try:
            given = {name: _argument(name, args.get(name), properties[name]) for name in properties}
            missing = [name for name in schema["required"] if given[name] is None]
            if missing:
                raise Unusable("the argument %s is missing" % missing[0])
            answer = tool_result(work(**given))
        except Unusable as error:
            answer = tool_error(error, **error.facts)
        except OSError as error:
            answer = tool_error("%s: %s" % (error.filename or "the file", error.strerror))
        try:
            answer.encode()
        except UnicodeEncodeError:  # a path or a line with bytes that are no UTF-8, which no JSON can carry
            return re.sub("[\ud800-\udfff]", "\ufffd", answer)
        return answer

    return handler


def _argument(name, value, schema):
    """The supervisor has checked arguments by the schema; who calls a handler by himself may not have."""
    if value is None:
        return schema.get("default")
    wanted = TYPES[schema["type"]]
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise Unusable("the argument %s must be of type %s, not %s" % (name, schema["type"], type(value).__name__))
    if name == "path" and value:
        check_path(value)
    return value


def text(description, **more):
    return dict({"type": "string", "description": description}, **more)


def number(description, **more):
    return dict({"type": "integer", "description": description}, **more)


def flag(description):
    return {"type": "boolean", "description": description, "default": False}


def register(name, work, description, required, properties):
    parameters = {"type": "object", "properties": properties, "required": required}
    schema = {"name": name, "description": description, "parameters": parameters}
    registry.register(name=name, toolset="file", schema=schema, handler=handler_of(work, parameters))


CROSS_PROFILE = flag("Accepted for compatibility; the sandbox decides what is in reach")

register(
    "read_file",
    read_file,
    "Read a text file with line numbers, a part at a time. Binary files, images and special files are named, not read.",
    ["path"],
    {
        "path": text("Path of the file, relative to the workspace or absolute", minLength=1),
        "offset": number("First line to read, counted from 1", minimum=1, default=1),
        "limit": number("How many lines at most", minimum=1, maximum=2000, default=500),
    },
)
register(
    "write_file",
    write_file,
    "Write a file, replacing it whole if it exists. Makes missing folders. To change a part of a file use patch.",
    ["path", "content"],
    {
        "path": text("Path of the file, relative to the workspace or absolute", minLength=1),
        "content": text("The whole new content"),
        "cross_profile": CROSS_PROFILE,
    },
)
register(
    "patch",
    patch,
    "Change files. mode=replace puts new_string in the place of old_string, which must be unique in the file (or "
    "replace_all). mode=patch applies a unified diff or a V4A patch (*** Begin Patch) to one or more files; line "
    "numbers need not be right. Either everything is changed or nothing.",
    [],
    {
        "mode": text("How the change is given", enum=["replace", "patch"], default="replace"),
        "path": text("replace: the file"),
        "old_string": text("replace: the text to find, with enough around it to be unique"),
        "new_string": text("replace: the text to put there"),
        "replace_all": flag("replace: change every occurrence"),
        "patch": text("patch: a unified diff or a V4A patch"),
        "cross_profile": CROSS_PROFILE,
    },
)
register(
    "search_files",
    _searching.search,
    "Search file contents by a regular expression, line by line, or (target=files) file names by a glob. Honours "
    ".gitignore, skips hidden and binary files, and reports the total beside the page.",
    ["pattern"],
    {
        "pattern": text("content: a regular expression; files: a glob such as *.py, or a part of a name"),
        "target": text("What to search", enum=["content", "files"], default="content"),
        "path": text("The file or folder to search", default="."),
        "file_glob": text("content: only files whose name or path matches, such as *.py"),
        "limit": number("How many results on the page", minimum=1, maximum=1000, default=50),
        "offset": number("How many results to skip", minimum=0, default=0),
        "output_mode": text(
            "content: the lines; files_only: the files; count: how many lines in each file",
            enum=["content", "files_only", "count"],
            default="content",
        ),
        "context": number("content: how many lines before and after each", minimum=0, maximum=20, default=0),
    },
)
