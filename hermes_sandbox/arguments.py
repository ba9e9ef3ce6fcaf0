"""A call's arguments: forgiving about how a model writes them, strict about what they are.

Models write "42" for 42, "true" for true, a JSON string for a list, and one item for a list of one; where the schema
leaves no doubt what was meant, it is made so (as Hermes does). Then the schema decides, by jsonschema-rs.

A schema is a stranger's word, and must not hold the supervisor up. Patterns run on a linear-time engine, references to
anything outside the schema are not followed, and where references make it possible that one value is looked at in very
many ways (`a` is this `b` or that `b`, `b` is this `c` or that `c`, ...) these are counted before the validator starts.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import msgspec

from hermes_sandbox.errors import InvalidArguments

MAX_SHOWN = 60  # characters of a value that an error repeats
MAX_DEPTH = 64
MAX_LOOKS = 10_000  # at parts of the schema, for one call's arguments; the validator needs up to 0.2 s for them

# Which parts of a schema look at the same value again, and which at what is in it.
_AGAIN = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")
_INSIDE = (
    *("items", "prefixItems", "contains", "unevaluatedItems"),
    *("additionalProperties", "patternProperties", "unevaluatedProperties"),
)


def prepare(schema: Mapping[str, Any], args: Any) -> dict[str, Any]:
    """The arguments to send: a new dict that fits `schema`. `args` may be a dict, the text of one, or None.

    Raises InvalidArguments that names the field, what was expected and what came."""
    if args is None:
        args = {}
    if isinstance(args, str):
        try:
            args = msgspec.json.decode(args)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            raise InvalidArguments(
                f"the arguments are no JSON: {error}", hint='write an object: {"name": "value"}'
            ) from None
    if not isinstance(args, dict):
        raise InvalidArguments(
            f"the arguments are {_kind(args)}, not an object", hint='write an object: {"name": "value"}'
        )
    plain = _plain(args)
    coerced = _coerce(plain, schema, 0)
    encoded = msgspec.json.encode(schema)
    if b'"$ref"' in encoded or b'"$dynamicRef"' in encoded:
        _count_looks(schema, coerced)
    if (wrong := next(_errors(validator(encoded), schema, coerced), None)) is not None:
        raise wrong
    return coerced  # type: ignore[no-any-return]


def _plain(args: dict[str, Any]) -> dict[str, Any]:
    """A deep copy as plain JSON data; what has no JSON is the caller's error."""
    try:
        copied: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(_finite(args, 0)))
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise InvalidArguments(
            f"the arguments have no JSON: {error}", hint="pass plain data, and text without lone surrogates"
        ) from None
    return copied


def _finite(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise InvalidArguments(f"the arguments are nested more than {MAX_DEPTH} deep")
    if isinstance(value, float) and value - value != 0:
        raise InvalidArguments(f"{value} is no number that JSON knows", hint="pass a finite number")
    if isinstance(value, dict):
        for name, item in value.items():
            _finite(item, depth + 1)
            if not isinstance(name, str):
                raise InvalidArguments(f"{name!r} is no name of an argument")
    elif isinstance(value, list | tuple):
        for item in value:
            _finite(item, depth + 1)
    return value


def _coerce(value: Any, schema: Any, depth: int) -> Any:
    """`value` as `schema` means it, where that is plain; else unchanged."""
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return value
    types = _types(schema)
    if isinstance(value, str) and "string" not in types:
        value = _from_text(value, types)
    if (
        "array" in types
        and not isinstance(value, list)
        and value is not None
        and not types & {_kind_name(value), "object"}
    ):
        value = [value]
    if isinstance(value, dict) and isinstance(properties := schema.get("properties"), Mapping):
        return {name: _coerce(item, properties.get(name), depth + 1) for name, item in value.items()}
    if isinstance(value, list) and "items" in schema:
        return [_coerce(item, schema["items"], depth + 1) for item in value]
    return value


def _types(schema: Mapping[str, Any]) -> set[str]:
    declared = schema.get("type")
    types = {declared} if isinstance(declared, str) else {t for t in declared or () if isinstance(t, str)}
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            types |= {t for part in schema[key] if isinstance(part, Mapping) for t in _types(part)}
    if schema.get("nullable") is True:
        types.add("null")
    return types


def _from_text(text: str, types: set[str]) -> Any:
    stripped = text.strip()
    if "null" in types and stripped.lower() in ("null", "none"):
        return None
    if "boolean" in types and stripped.lower() in ("true", "false"):
        return stripped.lower() == "true"
    if types & {"integer", "number", "array", "object"}:
        try:
            parsed = msgspec.json.decode(stripped)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            return text
        _finite(parsed, 0)
        if isinstance(parsed, float) and parsed.is_integer() and "number" not in types:
            parsed = int(parsed)
        if _kind_name(parsed) in types or (
            isinstance(parsed, int) and not isinstance(parsed, bool) and "number" in types
        ):
            return parsed
    return text


def _count_looks(schema: Mapping[str, Any], args: Any) -> None:
    """Walk the schema as a validator would, following references. Raises InvalidArguments when that has no good end."""
    todo: list[tuple[Any, Any]] = [(schema, args)]
    looks = 0
    while todo:
        node, value = todo.pop()
        if not isinstance(node, Mapping):
            continue
        looks += 1
        if looks > MAX_LOOKS:
            raise InvalidArguments(
                f"the schema can be read in too many ways for these arguments: more than {MAX_LOOKS}",
                hint="nest the arguments less deeply, or mend the tool's schema",
            )
        todo += [(_referred(schema, node[key]), value) for key in ("$ref", "$dynamicRef") if key in node]
        todo += [(part, value) for key in _AGAIN for part in _parts(key, node)]
        if isinstance(value, dict):
            properties = node.get("properties")
            if isinstance(properties, Mapping):
                todo += [(properties[name], item) for name, item in value.items() if name in properties]
            value = list(value.values())
        if isinstance(value, list):
            todo += [(part, item) for key in _INSIDE for part in _parts(key, node) for item in value]


def _parts(key: str, node: Mapping[str, Any]) -> list[Any]:
    """The schemas below a keyword: one, a list, or for the two that have names a table of them."""
    found = node.get(key)
    if isinstance(found, Mapping) and key in ("dependentSchemas", "patternProperties"):
        return list(found.values())
    return found if isinstance(found, list) else [found]


def _referred(schema: Any, reference: Any) -> Any:
    """What "#/a/b" refers to. Raises InvalidArguments for any other kind of reference."""
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        try:
            for step in unquote(reference[1:]).split("/")[1:]:
                name = step.replace("~1", "/").replace("~0", "~")
                schema = schema[int(name)] if isinstance(schema, list) else schema[name]
        except (KeyError, IndexError, ValueError, TypeError):
            pass
        else:
            return schema
    raise InvalidArguments(f"the tool's schema refers to {reference!r}", hint="it may refer to #/$defs/NAME in itself")


def _errors(checker: Any, schema: Mapping[str, Any], args: dict[str, Any]) -> Iterator[InvalidArguments]:
    for error in checker.iter_errors(args):
        path = ".".join(str(part) for part in error.instance_path) or "the arguments"
        message = str(error.message)
        if len(message) > 300:
            message = message[:300] + "..."
        yield InvalidArguments(f"{path}: {message}", hint=_hint(schema, args))


def _hint(schema: Mapping[str, Any], args: dict[str, Any]) -> str:
    properties = schema.get("properties")
    names = list(properties) if isinstance(properties, Mapping) else []
    missing = [name for name in schema.get("required") or () if isinstance(name, str) and name not in args]
    for name in args:
        if name not in names and (near := difflib.get_close_matches(name, missing or names, n=1)):
            return f"did you mean {near[0]} instead of {name}?"
    return f"it takes: {', '.join(names)}" if names else ""


@functools.lru_cache(maxsize=512)
def validator(schema: bytes) -> Any:
    """The compiled schema. Raises ValueError when it is no sound schema, names something outside itself, or has a
    pattern that the linear-time engine does not know."""
    import jsonschema_rs

    def refuse(address: str) -> Any:
        raise ValueError(f"it refers to {address}, outside itself")

    try:
        return jsonschema_rs.Draft202012Validator(
            msgspec.json.decode(schema), pattern_options=jsonschema_rs.RegexOptions(), retriever=refuse
        )
    except Exception as error:  # the library has several kinds, and a schema is a stranger's
        raise ValueError(str(error)[:300]) from None


def _kind_name(value: Any) -> str:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "object"


def _kind(value: Any) -> str:
    return {"integer": "an integer", "array": "an array", "object": "an object"}.get(
        _kind_name(value), f"a {_kind_name(value)}"
    )
