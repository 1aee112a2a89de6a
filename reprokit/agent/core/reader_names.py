"""Names of samples, file and record, or their indices, from what reads files, for the ledger of samples."""

from __future__ import annotations

import weakref

from .signal_errors import pass_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MAX_WAITING = 1 << 16  # names not taken: the iterator is not used by a loader
_WAITING: Any = weakref.WeakKeyDictionary()


def file_name(address: str) -> str:
    """Return the last part of a path or URL, as other parts may contain a password."""
    return address.partition("?")[0].rpartition("/")[2]


def named(iterator: Iterator[Any], name: Any) -> Iterator[Any]:
    """Wrap a generator to record each sample; name(generator) returns the name or index of the last one, or None."""
    names: list[str | int | None] = []

    def samples() -> Iterator[Any]:
        for sample in iterator:
            if len(names) >= MAX_WAITING:
                names.clear()
            names.append(name(iterator))
            yield sample

    generator = samples()
    _WAITING[generator] = names
    return generator


def taken(iterator: Any) -> list[Any] | None:
    """Return and clear the names of the samples that an iterator yielded; None if one is unknown."""
    try:
        names = _WAITING.get(iterator)
    except Exception as error:  # an iterator of the user's class, without weak references or with a failing hash
        pass_on(error)
        return None
    if not names:
        return None
    taken_names = list(names)
    names.clear()
    return None if None in taken_names else taken_names
