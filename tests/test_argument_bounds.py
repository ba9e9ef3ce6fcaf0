"""Names of arguments that nobody knows, and what a schema's names and patterns may cost."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hermes_sandbox.arguments import MAX_PATTERNS, prepare
from hermes_sandbox.errors import InvalidArguments

READING: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "limit": {"type": "integer"},
        "edits": {"type": "array", "items": {"type": "object", "properties": {"replace_all": {"type": "boolean"}}}},
        "how": {"anyOf": [{"type": "object", "properties": {"encoding": {"type": "string"}}}, {"type": "null"}]},
    },
    "required": ["path"],
}


@pytest.mark.parametrize(
    ("given", "told", "meant"),
    [
        ({"limt": 1}, "limt", "limit"),
        ({"Limit": 1}, "Limit", "limit"),
        ({"zzz": 0, "limt": 1}, "limt", "limit"),
        ({"edits": [{}, {"replace_al": True}]}, "edits.1.replace_al", "replace_all"),
        ({"how": {"encodin": "x"}}, "how.encodin", "encoding"),
    ],
)
def test_a_slip_of_the_pen_is_no_argument_that_nobody_knows(given: dict[str, Any], told: str, meant: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        prepare(READING, {"path": "a.txt", **given})
    assert caught.value.message == f"{told} is no argument of the tool"
    assert caught.value.hint == f"did you mean {meant}?"


@pytest.mark.parametrize("given", [{"zzz": 1}, {"limit": 1, "limits": 2}, {"edits": [{"why": "x"}]}, {"how": None}])
def test_other_names_that_nobody_knows_pass(given: dict[str, Any]) -> None:
    assert prepare(READING, {"path": "a", **given}) == {"path": "a", **given}


@pytest.mark.parametrize("more", [{"additionalProperties": True}, {"patternProperties": {"^l": {}}}, {"allOf": [{}]}])
def test_where_the_schema_says_which_other_names_it_takes_they_pass(more: dict[str, Any]) -> None:
    assert prepare({**READING, **more}, {"path": "a", "limt": 1}) == {"path": "a", "limt": 1}


def test_what_names_are_compared_with_is_bounded() -> None:
    schema = {"type": "object", "properties": {f"property_{n}": {} for n in range(10_000)}, "required": ["property_1"]}
    strange = {f"propertie_{n}x": 1 for n in range(2000)}
    began = time.monotonic()
    with pytest.raises(InvalidArguments):
        prepare(schema, strange)
    with pytest.raises(InvalidArguments):
        prepare(schema, {**strange, "property_1": 1})
    prepare(schema, {"property_1": 1, "x" * 1_000_000: 1})
    assert time.monotonic() - began < 1


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"pattern": f"a{n}"} for n in range(MAX_PATTERNS + 1)]},
        {"patternProperties": {f"a{n}": {} for n in range(MAX_PATTERNS + 1)}},
        {"pattern": "[^x]*a[^x]{5000}b"},
        {"patternProperties": {"((a{100}){100}){100}": {}}},
    ],
    ids=["many", "many of names", "large", "large name"],
)
def test_patterns_are_bounded_in_number_and_size(schema: dict[str, Any]) -> None:
    began = time.monotonic()
    with pytest.raises(InvalidArguments, match="the tool's schema cannot be used"):
        prepare(schema, {})
    assert time.monotonic() - began < 0.5


def test_what_patterns_look_at_is_bounded() -> None:
    again = [{"pattern": f"[^x]*a[^x]{{90}}b{n}"} for n in range(MAX_PATTERNS)]
    schema = {"type": "object", "properties": {"a": {"allOf": again}}}
    began = time.monotonic()
    with pytest.raises(InvalidArguments, match="too many ways"):
        prepare(schema, {"a": "a" * 100_000})
    with pytest.raises(InvalidArguments, match="a: "):
        prepare(schema, {"a": "a" * 1000})
    assert time.monotonic() - began < 2
