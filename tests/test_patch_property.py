"""patch against difflib: for any text and any edits, the diff of the two makes the one into the other, byte for byte.

Line numbers are then shifted, or left out with the counts. Where every line is the only one of its kind that changes
nothing; where lines repeat, the place may be refused, but the file is then as it was.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tool_loader import load

CALM = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NUMBERS = re.compile(r"^@@ -(\d+)((?:,\d+)?) \+\d+((?:,\d+)?) @@$", re.MULTILINE)
ENDS = st.sampled_from(["\n", "\n", "\r\n"])
WORDS = st.sampled_from(["", " ", "x", "\tx", "x ", "é", "-- x", "++ x", "@@", "“q”", "\\ x"])


@st.composite
def edited(draw: st.DrawFn, unique: bool) -> tuple[list[str], list[str]]:
    """The lines of a text, and those of the text after some edits. Each line has its end, the last ones perhaps."""

    def lines(most: int, side: str) -> list[str]:
        words = draw(st.lists(st.tuples(WORDS, ENDS), max_size=most))
        return [f"{word}{f' {side}{at}' if unique else ''}{end}" for at, (word, end) in enumerate(words)]

    old = lines(30, "old")
    new = list(old)
    for turn in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(new)))
        new[at : at + draw(st.integers(0, 3))] = lines(3, f"new{turn}.")
    return [_perhaps_bare(draw(st.booleans()), each) for each in (old, new)]  # type: ignore[return-value]


def _perhaps_bare(bare: bool, lines: list[str]) -> list[str]:
    return [*lines[:-1], lines[-1].rstrip("\r\n")] if bare and lines and lines[-1].strip() else lines


def diff_of(old: list[str], new: list[str]) -> str:
    found = difflib.unified_diff(old, new, "a/f", "b/f", n=2)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in found)


def outcome(folder: Path, old: list[str], diff: str) -> bytes | None:
    """What the file is after the patch; None if it was refused, and it is as it was."""
    before = "".join(old).encode()
    (folder / "f").write_bytes(before)
    answer = load()["patch"]({"mode": "patch", "patch": diff})
    after = (folder / "f").read_bytes()
    if "error" in answer:
        assert after == before
        return None
    return after


def wanted(new: list[str]) -> bytes:
    return "".join(new).encode()


@pytest.fixture
def folder(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(workspace)
    return workspace


@given(edited(unique=False))
@CALM
def test_a_diff_does_what_it_says(folder: Path, texts: tuple[list[str], list[str]]) -> None:
    old, new = texts
    if old != new and diff_of(old, new):
        assert outcome(folder, old, diff_of(old, new)) == wanted(new)


@given(edited(unique=True), st.integers(-20, 20), st.booleans())
@CALM
def test_line_numbers_and_counts_need_not_be_right(
    folder: Path, texts: tuple[list[str], list[str]], shift: int, bare: bool
) -> None:
    old, new = texts
    if old == new or not old:
        return
    diff = diff_of(old, new)
    if any(count == ",0" for _start, count, _new in NUMBERS.findall(diff)):
        return  # it shows no line of the old file
    header = "@@" if bare else rf"@@ -{{}}\2 +{len(new)}\3 @@"
    wrong = NUMBERS.sub(lambda found: found.expand(header.format(max(1, int(found.group(1)) + shift))), diff)
    assert outcome(folder, old, wrong) == wanted(new)


@given(edited(unique=False))
@CALM
def test_without_numbers_it_is_right_or_refused(folder: Path, texts: tuple[list[str], list[str]]) -> None:
    old, new = texts
    if old != new:
        after = outcome(folder, old, NUMBERS.sub("@@", diff_of(old, new)))
        assert after in (None, wanted(new))
