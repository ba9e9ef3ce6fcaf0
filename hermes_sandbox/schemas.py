"""Makes a tool's schema sound: one shape out of the two that tool files use, and only what validators and models
take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from hermes_sandbox.arguments import validator

MAX_SCHEMA = 256 << 10  # bytes of JSON
MAX_DEPTH = 64
_COMBINERS = (
    "allOf",
    "anyOf",
    "oneOf",
    "enum",
    "not",
)  # not at the top level: providers refuse a tool that has them there


class BadSchema(Exception):
    """The schema cannot be used; the message says why."""


def parameters_of(schema: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Description and parameters out of a registered schema, bare or nested. Raises BadSchema."""
    function = schema.get("function")
    if schema.get("type") == "function" and isinstance(function, Mapping):
        schema = function
    description = schema.get("description")
    parameters = schema.get("parameters")
    clean = _node(parameters if isinstance(parameters, Mapping) else {}, 0)
    clean = {key: value for key, value in clean.items() if key not in _COMBINERS}
    clean["type"] = "object"
    if not isinstance(clean.get("properties"), dict):
        clean["properties"] = {}
    if isinstance(clean.get("required"), list):
        names = [name for name in clean["required"] if isinstance(name, str)]
        clean["required"] = [name for name in names if name in clean["properties"]]
    _check(clean)
    return description if isinstance(description, str) else "", clean


def _node(node: Any, depth: int) -> Any:
    """One node of a schema and all below it, in the plain form: {"type": X}, one type, nullable as a flag."""
    if depth > MAX_DEPTH:
        raise BadSchema(f"the schema is nested more than {MAX_DEPTH} deep")
    if isinstance(node, str):
        return {"type": node}
    if not isinstance(node, Mapping):
        return node
    clean = {str(key): _part(str(key), value, depth) for key, value in node.items()}
    types = clean.get("type")
    if isinstance(types, str) and clean.pop("nullable", None) is True:
        types = [types, "null"]
    if isinstance(types, list):
        clean = _split_types(clean, [each for each in types if isinstance(each, str)])
    if "$ref" in clean:
        clean.pop("default", None)
    return clean


def _part(key: str, value: Any, depth: int) -> Any:
    if key in ("properties", "$defs", "definitions", "patternProperties") and isinstance(value, Mapping):
        return {str(name): _node(item, depth + 1) for name, item in value.items()}
    if key in ("items", "additionalProperties", "not"):
        return value if isinstance(value, bool) else _node(value, depth + 1)
    if key in ("anyOf", "oneOf", "allOf") and isinstance(value, list):
        return [_node(item, depth + 1) for item in value]
    return value


def _split_types(node: dict[str, Any], types: list[str]) -> dict[str, Any]:
    """Several types become anyOf. With null among them the node stays nullable for validators as well as for models."""
    rest = {key: value for key, value in node.items() if key != "type"}
    if len(types) == 1:
        return {**rest, "type": types[0]}
    kept: dict[str, Any] = {key: rest.pop(key) for key in ("description", "title", "default") if key in rest}
    return {**kept, "anyOf": [{"type": each} if each == "null" else {"type": each, **rest} for each in types]}


def _check(parameters: dict[str, Any]) -> None:
    try:
        text = msgspec.json.encode(parameters)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise BadSchema(f"the schema is no JSON: {error}") from None
    if len(text) > MAX_SCHEMA:
        raise BadSchema(f"the schema has {len(text)} bytes, more than {MAX_SCHEMA}")
    try:
        validator(text)
    except ValueError as error:
        raise BadSchema(f"the schema is not sound: {error}") from None
