"""Writes JSON without the json module, whose import takes longer than all that is written at start."""

from __future__ import annotations

try:
    from _json import encode_basestring_ascii as _quote_ascii
except ImportError:  # a Python without its C accelerator
    from json.encoder import encode_basestring_ascii as _quote_ascii

MAX_TEXT = 1 << 20


def to_json(value: object) -> str:
    """Return the value as JSON in pure ASCII; floats that are not finite become null."""
    if isinstance(value, str):
        return _quote(value)
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value) if value - value == 0 else "null"
    if isinstance(value, dict):
        return "{" + ",".join([_quote(str(key)) + ":" + to_json(item) for key, item in value.items()]) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join([to_json(item) for item in value]) + "]"
    raise TypeError(f"no JSON for a {type(value).__qualname__}")


def _quote(text: str) -> str:
    """Return a quoted text; lone surrogates are escaped, as JSON readers reject them."""
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    quoted: str = _quote_ascii(text if len(text) <= MAX_TEXT else text[:MAX_TEXT])
    return quoted
