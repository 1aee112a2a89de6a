"""Reads many variables of TensorFlow at once: to read them one by one takes longer than a small step."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Pairs = list[tuple[Any, Any]]

_READ = "_ReadVariablesOp"
_PLAIN = ("ResourceVariable", "UnliftedInitializerVariable")  # the latter was made in a function


class Reader:
    """Reads the same variables again and again; what it gives shares their memory."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self._variables = list(variables)
        self.are_here = bool(self._variables) and all(map(_is_here, self._variables))
        self._handles = [variable.handle for variable in self._variables] if self.are_here else []
        self._types = [variable.dtype.base_dtype for variable in self._variables]
        self._numbers = [kind.as_datatype_enum for kind in self._types]

    def read(self) -> Before:
        """What the variables have now, in eager code or when the graph runs that is being built."""
        if not self.are_here:
            return Before(self._variables, [variable.read_value() for variable in self._variables])
        if sys.modules["tensorflow.python.eager.context"].executing_eagerly():
            return Before(self._variables, self._in_eager_code())
        return Packed(self._variables, self._types, self._handles)

    def _in_eager_code(self) -> Any:
        execute, count = sys.modules["tensorflow.python.eager.execute"].execute, len(self._handles)
        context = sys.modules["tensorflow.python.eager.context"].context()
        attributes = ("N", count, "dtypes", self._numbers)
        return execute(_READ.encode(), count, inputs=self._handles, attrs=attributes, ctx=context)


class Before:
    """Variables and the values that they had."""

    def __init__(self, variables: list[Any], values: Any) -> None:
        self._variables = variables
        self._values = values

    def pairs(self) -> Pairs:
        """Each variable with its value."""
        return list(zip(self._variables, self.values()))  # noqa: B905

    def values(self) -> Any:
        """Their values."""
        return self._values


class Packed(Before):
    """The same in a graph: one tensor that holds all values, as a branch is given each tensor by an operation."""

    def __init__(self, variables: list[Any], types: list[Any], handles: list[Any]) -> None:
        apply = sys.modules["tensorflow.python.framework.op_def_library"]._apply_op_helper
        operation = apply(_READ, name="reprokit_before", resources=handles, dtypes=types)[2]
        raw = sys.modules["tensorflow"].raw_ops
        packed = raw.CompositeTensorVariantFromComponents(components=list(operation.outputs), metadata=b"")
        super().__init__(variables, packed)
        self._types = types

    def values(self) -> Any:
        """Their values, unpacked where they are asked for."""
        raw = sys.modules["tensorflow"].raw_ops
        return raw.CompositeTensorVariantToComponents(encoded=self._values, metadata=b"", Tcomponents=self._types)


def _is_here(variable: Any) -> bool:
    """Whether it is one variable, of this process and on the CPU."""
    return type(variable).__name__ in _PLAIN and "CPU:" in variable.device and "CPU:" in str(variable.handle.device)
