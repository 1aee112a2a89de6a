"""Digests of NumPy arrays in host memory, and copies of arrays for calls that are saved."""

from __future__ import annotations

import threading

from ..capture.store import DTYPES, Part
from ..core import trail_library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..core.agent import Agent
    from ..operators.log import CallLog

_PLAIN = (bool, int, float, str, type(None))


class ArrayDigests:
    """Computes digests of the inputs and outputs of calls."""

    def __init__(self, agent: Agent) -> None:
        self._library = trail_library.Library(trail_library.path_of(agent.run) or "")

    def of(self, arrays: Sequence[Any], others: Sequence[Any] = ()) -> int:
        """Return one digest of contiguous arrays and of other values."""
        library = self._library
        digest: int = library.text(repr(others)) if others else 0
        for array in arrays:
            if array.dtype.hasobject:
                digest = self.combine(digest, library.text(repr(array.tolist())))
            else:
                address = array.__array_interface__["data"][0]
                digest = library.fold(digest, address, array.nbytes, trail_library.salt(array.dtype.name, array.shape))
        return digest

    def combine(self, first: int, second: int) -> int:
        """Return one digest of two digests."""
        return self._library.of_list([first, second])


class ArrayCalls:
    """Logs calls of a framework by the arrays that go in and come out."""

    _before: Callable[..., Any]  # returns a record of a call before it is executed
    _after: Callable[..., Any]  # called with that record and the result

    def __init__(self, log: CallLog) -> None:
        self._log, self._agent = log, log.agent
        self._digests = ArrayDigests(log.agent)
        self._thread = threading.local()  # .busy: the agent itself is executing
        self.watching = False

    def watch(self, is_on: bool) -> None:
        """Start or stop logging."""
        self.watching = is_on

    def _log_call(self, call: Callable[[], Any], *arguments: Any) -> Any:
        """Execute a call, and log it unless the agent itself makes it."""
        if getattr(self._thread, "busy", False):
            return call()
        record = self._run_unlogged(self._before, *arguments)
        result = call()
        if record is not None:
            self._run_unlogged(self._after, record, result)
        return result

    def _run_unlogged(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function of the agent, whose own calls are not logged."""
        self._thread.busy = True
        try:
            return self._agent.attempt(function, *arguments)
        finally:
            self._thread.busy = False


def signature(arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Return the dtypes and shapes of a call's arrays."""
    return tuple([(array.dtype, array.shape) for array in arrays])


def description(framework: str, version: str, name: str, device: str, arrays: Sequence[Any], **attributes: Any) -> Any:
    """Return the log's description of an operator and the arrays that it is called on."""
    return {
        "framework": framework,
        "version": version,
        "name": name,
        "overload": "",
        "device": device,
        "dtypes": [array.dtype.name for array in arrays[:64]],
        "shapes": [list(array.shape) for array in arrays[:64]],
        "attributes": attributes,
    }


def stable_value(value: Any) -> Any:
    """Return a value whose text is the same in each process."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (list, tuple)):
        return [stable_value(item) for item in value]
    if isinstance(value, _PLAIN):
        return value
    type_number = getattr(value, "as_datatype_enum", None)  # of TensorFlow's dtypes
    return type(value).__name__ if type_number is None else type_number


def copied_parts(kind: str, arrays: Sequence[Any]) -> list[Part]:
    """Return copies of arrays, as their memory may change."""
    copies = [(number, array.copy()) for number, array in enumerate(arrays) if array.dtype.name in DTYPES]
    return [_part(f"{kind}.{number}", array) for number, array in copies]


def _part(name: str, array: Any) -> Part:
    return Part(name, DTYPES[array.dtype.name], array.shape, array.nbytes, array.tobytes)
