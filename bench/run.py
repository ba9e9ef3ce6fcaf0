"""Prints one JSON line for each figure: `python bench/run.py [NAME ...]`, a name being a group or the start of one."""

from __future__ import annotations

import importlib
import sys

from measure import emit

# group -> where it is measured; the order is that of a whole run
GROUPS = {
    "warm_async": "warm",
    "warm_sync": "warm",
    "transfer": "warm",
    "cold": "cold",
    "command_line": "cold",
    "definitions": "definitions",
    "terminal": "terminal",
    "memory": "memory",
    "deadline": "deadline",
    "crowd": "crowd",
}


def main(wanted: list[str]) -> int:
    chosen = [group for group in GROUPS if not wanted or any(group.startswith(name) for name in wanted)]
    if not chosen:
        print(f"no such figure; there are: {', '.join(GROUPS)}", file=sys.stderr)
        return 2
    for group in chosen:
        for figure in getattr(importlib.import_module(GROUPS[group]), group)():
            emit(figure)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
