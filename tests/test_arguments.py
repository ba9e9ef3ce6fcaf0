"""Arguments: forgiving about how a model writes them, strict about what they are, and never slow."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_sandbox.arguments import MAX_DEPTH, prepare
from hermes_sandbox.errors import InvalidArguments

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "text": {"type": "string"},
        "names": {"type": "array", "items": {"type": "string"}},
        "numbers": {"type": "array", "items": {"type": "integer"}},
        "options": {"type": "object", "properties": {"deep": {"type": "boolean"}}},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "mode": {"enum": ["a", "b"], "type": "string"},
        "free": {},
        "small": {"type": "integer", "minimum": 1, "maximum": 9},
    },
}


@pytest.mark.parametrize(
    ("name", "given", "sent"),
    [
        ("count", "42", 42),
        ("count", " 42 ", 42),
        ("count", "42.0", 42),
        ("count", 42, 42),
        ("count", "123456789012345678901234567890", 123456789012345678901234567890),
        ("ratio", "0.5", 0.5),
        ("ratio", "3", 3),
        ("flag", "true", True),
        ("flag", "False", False),
        ("text", "42", "42"),
        ("text", "null", "null"),
        ("text", "[1]", "[1]"),
        ("names", '["a", "b"]', ["a", "b"]),
        ("names", "a", ["a"]),
        ("names", [], []),
        ("numbers", "7", [7]),
        ("numbers", ["1", 2], [1, 2]),
        ("numbers", 7, [7]),
        ("options", '{"deep": "true"}', {"deep": True}),
        ("options", {"deep": "false"}, {"deep": False}),
        ("maybe", "null", None),
        ("maybe", "None", None),
        ("maybe", "5", 5),
        ("either", "5", "5"),
        ("free", "42", "42"),
        ("mode", "a", "a"),
        ("small", "9", 9),
    ],
)
def test_what_a_model_means(name: str, given: object, sent: object) -> None:
    found = prepare(SCHEMA, {name: given})[name]
    assert (found, type(found)) == (sent, type(sent))


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("count", "4.5", '"4.5" is not of type "integer"'),
        ("count", "many", '"many" is not of type "integer"'),
        ("count", True, "true is not of type"),
        ("count", "true", "is not of type"),
        ("count", None, "null is not of type"),
        ("count", "1e400", "is not of type"),
        ("ratio", "NaN", "is not of type"),
        ("flag", "yes", "is not of type"),
        ("flag", 1, "1 is not of type"),
        ("text", 5, "5 is not of type"),
        ("numbers", ["x"], '"x" is not of type "integer"'),
        ("names", {"a": 1}, "names"),
        ("mode", "c", "c"),
        ("small", "10", "10"),
    ],
)
def test_what_does_not_fit_is_named_with_what_came(name: str, given: object, told: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        prepare(SCHEMA, {name: given})
    assert caught.value.message.startswith(name)
    assert told in caught.value.message


def test_a_field_deep_inside_is_named_by_its_path() -> None:
    with pytest.raises(InvalidArguments, match=r"^options\.deep: "):
        prepare(SCHEMA, {"options": {"deep": "perhaps"}})
    with pytest.raises(InvalidArguments, match=r"^numbers\.1: "):
        prepare(SCHEMA, {"numbers": [1, "x"]})


def test_a_missing_field_and_a_near_name() -> None:
    schema = {
        "type": "object",
        "properties": {"path": {"type": "string"}},
        "required": ["path"],
        "additionalProperties": False,
    }
    with pytest.raises(InvalidArguments) as caught:
        prepare(schema, {"pth": "x"})
    assert caught.value.hint == "did you mean path instead of pth?"
    with pytest.raises(InvalidArguments) as caught:
        prepare(schema, {})
    assert '"path" is a required property' in caught.value.message
    assert caught.value.hint == "it takes: path"


def test_the_callers_own_data_is_not_changed() -> None:
    given = {"numbers": ["1"], "options": {"deep": "true"}}
    prepare(SCHEMA, given)
    assert given == {"numbers": ["1"], "options": {"deep": "true"}}


def test_text_of_an_object_is_read_and_none_is_empty() -> None:
    assert prepare(SCHEMA, '{"count": 1}') == {"count": 1}
    assert prepare(SCHEMA, None) == {}


class Odd:
    pass


@pytest.mark.parametrize(
    "args",
    [
        "not json",
        "[1]",
        "5",
        "null",
        '"text"',
        [1],
        5,
        True,
        '{"a": NaN}',
        "[" * 5000,
        "\ud800",
        '{"a": "\\ud800"}',
        {"a": float("nan")},
        {"a": [float("inf")]},
        {1: 2},
        {"a": {1: 2}},
        {"a": "\ud800"},
        {"a": Odd()},
    ],
)
def test_what_is_no_object_of_plain_data(args: object) -> None:
    with pytest.raises(InvalidArguments) as caught:
        prepare(SCHEMA, args)
    assert caught.value.message


def test_nesting_is_bounded() -> None:
    deep: object = 1
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    assert prepare(SCHEMA, {"free": deep}) == {"free": deep}
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidArguments, match=f"more than {MAX_DEPTH} deep"):
        prepare(SCHEMA, {"free": deep})


def test_nesting_in_a_text_is_bounded_too() -> None:
    schema = {"properties": {"a": {"type": "array"}}}
    assert prepare(schema, {"a": "[" * 9 + "]" * 9}) == {"a": [[[[[[[[[]]]]]]]]]}
    with pytest.raises(InvalidArguments, match="deep"):
        prepare(schema, {"a": "[" * 900 + "]" * 900})


def test_a_cycle_is_no_plain_data() -> None:
    args: dict[str, object] = {}
    args["self"] = args
    with pytest.raises(InvalidArguments):
        prepare(SCHEMA, args)


def test_an_error_does_not_repeat_megabytes() -> None:
    with pytest.raises(InvalidArguments) as caught:
        prepare(SCHEMA, {"count": "x" * 5_000_000})
    assert len(caught.value.message) < 400


def test_a_pattern_that_backtracks_elsewhere_is_linear_here() -> None:
    schema = {"properties": {"text": {"type": "string", "pattern": "^(a+)+$"}}}
    began = time.monotonic()
    with pytest.raises(InvalidArguments, match="text"):
        prepare(schema, {"text": "a" * 50_000 + "b"})
    assert time.monotonic() - began < 2


def test_a_schema_that_doubles_at_each_level_does_not_hold_up_anybody() -> None:
    """30 levels of "this or this" are a billion ways to look at one value."""
    levels = {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(30)}
    schema = {"$defs": {**levels, "a30": {"type": "integer"}}, "properties": {"x": {"$ref": "#/$defs/a0"}}}
    began = time.monotonic()
    with pytest.raises(InvalidArguments, match="too many ways"):
        prepare(schema, {"x": "text"})
    assert time.monotonic() - began < 2


def test_a_recursive_schema_that_doubles_with_the_arguments_depth_is_bounded() -> None:
    node = {"type": "object", "properties": {"c": {"$ref": "#/$defs/t"}}}
    schema = {"$defs": {"t": {"anyOf": [node, node]}}, "properties": {"x": {"$ref": "#/$defs/t"}}}
    args: dict[str, object] = {"c": 1}
    for _ in range(40):
        args = {"c": args}
    began = time.monotonic()
    with pytest.raises(InvalidArguments, match="too many ways"):
        prepare(schema, {"x": args})
    assert time.monotonic() - began < 2
    assert prepare(schema, {"x": {"c": {"c": {}}}}) == {"x": {"c": {"c": {}}}}


def test_an_ordinary_recursive_schema_works_as_deep_as_people_write() -> None:
    either = [
        {"type": "object", "properties": {key: {"type": "array", "items": {"$ref": "#/$defs/f"}}}, "required": [key]}
        for key in ("and", "or")
    ]
    leaf = {"type": "object", "properties": {"is": {"type": "string"}}, "required": ["is"]}
    schema = {"$defs": {"f": {"anyOf": [*either, leaf]}}, "properties": {"where": {"$ref": "#/$defs/f"}}}
    where: dict[str, object] = {"is": "x"}
    for key in ("and", "or") * 2:
        where = {key: [where, {"is": "y"}]}
    assert prepare(schema, {"where": where}) == {"where": where}
    with pytest.raises(InvalidArguments, match=r"^where"):
        prepare(schema, json.loads(json.dumps({"where": where}).replace('"is"', '"isnt"')))


@pytest.mark.parametrize("pointer", ["#/$defs/a~1b%25", "#/$defs/list/anyOf/0", "#/properties/y"])
def test_references_are_followed_wherever_they_point(pointer: str) -> None:
    number = {"type": "integer"}
    schema = {
        "$defs": {"a/b%": number, "list": {"anyOf": [number]}},
        "properties": {"x": {"$ref": pointer}, "y": number},
    }
    assert prepare(schema, {"x": 1}) == {"x": 1}
    with pytest.raises(InvalidArguments, match=r"^x: "):
        prepare(schema, {"x": "one"})


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
def test_references_by_an_anchor_are_refused(keyword: str) -> None:
    """They could lead anywhere, and no tool's schema has them."""
    schema = {"$defs": {"a": {"$anchor": "a", "type": "integer"}}, "properties": {"x": {keyword: "#a"}}}
    with pytest.raises(InvalidArguments, match="refers to '#a'"):
        prepare(schema, {"x": 1})


def test_a_long_list_under_a_long_schema_is_counted_before_it_is_walked() -> None:
    parts = [{"minLength": length} for length in range(1, 2001)]
    schema = {"properties": {"x": {"type": "array", "items": {"allOf": parts}}}}
    began = time.monotonic()
    with pytest.raises(InvalidArguments, match="too many ways"):
        prepare(schema, {"x": [""] * 10_000})
    assert time.monotonic() - began < 2
    with pytest.raises(InvalidArguments, match=r"^x\.0: "):
        prepare(schema, {"x": [""]})


def test_a_long_text_that_is_a_list_costs_its_length_and_not_the_schemas() -> None:
    schema = {"properties": {"x": {"type": "array", "items": {"anyOf": [{"type": "integer"}] * 5000}}}}
    began = time.monotonic()
    with pytest.raises(InvalidArguments, match="too many ways"):
        prepare(schema, {"x": str(["1"] * 20_000).replace("'", '"')})
    assert time.monotonic() - began < 2


def test_long_lists_are_fine_and_the_bad_item_is_found() -> None:
    numbers = list(range(100_000))
    assert prepare(SCHEMA, {"numbers": numbers})["numbers"] == numbers
    with pytest.raises(InvalidArguments, match=r"^numbers\.100000: "):
        prepare(SCHEMA, {"numbers": [*numbers, "x"]})


MODEL = {
    "$defs": {"Point": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}},
    "properties": {
        "point": {"$ref": "#/$defs/Point"},
        "maybe": {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]},
        "points": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/Point"}}, {"type": "null"}]},
        "scalar_or_list": {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "number"}]},
    },
}


@pytest.mark.parametrize(
    ("name", "given", "sent"),
    [
        ("point", {"x": "5"}, {"x": 5}),
        ("point", '{"x": "5"}', {"x": 5}),
        ("point", {"x": 5.0}, {"x": 5}),
        ("maybe", {"x": "5"}, {"x": 5}),
        ("maybe", "null", None),
        ("points", [{"x": "5"}], [{"x": 5}]),
        ("points", {"x": "5"}, [{"x": 5}]),
        ("scalar_or_list", 5, 5),
        ("scalar_or_list", "5", 5),
        ("scalar_or_list", ["5"], [5]),
    ],
)
def test_what_lies_behind_a_reference_or_an_alternative_is_meant_too(name: str, given: object, sent: object) -> None:
    found = prepare(MODEL, {name: given})[name]
    assert (found, repr(found)) == (sent, repr(sent))


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("maybe", "x" * 500, ['maybe: "xxx', 'xxx... is not of type "object"', '"null"']),
        ("maybe", {"x": "y"}, ['maybe.x: "y" is not of type "integer"']),
        ("points", [{"x": 1}, {}], ['points.1: "x" is a required property']),
        ("point", 5, ['point: 5 is not of type "object"']),
    ],
)
def test_the_words_say_what_was_expected_however_much_came(name: str, given: object, told: list[str]) -> None:
    with pytest.raises(InvalidArguments) as caught:
        prepare(MODEL, {name: given})
    assert all(words in caught.value.message for words in told), caught.value.message


def test_a_schema_that_cannot_be_used_is_no_crash() -> None:
    with pytest.raises(InvalidArguments, match=r"schema cannot be used: properties\.a\.pattern: "):
        prepare({"properties": {"a": {"pattern": "(?=x)"}}}, {})


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)
ANYTHING = st.recursive(
    st.none() | st.floats() | st.text(st.characters(exclude_categories=())) | st.binary() | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner),
    max_leaves=10,
)
VALID = st.fixed_dictionaries(
    {},
    optional={
        "count": st.integers(),
        "ratio": st.floats(allow_nan=False, allow_infinity=False),
        "flag": st.booleans(),
        "text": st.text() | st.sampled_from(["null", "42", "true", "[1]", '{"a": 1}']),
        "names": st.lists(st.text() | st.sampled_from(["null", "1"])),
        "numbers": st.lists(st.integers()),
        "maybe": st.none() | st.integers(),
        "either": st.integers() | st.text() | st.sampled_from(["5", "null"]),
        "mode": st.sampled_from(["a", "b"]),
        "free": PLAIN,
    },
)


@given(st.dictionaries(st.sampled_from(sorted(SCHEMA["properties"])), PLAIN | ANYTHING) | ANYTHING)
def test_whatever_comes_fits_or_is_an_error_of_the_caller(args: object) -> None:
    try:
        sent = prepare(SCHEMA, args)
    except InvalidArguments:
        return
    assert prepare(SCHEMA, sent) == sent


@pytest.mark.parametrize(("count", "told"), [(8, '"v6", "v7"'), (20, '"v15" and 4 more')])
def test_all_values_that_an_argument_may_have_are_told(count: int, told: str) -> None:
    schema = {"type": "object", "properties": {"action": {"enum": [f"v{n}" for n in range(count)]}}}
    with pytest.raises(InvalidArguments) as caught:
        prepare(schema, {"action": "frob"})
    assert caught.value.message.endswith(told)


@given(VALID)
def test_what_fits_stays_as_it_is(args: dict[str, object]) -> None:
    sent = prepare(SCHEMA, args)
    assert sent == args
    assert prepare(SCHEMA, json.dumps(args)) == args
