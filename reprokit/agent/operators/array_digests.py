"""Digests of NumPy arrays in host memory, and copies of arrays for calls that are saved."""

from __future__ import annotations

from ..capture.store import DTYPES, Part
from ..core import trail_library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..core.agent import Agent

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
