"""The file tools: read_file, write_file, patch, search_files. They run inside the sandbox, where the files are.

The handlers only take arguments apart and put answers together; the work is in the siblings: _textfile (open, decode,
replace), _reading, _diffs (what a patch says), _patching (where it fits), _searching and _ignoring.
"""

from __future__ import annotations

from tools import _patching, _reading, _searching
from tools._textfile import Unusable, encode, write_atomic
from tools.registry import registry, tool_error, tool_result


def guarded(work):
    """A handler out of a function of the arguments that returns plain data or raises Unusable."""

    def handler(args, **kw):
        try:
            return tool_result(work(args))
        except Unusable as error:
            return tool_error(error)

    return handler


def read_file(args):
    return _reading.read(args["path"], args.get("offset", 1), args.get("limit", 500))


def write_file(args):
    data = encode(args["content"])
    write_atomic(args["path"], data)
    return {"success": True, "path": args["path"], "bytes_written": len(data)}


def patch(args):
    text = args.get("patch") or ""
    if text and not args.get("old_string"):
        return _patching.apply_patch(text)
    if args.get("mode") == "patch":
        raise Unusable("mode=patch needs the argument patch, with a unified diff or a V4A patch in it")
    path = args.get("path") or ""
    if not path:
        raise Unusable("mode=replace needs the argument path")
    return _patching.replace(path, args.get("old_string") or "", args.get("new_string"), bool(args.get("replace_all")))


def search_files(args):
    return _searching.search(
        pattern=args["pattern"],
        target=args.get("target", "content"),
        path=args.get("path") or ".",
        file_glob=args.get("file_glob"),
        limit=args.get("limit", 50),
        offset=args.get("offset", 0),
        output_mode=args.get("output_mode", "content"),
        context=args.get("context", 0),
    )


def text(description, **more):
    return dict({"type": "string", "description": description}, **more)


def number(description, **more):
    return dict({"type": "integer", "description": description}, **more)


def flag(description):
    return {"type": "boolean", "description": description, "default": False}


def register(name, work, description, required, properties):
    parameters = {"type": "object", "properties": properties, "required": required}
    schema = {"name": name, "description": description, "parameters": parameters}
    registry.register(name=name, toolset="file", schema=schema, handler=guarded(work))


CROSS_PROFILE = flag("Accepted for compatibility; the sandbox decides what is in reach")

register(
    "read_file",
    read_file,
    "Read a text file with line numbers, a part at a time. Binary files, images and special files are named, not read.",
    ["path"],
    {
        "path": text("Path of the file, relative to the workspace or absolute"),
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
        "path": text("Path of the file, relative to the workspace or absolute"),
        "content": text("The whole new content"),
        "cross_profile": CROSS_PROFILE,
    },
)
register(
    "patch",
    patch,
    "Change files. mode=replace puts new_string in the place of old_string, which must be unique in the file (or "
    "replace_all). mode=patch applies a unified diff or a V4A patch (*** Begin Patch) to one or more files; line numbers "
    "need not be right. Either everything is changed or nothing.",
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
    search_files,
    "Search file contents by a regular expression, or (target=files) file names by a glob. Honours .gitignore, skips "
    "hidden and binary files, and reports the total beside the page.",
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
