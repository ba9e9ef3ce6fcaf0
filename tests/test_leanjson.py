"""The worker's JSON says what the standard library's package says: the same text, the same value, the same error."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hermes_sandbox.worker import leanjson

VALUES: list[Any] = [
    1, -1.5, True, None, "", "é \ud800 \x00 \u2028 \"\\", [], {}, {"a": [1, {"b": None}], "é": 1.0}, [[]] * 3,
    {1: 2, None: 3, 1.5: True}, (1, 2), math.inf, {"x": math.nan}, {1, 2}, object(), {(1,): 2}, {"a": object()},
]  # fmt: skip
TEXTS: list[Any] = [
    '{"a": [1, 2.5, "x", null, true]}', " 1", "1 ", "[1,]", "", "[", '"\\ud800"', '"\x01"', "NaN", "-Infinity", "1 2",
    "1e400", '{"a":1,"a":2}', "01", b'{"a":"\xc3\xa9"}', b'"\xff"', "\ufeff1", "[" * 100_000,
]  # fmt: skip


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, float) and math.isnan(theirs):
        return isinstance(ours, float) and math.isnan(ours)
    return bool(ours == theirs)


def outcome(function: Any, *args: Any, **options: Any) -> Any:
    try:
        return function(*args, **options)
    except (ValueError, TypeError, RecursionError) as error:
        return type(error), str(error).partition(" while ")[0]


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("allow_nan", [True, False])
@pytest.mark.parametrize("default", [None, str])
def test_dumps_says_what_the_package_says(value: Any, ascii_only: bool, allow_nan: bool, default: Any) -> None:
    for separators in (leanjson.SPACED, leanjson.COMPACT):
        ours = outcome(leanjson.dumps, value, ascii_only, default, allow_nan, separators)
        theirs = outcome(
            json.dumps,
            value,
            ensure_ascii=ascii_only,
            default=default,
            allow_nan=allow_nan,
            separators=separators[::-1],
        )
        assert ours == theirs


def test_dumps_refuses_a_value_that_contains_itself() -> None:
    value: list[Any] = []
    value.append(value)
    assert outcome(leanjson.dumps, value) == outcome(json.dumps, value)
    assert outcome(leanjson.dumps, value)[0] is ValueError


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text)[:30])
def test_loads_says_what_the_package_says(text: Any) -> None:
    assert same(outcome(leanjson.loads, text), outcome(json.loads, text))


def test_it_works_where_the_interpreter_has_no_c_parts() -> None:
    code = (
        "import sys; sys.modules['_json'] = None; sys.path.insert(0, sys.argv[1]); import leanjson\n"
        "assert leanjson.make_encoder is None\n"
        "print(leanjson.dumps({'a': [1, 'é']}, False, separators=leanjson.COMPACT), leanjson.loads(b'[1]'))"
    )
    folder = Path(leanjson.__file__).parent
    found = subprocess.run(
        [sys.executable, "-I", "-c", code, folder], capture_output=True, encoding="utf-8", check=True, timeout=60
    )
    assert found.stdout.strip() == '{"a":[1,"é"]} [1]'


def test_the_package_is_not_imported() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import leanjson; assert 'json' not in sys.modules"
    subprocess.run([sys.executable, "-I", "-S", "-c", code, Path(leanjson.__file__).parent], check=True, timeout=60)
