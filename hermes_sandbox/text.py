"""Strangers' text made fit to be shown: bounded, and without what could drive a terminal or hide other text."""

from __future__ import annotations

import unicodedata


def clean(text: str, limit: int) -> str:
    """At most `limit` characters of `text`, without control, format, surrogate and private-use characters; newlines and
    tabs stay."""
    return "".join(c for c in text[:limit] if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co"))
