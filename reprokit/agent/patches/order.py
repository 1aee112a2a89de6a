"""The patch of multiprocessing: results in the order of their tasks, whoever is done first."""

from __future__ import annotations

from ..core.patching import swap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from . import Tell


def imap_ordered(module: Any, value: str, tell: Tell) -> None:
    """Pool.imap_unordered does what Pool.imap does, for processes and threads."""
    tell.undo_by(swap(module.Pool, "imap_unordered", _imap))


def _imap(original: Callable[..., Any]) -> Callable[..., Any]:
    def imap_unordered(self: Any, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int = 1) -> Any:
        return self.imap(func, iterable, chunksize)

    return imap_unordered
