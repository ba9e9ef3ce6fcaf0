"""Strangers' text made fit to be shown: bounded, and without what could drive a terminal or hide other text."""

from __future__ import annotations

import unicodedata

_NOT_SHOWN = ("Cc", "Cf", "Cs", "Co")  # control, format, surrogate, private use


def clean(text: str, limit: int) -> str:
    """At most `limit` characters of `text`, without control, format, surrogate and private-use characters; newlines and
    tabs stay. It looks at each different character once: a worker can send many."""
    shown = text[:limit]
    if shown.isprintable():
        return shown
    odd = [ord(c) for c in set(shown) if c not in "\n\t" and unicodedata.category(c) in _NOT_SHOWN]
    return shown.translate(dict.fromkeys(odd)) if odd else shown
