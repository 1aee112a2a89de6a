"""Text from a run directory made safe to print: no control characters, no endless lines, no passwords."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from reprokit import redaction

LONGEST = 400  # characters of one text on the screen
LOOKED_AT = 64 << 10  # characters: secrets are taken out before the text is cut

# Control and format characters (terminal escapes, right-to-left overrides, invisible joiners), lone
# surrogates, private use and unassigned ones, and the separators that break a line.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def printable(text: str, limit: int = LONGEST) -> str:
    """Return the text without secrets, with everything that a terminal might act upon spelt out, cut at the limit."""
    text = redaction.shown(text[: max(LOOKED_AT, 2 * limit)])
    if len(text) > limit:
        text = text[: limit - 3] + "..."
    if text.isascii() and text.isprintable():
        return text
    return "".join(_spelt_out(character) for character in text)


def listed(texts: Sequence[str], most: int, between: str = ", ") -> str:
    """Return the first texts in a row, and how many more there are."""
    more = f" and {len(texts) - most:,} more" if len(texts) > most else ""
    return between.join(texts[:most]) + more


def bounded(lines: Iterable[str], most: int, rest: str = "") -> Iterator[str]:
    """Yield the first lines, then one that says how many more there are, and where."""
    everything = list(lines)
    yield from everything[:most]
    if len(everything) > most:
        yield f"and {len(everything) - most:,} more{rest}"


def _spelt_out(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN:
        return character
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
