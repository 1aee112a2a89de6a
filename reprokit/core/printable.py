"""Makes text from a run directory safe to print: no control characters, no endless lines, no passwords."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import TypeVar

from reprokit.core import redaction

T = TypeVar("T")

LONGEST = 400  # characters of one text on the screen
LOOKED_AT = 64 << 10  # characters: secrets are taken out before the text is cut

# Control and format characters (terminal escapes, right-to-left overrides, invisible joiners), lone
# surrogates, private use and unassigned ones, and the separators that break a line.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def printable(text: str, limit: int = LONGEST) -> str:
    """Return the text without secrets, with everything that a terminal might act upon spelt out, cut at the limit."""
    text = cut(redaction.shown(text[: max(LOOKED_AT, 2 * limit)]), limit)
    return text if text.isprintable() else "".join(map(_spelt_out, text))


def cut(text: str, limit: int) -> str:
    """Return a text of at most so many characters; a longer one is cut and ends in dots."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def listed(texts: Sequence[str], most: int, between: str = ", ") -> str:
    """Return the first texts in a row, and how many more there are."""
    more = f" and {len(texts) - most:,} more" if len(texts) > most else ""
    return between.join(texts[:most]) + more


def bounded(items: Iterable[T], most: int, rest: str = "", line: Callable[[T], str] = str) -> Iterator[str]:
    """Yield a line for each of the first items, then one that says how many more there are, and where."""
    left = iter(items)
    yield from map(line, islice(left, most))
    more = sum(1 for _ in left)
    if more:
        yield f"and {more:,} more{rest}"


@lru_cache(4096)
def _spelt_out(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN:
        return character
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
