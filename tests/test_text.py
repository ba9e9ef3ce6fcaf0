"""Strangers' text: what is shown of it."""

from __future__ import annotations

import sys
import unicodedata

from hermes_sandbox.text import clean


def test_what_could_drive_a_terminal_is_left_out() -> None:
    assert clean("a\x1b[31mb\x07\x00\x9b", 100) == "a[31mb"
    assert clean("\u202eright to left\u200b\ufeff", 100) == "right to left"
    assert clean("\ud800\ue000\U000f0000x", 100) == "x"


def test_newlines_tabs_and_every_script_stay() -> None:
    text = "Grüße\n\t中文 日本 עברית 🙂\u00a0\u2028"
    assert clean(text, 100) == text


def test_each_character_is_kept_or_dropped_by_its_category() -> None:
    dropped = {"Cc", "Cf", "Cs", "Co"}
    for code in (*range(0x3000), *range(0xD7F0, 0xE010), *range(0xFFF0, 0x10010), sys.maxunicode):
        kept = chr(code) in "\n\t" or unicodedata.category(chr(code)) not in dropped
        assert clean(f"a{chr(code)}", 2) == ("a" + chr(code) if kept else "a")


def test_no_more_than_the_limit_is_looked_at() -> None:
    assert clean("abc\x1bdef", 4) == "abc"
