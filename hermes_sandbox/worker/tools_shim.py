"""The synthetic `tools` package that tool files import from, and what they registered in this worker.

A tool file written for Hermes says `from tools.registry import registry, tool_error, tool_result`. Here `tools` is a
package without a file: its path is the folder of the tool files that travelled with us, and `tools.registry` is this
module's registry, which accepts every keyword that a Hermes of any age may pass and reports those it does not know.
The registry only records; which tool wins a name is decided in the supervisor, which never sees a callable.

`tools.sandbox` is what Hermes has not: its one name, `programs`, runs programs in front of a call and in the background
(programs.py). It is made when a tool asks for it.
"""

import sys

from hermes_worker import leanjson

ModuleType = type(sys)


class Entry:
    """One `registry.register` call. `module` is the name of the module that made it."""

    def __init__(self, module, fields, extra):
        self.module = module
        self.extra = extra
        self.name = fields["name"]
        self.schema = fields["schema"]
        self.toolset = fields["toolset"]
        self.handler = fields["handler"]
        self.check_fn = fields["check_fn"]
        self.requires_env = fields["requires_env"]
        self.is_async = fields["is_async"]
        self.description = fields["description"]
        self.emoji = fields["emoji"]
        self.max_result_size_chars = fields["max_result_size_chars"]
        self.overrides_fn = fields["dynamic_schema_overrides"]
        self.override = fields["override"]

    def describe(self):
        """The plain data of this entry: what the supervisor may know of it."""
        size = self.max_result_size_chars
        if not isinstance(size, (int, float)) or size != size or size in (float("inf"), float("-inf")):
            size = None  # infinite means no limit, and JSON has no word for it
        return {
            "name": str(self.name),
            "toolset": str(self.toolset),
            "schema": self.schema,
            "requires_env": [str(name) for name in self.requires_env or ()],
            "is_async": bool(self.is_async),
            "has_check": self.check_fn is not None,
            "has_overrides": self.overrides_fn is not None,
            "description": str(self.description or ""),
            "emoji": str(self.emoji or ""),
            "max_result_size_chars": size,
            "override": bool(self.override),
            "extra": sorted(str(name) for name in self.extra),
        }


class Registry:
    """What a tool file sees as `registry`. The last registration of a name in this worker wins."""

    def __init__(self):
        self.entries = {}
        self.aliases = {}

    def register(
        self,
        name,
        toolset,
        schema,
        handler,
        check_fn=None,
        requires_env=None,
        is_async=False,
        description="",
        emoji="",
        max_result_size_chars=None,
        dynamic_schema_overrides=None,
        override=False,
        **extra,
    ):
        if not isinstance(schema, dict):
            raise TypeError("registry.register(%r): schema must be a dict, not %s" % (name, type(schema).__name__))
        if not callable(handler):
            raise TypeError("registry.register(%r): handler must be callable, not %s" % (name, type(handler).__name__))
        fields = {key: value for key, value in locals().items() if key not in ("self", "extra")}
        self.entries[name] = Entry(sys._getframe(1).f_globals.get("__name__", ""), fields, extra)

    def deregister(self, name):
        self.entries.pop(name, None)

    def register_toolset_alias(self, alias, toolset):
        self.aliases[alias] = toolset


registry = Registry()


def tool_error(message, **extra):
    """The JSON string of a failed call: {"error": message, ...extra}."""
    return leanjson.dumps(dict({"error": str(message)}, **extra), False, default=str)


def tool_result(data=None, **fields):
    """The JSON string of `data`, or of the keywords if there is no data."""
    return leanjson.dumps(fields if data is None else data, False, default=str)


def _get_hermes_home():
    import os
    from pathlib import Path

    return Path(os.environ.get("HERMES_HOME") or os.path.join(os.path.expanduser("~"), ".hermes"))


def _no_sandbox():
    raise RuntimeError("there is no worker here that could run a program")


def install(folder, sandbox=_no_sandbox):
    """Make `tools` importable, with the tool files in `folder`, and `hermes_constants` for the one name it is used
    for. `sandbox()` gives what `tools.sandbox.programs` is."""
    package = ModuleType("tools")
    package.__path__ = [folder]
    facade = ModuleType("tools.registry")
    facade.__dict__.update(registry=registry, tool_error=tool_error, tool_result=tool_result)
    place = ModuleType("tools.sandbox")

    def lazily(name):
        if name == "programs":
            return sandbox()
        raise AttributeError(name)

    place.__dict__.update(__getattr__=lazily)
    package.__dict__.update(registry=facade, sandbox=place)
    constants = ModuleType("hermes_constants")
    constants.__dict__.update(get_hermes_home=_get_hermes_home)
    sys.modules.update({"tools": package, "tools.registry": facade, "tools.sandbox": place})
    sys.modules["hermes_constants"] = constants
