"""The tool of most figures: no imports of its own, an argument that comes back in an answer of four keys."""

from __future__ import annotations

from tools.registry import registry, tool_result


def echo(args, **kw):
    return tool_result(text=args["text"], length=len(args["text"]), task=kw["task_id"], ok=True)


SCHEMA = {
    "name": "bench_echo",
    "description": "Give back a text.",
    "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}
registry.register("bench_echo", "bench", SCHEMA, echo)
