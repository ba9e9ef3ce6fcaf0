"""Three tools that no agent should have to survive in its own process."""

from __future__ import annotations

import ctypes

from tools.registry import registry


def loop_forever(args, **kw):
    print("round and round")
    while True:
        pass


def take_all_memory(args, **kw):
    kept = []
    while True:
        kept.append(bytearray(16 << 20))


def crash(args, **kw):
    return ctypes.string_at(0)


for handler in (loop_forever, take_all_memory, crash):
    schema = {"description": handler.__name__.replace("_", " "), "parameters": {"type": "object", "properties": {}}}
    registry.register(name=handler.__name__, toolset="hostile", schema=schema, handler=handler)
