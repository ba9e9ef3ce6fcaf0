"""JSON by the C parts of the standard library's package alone.

The package imports `re` with all that it needs, which a cold start would pay with 3 ms. Where an interpreter has no
such parts, or a text is wrong, the package itself is asked: for the same answer, and for its error.
"""

try:
    from _json import encode_basestring, encode_basestring_ascii, make_encoder, make_scanner
except ImportError:
    make_encoder = make_scanner = None

COMPACT = (":", ",")  # between key and value, and between items
SPACED = (": ", ", ")


class _Context:
    """What the scanner reads its settings from."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int = float, int

    @staticmethod
    def parse_constant(name):
        return {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}[name]


_scan = make_scanner(_Context()) if make_scanner else None


def loads(text):
    """What json.loads gives for a str or bytes (UTF-8). Raises what it raises."""
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    if _scan is not None:
        try:
            value, end = _scan(text, 0)
            if end == len(text):
                return value
        except (StopIteration, ValueError):
            pass  # the package says what is wrong, or knows better: about spaces around the value, say
    import json

    return json.loads(text)


def dumps(value, ascii_only=True, default=None, allow_nan=True, separators=SPACED):
    """What json.dumps gives. Raises what it raises."""
    if make_encoder is None:
        import json

        return json.dumps(
            value, ensure_ascii=ascii_only, default=default, allow_nan=allow_nan, separators=separators[::-1]
        )
    encoder = encode_basestring_ascii if ascii_only else encode_basestring

    def refuse(found):
        raise TypeError("Object of type %s is not JSON serializable" % type(found).__name__)

    if isinstance(value, str):
        return encoder(value)  # the C encoder takes containers alone
    encode = make_encoder({}, default or refuse, encoder, None, *separators, False, False, allow_nan)
    return "".join(encode(value, 0))
