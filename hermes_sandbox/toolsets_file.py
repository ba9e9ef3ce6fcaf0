"""toolsets.toml: the only file that reads TOML.

The bundled file comes first; the operator's, in HERMES_HOME, is merged over it: a toolset or tool that both name is
replaced key by key, anything else is added. A toolsets.toml in a checkout or a working folder is never read: whoever
writes there is not the operator.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hermes_sandbox import config_checks as checks
from hermes_sandbox import files
from hermes_sandbox.bundled import bundled
from hermes_sandbox.config_checks import Check
from hermes_sandbox.errors import Refused

FILE = "toolsets.toml"
TABLES: Mapping[str, Mapping[str, Check]] = {
    "toolsets": checks.TOOLSET,
    "tools": checks.TOOL,
    "env": checks.VARIABLE,
}
_KEYS = ("core", "defaults", *TABLES, "distributions")


def read(home: Path) -> tuple[dict[str, Any], frozenset[str]]:
    """Both files, merged and checked, with every value as the structs of `config` have it; and the paths of the keys
    that the operator's sets, such as "toolsets.file.policy.timeout". Raises Refused with the path of a bad key."""
    merged: dict[str, Any] = {}
    data: dict[str, Any] = {}
    for path in (bundled(FILE), home / FILE):
        data = _parse(path)
        _checked(data, str(path))
        _merge(merged, data)
    return _checked(merged, FILE), frozenset(_paths(data, ""))


def _paths(table: Mapping[str, Any], above: str) -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _paths(value, f"{above}{key}.")
        else:
            yield above + key


def _parse(path: Path) -> dict[str, Any]:
    """A file that is not there says nothing."""
    found = files.read_text(path)
    try:
        return tomllib.loads(found[0]) if found is not None else {}
    except (ValueError, RecursionError) as error:  # besides what TOML has not: a number of 5000 digits
        raise Refused(f"{path} is no TOML: {error}", hint="mend the file, or move it away") from None


def _checked(data: Mapping[str, Any], file: str) -> dict[str, Any]:
    for key in data:
        if key not in _KEYS:
            raise Refused(f"{file}: {key}: unknown key", hint=checks.nearest(key, _KEYS))
    shares = checks.table(data.get("distributions"), f"{file}: distributions")
    return {
        "core": checks.names(data.get("core", []), f"{file}: core"),
        "defaults": checks.policy(data.get("defaults"), f"{file}: defaults"),
        **{kind: checks.entries(data.get(kind), TABLES[kind], f"{file}: {kind}") for kind in TABLES},
        "distributions": {name: _shares(each, f"{file}: distributions.{name}") for name, each in shares.items()},
    }


def _shares(value: Any, where: str) -> dict[str, float]:
    return {name: checks.percent(each, f"{where}.{name}") for name, each in checks.table(value, where).items()}


def _merge(into: dict[str, Any], data: Mapping[str, Any]) -> None:
    for key, value in data.items():
        if isinstance(value, dict) and isinstance(into.setdefault(key, {}), dict):
            _merge(into[key], value)
        else:
            into[key] = value
