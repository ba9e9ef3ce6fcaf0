"""A tool's schema: two shapes, one definition; and what no validator or provider takes is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_sandbox.arguments import prepare
from hermes_sandbox.errors import InvalidArguments
from hermes_sandbox.schemas import MAX_DEPTH, MAX_SCHEMA, BadSchema, parameters_of

EMPTY = {"type": "object", "properties": {}}
PARAMETERS = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


def clean(parameters: Any) -> dict[str, Any]:
    return parameters_of({"parameters": parameters})[1]


def test_both_shapes_give_the_same() -> None:
    bare = {"name": "t", "description": "What it does", "parameters": PARAMETERS}
    assert parameters_of(bare) == ("What it does", PARAMETERS)
    assert parameters_of({"type": "function", "function": bare}) == parameters_of(bare)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"parameters": None},
        {"parameters": []},
        {"parameters": {}},
        {"parameters": {"type": "object"}},
        {"parameters": {"properties": []}},
        {"type": "function", "function": {}},
    ],
)
def test_without_parameters_it_takes_none(schema: dict[str, Any]) -> None:
    assert parameters_of(schema) == ("", EMPTY)


@pytest.mark.parametrize(
    ("node", "plain"),
    [
        ("string", {"type": "string"}),
        ({"type": ["string"]}, {"type": "string"}),
        (
            {"type": ["integer", "null"], "description": "d", "minimum": 1},
            {"description": "d", "anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
        ),
        ({"type": ["integer", "string"]}, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        ({"$ref": "#/$defs/x", "default": 1}, {"$ref": "#/$defs/x"}),
        ({"type": "array", "items": "string"}, {"type": "array", "items": {"type": "string"}}),
        ({"type": "object", "additionalProperties": False}, {"type": "object", "additionalProperties": False}),
        ({"anyOf": ["string", "null"]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"enum": ["object", "x"]}, {"enum": ["object", "x"]}),
        ({"const": {"type": ["a"]}}, {"const": {"type": ["a"]}}),
        (True, True),
    ],
)
def test_a_node_in_its_plain_form(node: Any, plain: Any) -> None:
    found = clean({"$defs": {"x": {"type": "integer"}}, "properties": {"a": node}})
    assert found["properties"]["a"] == plain


def test_a_property_may_have_the_name_of_a_keyword() -> None:
    parameters = {
        "type": "object",
        "properties": {"type": {"type": "string"}, "items": {"type": "string"}, "$ref": {"type": "string"}},
    }
    assert clean(parameters) == parameters


def test_the_top_is_an_object_without_what_providers_refuse() -> None:
    found = clean({"type": "string", "anyOf": [{}], "allOf": [{}], "oneOf": [{}], "enum": [1], "not": {}})
    assert found == EMPTY


def test_required_names_that_are_no_property_go() -> None:
    found = clean({"properties": {"a": {"type": "string"}}, "required": ["a", "b"]})
    assert found["required"] == ["a"]


@pytest.mark.parametrize("node", [{"type": "integer", "nullable": True}, {"type": ["integer", "null"]}])
def test_nullable_takes_null_in_both_spellings(node: dict[str, Any]) -> None:
    schema = clean({"properties": {"a": node}})
    assert prepare(schema, {"a": "null"}) == {"a": None}
    assert prepare(schema, {"a": None}) == {"a": None}
    assert prepare(schema, {"a": "5"}) == {"a": 5}
    with pytest.raises(InvalidArguments):
        prepare(schema, {"a": "x"})


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ({"type": "strng"}, "not sound"),
        ({"type": 5}, "not sound"),
        (None, "not sound"),
        (5, "not sound"),
        ({"minimum": "1"}, "not sound"),
        ({"$ref": "http://example.org/schema"}, "example.org"),
        ({"$ref": "file:///etc/passwd"}, "/etc/passwd"),
        ({"$ref": "#/$defs/missing"}, "not sound"),
        ({"pattern": "(?=a)b"}, "not sound"),  # only an engine that backtracks knows it
        ({"pattern": "("}, "not sound"),
        ({"pattern": "(a{1000}){1000}"}, "not sound"),
        ({"default": "\ud800"}, "no JSON"),
        ({"description": "x" * (MAX_SCHEMA + 1)}, str(MAX_SCHEMA)),
    ],
)
def test_what_is_not_sound_is_refused_with_words(node: Any, why: str) -> None:
    with pytest.raises(BadSchema, match=why):
        clean({"properties": {"a": node}})


def test_depth_is_bounded() -> None:
    node: dict[str, Any] = {"type": "string"}
    for _ in range(10_000):
        node = {"type": "array", "items": node}
    with pytest.raises(BadSchema, match=f"more than {MAX_DEPTH} deep"):
        clean({"properties": {"a": node}})


@pytest.mark.parametrize("key", ["default", "examples", "x-extra"])
def test_depth_where_nobody_looks_is_bounded_too(key: str) -> None:
    value: Any = 1
    for _ in range(100_000):
        value = [value]
    with pytest.raises(BadSchema):
        clean({"properties": {"a": {key: value}}})


@pytest.mark.parametrize("loop", [{"$ref": "#/$defs/a"}, {"allOf": [{"$ref": "#/properties/x"}]}])
def test_a_reference_to_itself_ends(loop: dict[str, Any]) -> None:
    schema = clean({"$defs": {"a": loop}, "properties": {"x": {"$ref": "#/$defs/a"}}})
    with pytest.raises(InvalidArguments, match="too many ways"):
        prepare(schema, {"x": 1})


def test_what_was_given_is_not_changed() -> None:
    given = {"parameters": {"type": "object", "properties": {"a": {"type": ["integer", "null"]}}, "anyOf": []}}
    parameters_of(given)
    assert given == {"parameters": {"type": "object", "properties": {"a": {"type": ["integer", "null"]}}, "anyOf": []}}


@pytest.mark.parametrize("required", [["a", ["a"]], ["a", {}, None, 5], ["a", "b"]])
def test_required_that_holds_odd_things_costs_nobody_else_anything(required: list[object]) -> None:
    assert clean({"properties": {"a": {}}, "required": required})["required"] == ["a"]


KEYWORDS = st.sampled_from(
    "type properties items anyOf oneOf allOf not if then else enum const required $ref $defs $id $anchor $dynamicRef "
    "nullable default pattern minimum additionalProperties patternProperties prefixItems dependentSchemas function "
    "parameters description x".split()
)
WORDS = "x string integer array object null function ( ^a$ # #/properties/x #/$defs/x http://x".split()
LEAVES = st.sampled_from(WORDS) | st.sampled_from([None, True, 0, -1, 0.5, float("nan"), ""])
JUNK = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=4), max_leaves=20
)
TABLES = st.dictionaries(KEYWORDS, JUNK, max_size=5)


@given(TABLES | TABLES.map(lambda junk: {"parameters": {"properties": {"x": junk}}}), JUNK)
def test_whatever_is_registered_is_sound_or_refused(schema: dict[str, Any], args: Any) -> None:
    try:
        parameters = parameters_of(schema)[1]
    except BadSchema:
        return
    assert parameters["type"] == "object"
    assert isinstance(parameters["properties"], dict)
    try:
        prepare(parameters, {"x": args})
    except InvalidArguments:
        return


def test_a_type_that_there_is_not_is_told_with_those_that_there_are() -> None:
    with pytest.raises(BadSchema, match=r'properties\.a\.type: "strin" is not one of .*"string"'):
        parameters_of({"parameters": {"properties": {"a": {"type": "strin"}}}})
