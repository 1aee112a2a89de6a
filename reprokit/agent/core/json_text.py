"""Writes and reads JSON without the json module, whose import takes longer than all else that is done at start."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_make_scanner: Any = None
try:
    from _json import encode_basestring_ascii as _quote_ascii
    from _json import make_scanner as _make_scanner
except ImportError:  # a Python without its C accelerator
    from json.encoder import encode_basestring_ascii as _quote_ascii

MAX_TEXT = 1 << 20


class _Decoding:
    """The settings of json.JSONDecoder, as the C scanner reads them."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int = float, int
    parse_constant = float  # of NaN and the like, which nobody writes here


def from_json(text: str) -> object:
    """Return the value of a JSON text; raise ValueError if it is none."""
    try:
        value, end = _make_scanner(_Decoding)(text, len(text) - len(text.lstrip()))
        if not text[end:].strip():
            return value
    except (ValueError, StopIteration, TypeError, AttributeError):  # no JSON, or another Python's scanner
        pass
    import json

    return json.loads(text)


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
