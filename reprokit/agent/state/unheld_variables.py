"""Names the variables of a script that change and that a keyframe does not hold: they may be wrong behind it.

What the script runs through until the keyframe changes them as the recording did, but from other numbers.
"""

from __future__ import annotations

import sys
from collections import deque

from ..core.attributes import dictionary_of
from ..pytorch.tensors import has_memory, is_tensor, storage_of
from .script_scopes import scopes
from .script_variables import leaves

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType
    from typing import Any

    Place = tuple[str, str]  # head and tail of a variable's name

_SIZED = frozenset([bytearray, deque, dict, list, set])
_CONTAINED = ("builtins.b", "builtins.str", "datetime.", "decimal.", "fractions.", "queue.")  # classes of values


class UnheldVariables:
    """The variables of the script that have changed since the first step, and that the keyframe does not hold."""

    def __init__(self) -> None:
        self._first: dict[Place, tuple[Any, Any]] = {}  # values, which keep their ids, and their contents
        self.names: list[str] = []

    def note(self, frame: FrameType | None) -> None:
        """Note all variables at the first step."""
        self._first = {place: (value, _content(value)) for place, value in _variables(frame)}

    def look(self, rows: Iterable[list[Any]], frame: FrameType | None) -> None:
        """Find what has changed and is not among these rows of the keyframe, before they are put back."""
        nodes = {(head, tail): node for head, tail, node in rows}
        variables = dict(_variables(frame))
        held = {id(variables[place]) for place in nodes if place in variables}
        for place, value in variables.items():
            if place in nodes:
                self.names += [name for name, node in leaves(*place, nodes[place]) if _is_value(node)]
            elif id(value) not in held and not _is_tensor(value) and self._has_changed(place, value):
                self.names.append("".join(place))
        self.names += self._in_common({place: value for place, value in variables.items() if _is_tensor(value)})
        self._first = {}

    def _has_changed(self, place: Place, value: Any) -> bool:
        first = self._first.get(place)
        return first is None or first[0] is not value or first[1] != _content(value)

    def _in_common(self, tensors: dict[Place, Any]) -> Iterator[str]:
        """Yield tensors with memory in common since the first step, which are put back as tensors of their own."""
        places: dict[int, list[Place]] = {}
        for place, tensor in tensors.items():
            if has_memory(tensor) and place in self._first and self._first[place][0] is tensor:
                places.setdefault(storage_of(tensor).data_ptr(), []).append(place)
        for group in places.values():
            if len({id(tensors[place]) for place in group}) > 1:
                yield from map("".join, group)


def _variables(frame: FrameType | None) -> Iterator[tuple[Place, Any]]:
    for scope in scopes(frame):
        for name, head, tail in scope.rows():
            value = scope.variables[name]
            if not isinstance(value, type) and not callable(value):
                yield (head, tail), value


def _is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of PyTorch; those of TensorFlow never change."""
    return "torch" in sys.modules and is_tensor(value)


def _content(value: Any) -> list[Any]:
    """Return what tells that an object was changed in place, without calling the script's code."""
    parts = [value, *(dictionary_of(value) or {}).values()]
    return [(id(part), bytes(part) if type(part) is bytearray else _length(part)) for part in parts]


def _length(part: Any) -> int:
    return len(part) if type(part) in _SIZED else 0


def _is_value(node: Any) -> bool:
    """Return whether a part of a container was left out that is a value: bytes, a long text, a number, a queue."""
    return str(node.get("left_out", "")).startswith(_CONTAINED)
