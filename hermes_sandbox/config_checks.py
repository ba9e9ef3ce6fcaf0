"""One check for each kind of value in the operator's files, and the tables of what may stand where.

toolsets.toml and config.yaml have the same keys for toolsets, tools and policies, so they share these. A check takes a
value and the path of its key, `FILE: a.b.c`; it returns the value as the structs of `config` have it, or raises Refused
with that path and what to write instead.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hermes_sandbox.errors import Refused
from hermes_sandbox.policy import OPTIONS, PolicyLayer, layer

Check = Callable[[Any, str], Any]

USER = "user:"  # in front of a module's name: the operator's own, in HERMES_HOME/tools
CHILDREN = ("kill", "keep")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def table(value: Any, where: str) -> dict[str, Any]:
    """A table whose keys are text. A YAML section with nothing in it is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        name = where.partition(": ")[2]
        begin = f"[{name}]" if _is_toml(where) else f"{name.rpartition('.')[2]}:"
        raise Refused(f"{where} is no table", hint=f"write {begin} and its keys below")
    for key in value:
        if not isinstance(key, str):
            raise Refused(f"{where}: the key {key!r} is no text", hint="write it in quotes")
    return value


def _is_toml(where: str) -> bool:
    return where.partition(": ")[0].endswith(".toml")


def known_keys(found: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    for key in found:
        if key not in known:
            raise Refused(f"{where}.{key}: unknown key", hint=nearest(key, known))


def nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]}?" if near else f"the keys are: {', '.join(known)}"


def entries(value: Any, checks: Mapping[str, Check], where: str) -> dict[str, dict[str, Any]]:
    """Name -> what its table says, of a table of tables that all have the keys of `checks`."""
    return {name: entry(each, checks, f"{where}.{name}") for name, each in table(value, where).items()}


def entry(value: Any, checks: Mapping[str, Check], where: str) -> dict[str, Any]:
    found = table(value, where)
    known_keys(found, checks, where)
    return {key: checks[key](each, f"{where}.{key}") for key, each in found.items()}


def names(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise Refused(f"{where} is no list of names", hint='write a list, such as ["read_file", "patch"]')
    return tuple(value)


def text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise Refused(f"{where} is no text", hint="write it in quotes")
    return value


def flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise Refused(f"{where} is neither true nor false", hint="write true or false, without quotes")
    return value


def percent(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        raise Refused(f"{where} is no percentage", hint="write a number from 0 to 100")
    return value


def module(value: Any, where: str) -> str:
    text(value, where)
    if value and not (value.startswith(USER) and value.removeprefix(USER).isidentifier()):
        raise Refused(f"{where} names no file of the user's", hint='write "user:NAME" for NAME.py')
    return str(value)


def children(value: Any, where: str) -> str:
    if value not in CHILDREN:
        raise Refused(f"{where} is neither kill nor keep", hint='write "kill" or "keep"')
    return str(value)


def _names_of_env(value: Any, where: str) -> None:
    """Names alone. People write values here, or a key in the place of its name: the error shows neither."""
    if isinstance(value, list) and all(isinstance(each, str) and _VARIABLE.fullmatch(each) for each in value):
        return
    texts = [each for each in (value if isinstance(value, list | dict) else [value]) if isinstance(each, str)]
    names = [each.partition("=")[0] for each in texts if "=" in each or isinstance(value, dict)]
    known = ", ".join(filter(_VARIABLE.fullmatch, names))
    hint = 'write a list of names, such as ["EXAMPLE_KEY"], and the value of each into .env, as NAME=VALUE'
    raise Refused(f"{where} is no list of names alone{known and f': {known}'}", hint=hint)


def policy(value: Any, where: str) -> PolicyLayer:
    values = table(value, where)
    try:
        if "env" in values:
            _names_of_env(values["env"], f"{where}.env")
        found = layer(values, where)
    except Refused as error:
        if not _is_toml(where) and any(_is_truth(each) for each in values.values()):
            hint = f"{error.hint} (YAML reads no, off, yes and on as false and true: put words in quotes)"
            raise Refused(error.message, hint=hint) from None
        raise
    for key in ("read", "write", "hide", "packages"):
        for path in values[key] if isinstance(values.get(key), list) else ():
            if not path.startswith(("/", "~/")):  # there is no folder that it could be meant from
                raise Refused(f"{where}.{key} holds the relative path {path!r}", hint="begin it with / or ~/")
    return found


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, list) and any(isinstance(each, bool) for each in value))


def ceiling(value: Any, where: str) -> PolicyLayer:
    found = policy(value, where)
    for key in found.set_keys():
        if OPTIONS[key].order == "free":
            raise Refused(f"{where}.{key}: {key} has no order, so it can have no ceiling", hint="set it in the policy")
    return found


POLICIES: Mapping[str, Check] = {"policy": policy, "ceiling": ceiling}
TOOLSET: Mapping[str, Check] = {"description": text, "tools": names, "includes": names, "aliases": names, **POLICIES}
TOOL: Mapping[str, Check] = {
    "module": module,
    "group": text,
    "children": children,
    "timeout_argument": text,
    **POLICIES,
}
VARIABLE: Mapping[str, Check] = {"description": text, "prompt": text, "url": text, "password": flag}
