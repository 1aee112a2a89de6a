"""Reads and writes the tensors, arrays and variables of TensorFlow among the variables of a script."""

from __future__ import annotations

import sys

from ..capture.tensorflow_restore import value_of
from ..tensorflow import private_api
from ..tensorflow.training_state import as_array, put_variable, resource_id
from .answers import NUMBERS, array_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..capture.trees import Node


class TensorflowVariables:
    """The tensors and arrays of a script, without the variables that belong to another part of the state."""

    def __init__(self, other_parts: Iterable[Any] = (), snapshot: Any = None) -> None:
        self._other_parts = {resource_id(variable) for variable in other_parts}
        self._snapshot = snapshot

    def size(self, value: Any) -> int:
        return int(as_array(value).nbytes)

    def is_left_out(self, value: Any) -> bool:
        if _is_variable(value):
            return resource_id(value) in self._other_parts
        dtype = getattr(value, "dtype", None)
        kind = getattr(getattr(dtype, "as_numpy_dtype", None), "kind", getattr(dtype, "kind", "f"))
        return dtype is None or kind not in NUMBERS

    def leaf(self, value: Any) -> Node | None:
        is_array = hasattr(type(value), "__array_interface__")
        return {"held": value} if is_array or _is_eager(value) or _is_variable(value) else None

    def node(self, value: Any) -> Node:
        if _is_variable(value):
            return {"variable": {"held": value}}
        if _is_eager(value):
            return {"held": value}
        return {"array" if hasattr(value, "__setitem__") else "number": {"held": value}}

    def text(self, node: Node) -> str:
        ((kind, value),) = node.items()
        if kind != "held":
            return self.text(value)
        return array_text(sys.modules["numpy"].asarray(as_array(value)))

    def restore(self, node: Node, own: Any) -> Any:
        ((kind, content),) = node.items()
        if kind not in ("variable", "array", "number"):
            return value_of(self._snapshot, node, has_arrays=kind != "tensor")
        new = value_of(self._snapshot, content, has_arrays=True)
        if kind == "variable":
            if _is_variable(own) and not self.is_left_out(own):
                put_variable(own, new)
            return own
        if kind == "number":
            return new[()]
        if type(own) is type(new) and own.base is None and own.shape == new.shape and own.dtype == new.dtype:
            if own.flags.writeable:
                own[...] = new
                return own
        return new.copy()


def _is_eager(value: Any) -> bool:
    return type(value).__name__ == "EagerTensor" and private_api.has_value(value)


def _is_variable(value: Any) -> bool:
    """Return whether a value is a variable of TensorFlow or Keras."""
    return hasattr(type(value), "assign") and hasattr(type(value), "dtype")
