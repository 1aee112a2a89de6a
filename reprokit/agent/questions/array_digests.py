"""Digests of arrays on this side, and copies of them for calls that are kept."""

from __future__ import annotations

import threading

from .. import trail_library
from ..capture.store import DTYPES, Part

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..agent import Agent
    from .operator_log import CallLog

_PLAIN = (bool, int, float, str, type(None))


class ArrayDigests:
    """Digests what calls are given, and give."""

    def __init__(self, agent: Agent) -> None:
        self._library = trail_library.Library(trail_library.path_of(agent.run) or "")

    def of(self, arrays: Sequence[Any], others: Sequence[Any] = ()) -> int:
        """Return the digest of contiguous arrays and of other things together."""
        library = self._library
        digest: int = library.text(repr(others)) if others else 0
        for array in arrays:
            if array.dtype.hasobject:
                digest = self.joined(digest, library.text(repr(array.tolist())))
            else:
                place = array.__array_interface__["data"][0]
                digest = library.fold(digest, place, array.nbytes, trail_library.salt(array.dtype.name, array.shape))
        return digest

    def joined(self, one: int, other: int) -> int:
        """Return the digest of two."""
        return self._library.of_list([one, other])


class ArrayCalls:
    """Logs calls of a framework by the arrays that they are given, and give."""

    _before: Callable[..., Any]  # returns what is known of a call before it is made
    _after: Callable[..., Any]  # of that and its result

    def __init__(self, log: CallLog) -> None:
        self._log, self._agent = log, log.agent
        self._digests = ArrayDigests(log.agent)
        self._thread = threading.local()  # .busy: what is executed now is ours
        self.watching = False

    def watch(self, is_on: bool) -> None:
        """Begin or cease to log."""
        self.watching = is_on

    def _logged(self, make: Callable[[], Any], *arguments: Any) -> Any:
        """Make a call, and log it."""
        if getattr(self._thread, "busy", False):
            return make()
        seen = self._ours(self._before, *arguments)
        result = make()
        if seen is not None:
            self._ours(self._after, seen, result)
        return result

    def _ours(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Do what is no part of the training."""
        self._thread.busy = True
        try:
            return self._agent.attempt(function, *arguments)
        finally:
            self._thread.busy = False


def signature(arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Return what tells the arrays of one call from those of another."""
    return tuple([(array.dtype, array.shape) for array in arrays])


def described(framework: str, version: str, name: str, device: str, arrays: Sequence[Any], **more: Any) -> Any:
    """Return an operator with what it is called on, for the log."""
    return {
        "framework": framework,
        "version": version,
        "name": name,
        "overload": "",
        "device": device,
        "dtypes": [array.dtype.name for array in arrays[:64]],
        "shapes": [list(array.shape) for array in arrays[:64]],
        "attributes": more,
    }


def stable(value: Any) -> Any:
    """Return what has the same text in each process."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (list, tuple)):
        return [stable(item) for item in value]
    if isinstance(value, _PLAIN):
        return value
    kind = getattr(value, "as_datatype_enum", None)  # of TensorFlow's types
    return type(value).__name__ if kind is None else kind


def parts(kind: str, arrays: Sequence[Any]) -> list[Part]:
    """Return copies, as what they were read from may change."""
    kept = [(number, array.copy()) for number, array in enumerate(arrays) if array.dtype.name in DTYPES]
    return [_part(f"{kind}.{number}", array) for number, array in kept]


def _part(name: str, array: Any) -> Part:
    return Part(name, DTYPES[array.dtype.name], array.shape, array.nbytes, array.tobytes)
