"""Where the folders beside the package lie: in the wheel below `_bundled/`, in a checkout one folder up."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def bundled(name: str) -> Path:
    """The path of `runners`, `tool_modules`, `images` or `toolsets.toml`."""
    inside = _PACKAGE / "_bundled"
    return (inside if inside.is_dir() else _PACKAGE.parent) / name
