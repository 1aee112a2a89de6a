"""Reads many variables of TensorFlow at once: in eager code reading them one by one takes longer than a small step."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_READ = "_ReadVariablesOp"


class Reader:
    """Reads the same variables again and again; what it gives shares their memory."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = list(variables)
        self._handles: list[Any] = []
        if len(self.variables) > 1 and all(map(_is_here, self.variables)):
            self._handles = [variable.handle for variable in self.variables]
        self._types = [variable.dtype.base_dtype.as_datatype_enum for variable in self.variables]

    def read(self) -> list[tuple[Any, Any]]:
        """Each variable and its value, in eager code or as tensors of the graph that is being built."""
        if not self._handles or not sys.modules["tensorflow.python.eager.context"].executing_eagerly():
            return [(variable, variable.read_value()) for variable in self.variables]
        return list(zip(self.variables, self._in_eager_code()))  # noqa: B905

    def _in_eager_code(self) -> Any:
        execute, count = sys.modules["tensorflow.python.eager.execute"].execute, len(self._handles)
        context = sys.modules["tensorflow.python.eager.context"].context()
        attributes = ("N", count, "dtypes", self._types)
        return execute(_READ.encode(), count, inputs=self._handles, attrs=attributes, ctx=context)


def _is_here(variable: Any) -> bool:
    """Whether it is one variable, of this process and on the CPU."""
    kind = type(variable).__name__
    return kind == "ResourceVariable" and "CPU:" in variable.device and "CPU:" in str(variable.handle.device)
