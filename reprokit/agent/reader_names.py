"""What readers of files tell of the samples that they give: file and record, for the ledger of samples."""

from __future__ import annotations

import weakref

from .core.signal_errors import pass_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MAX_WAITING = 1 << 16  # names that nobody takes: no loader asks this iterator
_WAITING: Any = weakref.WeakKeyDictionary()


def file_name(address: str) -> str:
    """Return the last part of a path or URL, as others may hold a password."""
    return address.partition("?")[0].rpartition("/")[2]


def named(iterator: Iterator[Any], name: Any) -> Iterator[Any]:
    """Yield what a generator does; name(generator) tells the sample that it gave last, or None."""
    names: list[str | None] = []

    def samples() -> Iterator[Any]:
        for sample in iterator:
            if len(names) >= MAX_WAITING:
                names.clear()
            names.append(name(iterator))
            yield sample

    given = samples()
    _WAITING[given] = names
    return given


def taken(iterator: Any) -> list[str] | None:
    """Return the names of what an iterator gave since it was asked last; None where they are not all known."""
    try:
        names = _WAITING.get(iterator)
    except Exception as error:  # of the user's own class: without weak references, or with a hash that fails
        pass_on(error)
        return None
    if not names:
        return None
    found = list(names)
    names.clear()
    return None if None in found else found
