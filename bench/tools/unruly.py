"""Tools that end late or print too much: what the figures on limits are measured with."""

from __future__ import annotations

import os
import time

from tools.registry import registry

MEGABYTE = 1_000_000
FOREVER = 3600  # s; every wait here is ended from outside, or by this


def obey(args, **kw):
    time.sleep(FOREVER)


def resist(args, **kw):
    """Go on whatever is raised in here."""
    until = time.monotonic() + FOREVER
    while time.monotonic() < until:
        try:
            time.sleep(1)
        except BaseException:
            continue


def storm(args, **kw):
    """Have processes compete for the CPU, each deaf to TERM."""
    import signal

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in range(args["forks"]):
        if os.fork() == 0:
            break
    until = time.monotonic() + 20
    while time.monotonic() < until:
        pass
    os._exit(0)


def flood(args, **kw):
    line = b"x" * 99 + b"\n"
    block = line * (MEGABYTE // len(line))
    for _ in range(args["megabytes"]):
        os.write(1, block)
    return "done"


def touch(args, **kw):
    return "here"


def schema(name, **properties):
    return {"name": name, "parameters": {"type": "object", "properties": properties, "required": list(properties)}}


for tool, fields in (
    (obey, {}),
    (resist, {}),
    (storm, {"forks": {"type": "integer"}}),
    (flood, {"megabytes": {"type": "integer"}}),
    (touch, {}),
):
    name = "bench_" + tool.__name__
    registry.register(name, "bench", schema(name, **fields), tool)
