"""A call's arguments: forgiving about how a model writes them, strict about what they are.

Models write "42" for 42, "true" for true, a JSON string for a list, and one item for a list of one; where the schema
leaves no doubt what was meant, it is made so (as Hermes does). What fits as it is stays as it is: "null" for a text
that may be null is that text. Then the schema decides, by jsonschema-rs (13 ms to import, at the first call).

A schema is a stranger's word, and must not hold the supervisor up. Patterns run on a linear-time engine, references to
anything outside the schema are not followed, and where one value can be looked at in very many ways (`a` is this `b` or
that `b`, `b` is this `c` or that `c`, ... or a long list under a long schema) these are counted before the validator
starts. Patterns are bounded in number and in size when compiled, and each character they look at counts. Words for what
is wrong cost the validator a thousand times more than a yes or no, so they are asked for last, and once.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

from hermes_sandbox.errors import InvalidArguments

MAX_SHOWN = 60  # characters of a value that an error repeats
MAX_TOLD = 300  # characters of what was expected
MAX_DEPTH = 64
MAX_LOOKS = 1_000_000  # of a part of the schema at a value, for one call's arguments; some 0.3 s
MAX_EXPLAINED = 200_000  # looks for which the validator can say what is wrong, in about the same time
PLACE = 20  # looks that a part of the schema costs by itself, however few values it looks at
SMALL = 1 << 20  # bytes of schema times bytes of arguments: below, there are few looks without references
MAX_PATTERNS = 64  # of one schema
MAX_PATTERN = 200_000  # bytes of one when compiled: 0.5 ms; the engine would take 10 MB
MAX_OPTIONS = 16  # values of an enum that are told
MAX_HINTED = 8  # names of arguments that are compared with names of properties, for one call
MAX_NEAR = 200  # properties that one is compared with
ALIKE = 0.8  # how near a name must be to be taken for a slip of the pen
MASK = "\N{OBJECT REPLACEMENT CHARACTER}"  # stands for a value in the validator's words, which would repeat all of it

# Which parts of a schema look at the same value again, and which at what is in it.
_AGAIN = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")
_INSIDE = (
    *("items", "prefixItems", "contains", "unevaluatedItems"),
    *("additionalProperties", "patternProperties", "unevaluatedProperties"),
)
# Which keywords say more of the names that an object may have.
_OPEN = (
    *("allOf", "if", "dependentSchemas", "propertyNames"),
    *("additionalProperties", "patternProperties", "unevaluatedProperties"),
)


def prepare(schema: Mapping[str, Any], args: Any) -> dict[str, Any]:
    """The arguments to send: a new dict that fits `schema`. `args` may be a dict, the text of one, or None.

    Raises InvalidArguments that names the field, what was expected and what came."""
    encoded = msgspec.json.encode(schema)
    try:
        checker = validator(encoded)
    except ValueError as error:
        raise InvalidArguments(f"the tool's schema cannot be used: {error}", hint="mend the tool") from None
    plain, size = _plain(args)
    coerced: dict[str, Any] = checker.coerce(plain)
    many = checker.refers or checker.patterns or len(encoded) * size > SMALL
    looks = _count_looks(checker.schema, coerced) if many else 0
    if not checker.compiled.is_valid(coerced):
        raise InvalidArguments(checker.explain(coerced, looks), hint=_hint(schema, coerced))
    for path, near in islice(checker.strange(coerced, checker.schema), MAX_HINTED):
        if near:
            raise InvalidArguments(f"{path} is no argument of the tool", hint=f"did you mean {near}?")
    return coerced


# What came ------------------------------------------------------------------------------------------------------------


def _plain(args: Any) -> tuple[dict[str, Any], int]:
    """A deep copy as plain JSON data, and its bytes; what has no JSON is the caller's error."""
    write = 'write an object: {"name": "value"}'
    if args is None:
        return {}, 0
    if isinstance(args, str):
        try:
            args = msgspec.json.decode(args)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            raise InvalidArguments(f"the arguments are no JSON: {error}", hint=write) from None
    if not isinstance(args, dict):
        raise InvalidArguments(f"the arguments are {_kind(args)}, not an object", hint=write)
    try:
        encoded = msgspec.json.encode(_finite(args, 0))
        return msgspec.json.decode(encoded), len(encoded)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise InvalidArguments(
            f"the arguments have no JSON: {error}", hint="pass plain data, and text without lone surrogates"
        ) from None


def _finite(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise InvalidArguments(f"the arguments are nested more than {MAX_DEPTH} deep")
    if isinstance(value, float) and value - value != 0:
        raise InvalidArguments(f"{value} is no number that JSON knows", hint="pass a finite number")
    if isinstance(value, dict):
        for name, item in value.items():
            _finite(item, depth + 1)
            if not isinstance(name, str):
                raise InvalidArguments(f"{_short(repr(name))} is no name of an argument")
    elif isinstance(value, list | tuple):
        for item in value:
            _finite(item, depth + 1)
    return value


# What is meant, and what is wrong -------------------------------------------------------------------------------------


class _Shape(NamedTuple):
    """What a schema says of the values it takes, its alternatives and what it refers to included. `properties` and
    `items` are set where only one of these has them. `open`: it says itself which other names it takes."""

    types: frozenset[str] = frozenset()
    properties: Mapping[str, Any] | None = None
    items: Any = None
    open: bool = False


class Checker:
    """One schema, compiled. `refers`: it has references, so one of its parts may count many times over. `patterns`:
    it has some, which cost as long as the texts are that they look at."""

    def __init__(self, schema: bytes, compiled: Any, patterns: bool) -> None:
        self.schema = msgspec.json.decode(schema)
        self.compiled = compiled
        self.patterns = patterns
        self.refers = b'"$ref"' in schema or b'"$dynamicRef"' in schema
        self._shapes: dict[int, _Shape] = {}

    def coerce(self, args: dict[str, Any]) -> Any:
        return self._coerce(args, self.schema, 0)

    def _coerce(self, value: Any, node: Any, depth: int) -> Any:
        """`value` as `node` means it, where that is plain; else unchanged."""
        if not isinstance(node, Mapping) or depth > MAX_DEPTH:
            return value
        types, properties, items, _ = self._shape(node, 0)
        if isinstance(value, str) and "string" not in types:
            value = _from_text(value, types)
        kind = _kind_name(value)
        if kind == "number" and "number" not in types and "integer" in types and value.is_integer():
            value = int(value)
        elif "array" in types and kind not in ("array", "null") and not types & {kind, "object"}:
            value = value if kind == "integer" and "number" in types else [value]
        if isinstance(value, dict) and properties is not None:
            return {name: self._coerce(item, properties.get(name), depth + 1) for name, item in value.items()}
        if isinstance(value, list) and items is not None:
            return [self._coerce(item, items, depth + 1) for item in value]
        return value

    def _shape(self, node: Mapping[str, Any], depth: int) -> _Shape:
        """Each node's is found once: a schema may have as many nodes as the arguments have values."""
        if depth > MAX_DEPTH:
            return _Shape(open=True)
        if (known := self._shapes.get(id(node))) is not None:
            return known
        self._shapes[id(node)] = _Shape()  # for a node that leads back to itself
        parts = [*_parts("anyOf", node), *_parts("oneOf", node)]
        if "$ref" in node:
            parts.append(_referred(self.schema, node["$ref"]))
        shapes = [self._shape(part, depth + 1) for part in parts if isinstance(part, Mapping)]
        properties = [each.properties for each in shapes if each.properties is not None]
        items = [each.items for each in shapes if each.items is not None]
        own = node.get("properties")
        shape = _Shape(
            _types(node).union(*(each.types for each in shapes)),
            own if isinstance(own, Mapping) else properties[0] if len(properties) == 1 else None,
            node.get("items", items[0] if len(items) == 1 else None),
            any(key in node for key in _OPEN) or any(each.open for each in shapes) or len(properties) > 1,
        )
        self._shapes[id(node)] = shape
        return shape

    def strange(self, value: Any, node: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
        """Names that no property has, where the schema does not say that there may be others: the path, and the
        property that must have been meant, or "". Hermes drops names that nobody knows; but a `limt` that is dropped
        is a limit that does not hold."""
        if not isinstance(node, Mapping) or depth > MAX_DEPTH:
            return
        shape = self._shape(node, 0)
        if isinstance(value, dict) and shape.properties:
            for name, item in value.items():
                if name in shape.properties:
                    if isinstance(item, dict | list):
                        yield from self.strange(item, shape.properties[name], f"{path}{name}.", depth + 1)
                elif not shape.open:
                    left = [each for each in islice(shape.properties, MAX_NEAR) if each not in value]
                    yield _short(path + name), "".join(_near(name, left, ALIKE))
        elif isinstance(value, list) and shape.items:
            for number, item in enumerate(value):
                if isinstance(item, dict | list):
                    yield from self.strange(item, shape.items, f"{path}{number}.", depth + 1)

    def explain(self, args: dict[str, Any], looks: int) -> str:
        """What is wrong with arguments that do not fit."""
        import jsonschema_rs

        if looks > MAX_EXPLAINED:
            return "the arguments do not fit the schema; where is too much to look for among so many"
        try:
            self.compiled.validate(args)
        except jsonschema_rs.ValidationError as error:
            path, text = _told(error)
            return f"{path or 'the arguments'}: {text[:MAX_TOLD]}"
        raise AssertionError("what did not fit now fits")


def _told(error: Any) -> tuple[str, str]:
    """The path of the field, and words. Of several alternatives the one that got furthest into the value is meant; if
    none got in, all are told."""
    first = [branch[0] for branch in getattr(error.kind, "context", None) or () if branch]
    if first and max(len(each.instance_path) for each in first) > len(error.instance_path):
        return _told(max(first, key=lambda each: len(each.instance_path)))
    words = [_words(each) for each in first] if 0 < len(first) <= 8 else [_words(error)]
    return ".".join(map(str, error.instance_path)), ", and ".join(dict.fromkeys(words))


def _words(error: Any) -> str:
    value = _short(msgspec.json.encode(error.instance).decode())
    if error.kind.name == "enum":  # the library names two
        options = [_short(msgspec.json.encode(each).decode()) for each in error.kind.options[:MAX_OPTIONS]]
        more = len(error.kind.options) - len(options)
        return f"{value} is not one of {', '.join(options)}" + (f" and {more} more" if more else "")
    return str(error.message).replace(MASK, value)


def _types(node: Mapping[str, Any]) -> frozenset[str]:
    """The types that a schema itself names."""
    declared = node.get("type")
    types = {declared} if isinstance(declared, str) else {each for each in declared or () if isinstance(each, str)}
    return frozenset(types | {"null"} if node.get("nullable") is True else types)


def _from_text(text: str, types: frozenset[str]) -> Any:
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
        if _kind_name(parsed) in types or (_kind_name(parsed) == "integer" and "number" in types):
            return parsed
    return text


def _count_looks(schema: Mapping[str, Any], args: Any) -> int:
    """Walk the schema as a validator would, following references, with all values of a place together. Raises
    InvalidArguments when that has no good end."""
    todo: list[tuple[Any, list[Any]]] = [(schema, [args])]
    looks = 0
    while todo:
        node, values = todo.pop()
        if not isinstance(node, Mapping) or not values:
            continue
        looks += PLACE + len(values)
        if looks > MAX_LOOKS:
            raise InvalidArguments(
                f"the schema can be read in too many ways for these arguments: more than {MAX_LOOKS}",
                hint="pass less, nest it less deeply, or mend the tool's schema",
            )
        if isinstance(node.get("pattern"), str):
            looks += sum(len(value) for value in values if isinstance(value, str))
        if isinstance(patterns := node.get("patternProperties"), Mapping):
            names = sum(len(name) + 1 for value in values if isinstance(value, dict) for name in value)
            looks += names * len(patterns)
        again = [part for key in _AGAIN for part in _parts(key, node)]
        again += [_referred(schema, node[key]) for key in ("$ref", "$dynamicRef") if key in node]
        todo += [(part, values) for part in again]
        inside = [part for key in _INSIDE for part in _parts(key, node)]
        contents: list[Any] = [item for value in values if isinstance(value, list) for item in value]
        named: dict[str, list[Any]] = {}
        for value in values:
            if isinstance(value, dict):
                contents += value.values()
                for name, item in value.items():
                    named.setdefault(name, []).append(item)
        todo += [(part, contents) for part in inside]
        if isinstance(properties := node.get("properties"), Mapping):
            todo += [(properties[name], items) for name, items in named.items() if name in properties]
    return looks


def _parts(key: str, node: Mapping[str, Any]) -> list[Any]:
    """The schemas below a keyword: one, a list, or for the two that have names a table of them."""
    found = node.get(key)
    if isinstance(found, Mapping):
        return list(found.values()) if key in ("dependentSchemas", "patternProperties") else [found]
    return found if isinstance(found, list) else []


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


def _hint(schema: Mapping[str, Any], args: dict[str, Any]) -> str:
    properties = schema.get("properties")
    table = properties if isinstance(properties, Mapping) else {}
    names = list(table)
    missing = [name for name in schema.get("required") or () if isinstance(name, str) and name not in args]
    for name in islice((name for name in args if name not in table), MAX_HINTED):
        if near := _near(name, (missing or names)[:MAX_NEAR], 0.6):
            return f"did you mean {near[0]} instead of {name}?"
    return f"it takes: {', '.join(names[:MAX_NEAR])}" if names else ""


def _near(name: str, names: list[str], alike: float) -> list[str]:
    """The nearest name, or none. Comparing takes the product of the lengths."""
    if len(name) > MAX_SHOWN:
        return []
    return difflib.get_close_matches(name, [each for each in names if len(each) <= MAX_SHOWN], n=1, cutoff=alike)


@functools.lru_cache(maxsize=512)
def validator(schema: bytes) -> Checker:
    """The compiled schema. Raises ValueError when it is no sound schema, names something outside itself, or has a
    pattern that the linear-time engine does not know."""
    import jsonschema_rs

    def refuse(address: str) -> Any:
        raise ValueError(f"it refers to {address}, outside itself")

    node = msgspec.json.decode(schema)
    patterns = _count_patterns(node)
    if patterns > MAX_PATTERNS:
        raise ValueError(f"it has {patterns} patterns, more than {MAX_PATTERNS}")
    engine = jsonschema_rs.RegexOptions(size_limit=MAX_PATTERN, dfa_size_limit=MAX_PATTERN)
    try:
        compiled = jsonschema_rs.Draft202012Validator(node, pattern_options=engine, retriever=refuse, mask=MASK)
    except jsonschema_rs.ValidationError as error:
        path, text = _told(error)
        raise ValueError(f"{path}: {text}"[:MAX_TOLD] if path else text[:MAX_TOLD]) from None
    except Exception as error:  # the library has several kinds, and a schema is a stranger's
        raise ValueError(str(error)[:MAX_TOLD]) from None
    return Checker(schema, compiled, patterns > 0)


def _count_patterns(schema: Any) -> int:
    """Of all that could be patterns, wherever they stand: a reference may make a schema of anything."""
    todo = [schema]
    found = 0
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            found += isinstance(node.get("pattern"), str)
            found += len(table) if isinstance(table := node.get("patternProperties"), dict) else 0
            todo += node.values()
        elif isinstance(node, list):
            todo += node
    return found


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def _kind_name(value: Any) -> str:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "object"


def _kind(value: Any) -> str:
    return {"integer": "an integer", "array": "an array", "object": "an object"}.get(
        _kind_name(value), f"a {_kind_name(value)}"
    )
