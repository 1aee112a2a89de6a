"""Values of tensors and variables of TensorFlow and Keras, read in place."""

from __future__ import annotations

import sys

from ..core.digests import array_entry as entry
from . import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["NotReadableError", "entry", "is_eager", "later", "number", "read", "value", "values", "view"]


class NotReadableError(Exception):
    """Raised if variables cannot be read now, as in a graph without its session."""


def is_eager(tensor: Any) -> bool:
    """Return whether a value is an eager tensor of TensorFlow, dense or sparse."""
    return private_api.has_value(getattr(tensor, "values", tensor) if hasattr(tensor, "indices") else tensor)


def number(array: Any) -> tuple[str, Any] | None:
    """Return dtype and value of a one-element array; None for others."""
    return (array.dtype.name, array.item()) if array.size == 1 else None


def later(_array: Any) -> None:
    """Return None: no copy is needed, as Keras returns values in host memory."""


def read(variables: list[Any]) -> list[Any]:
    """Return the values of variables as NumPy arrays, even while a graph is being built."""
    if private_api.ops() is None:
        return [variable.numpy() for variable in variables]
    if any(map(private_api.is_of_graph, variables)):
        return _read_graph(variables)
    with private_api.ops().init_scope():
        return [variable.numpy() for variable in variables]


def _read_graph(variables: list[Any]) -> list[Any]:
    """Read variables of TensorFlow 1 by the open session, or by that of Keras; never by a new one."""
    session = private_api.ops().get_default_session() or private_api.keras_session()
    if session is None or any(variable.graph is not session.graph for variable in variables):
        raise NotReadableError("there is no open session to read the variables in")
    try:
        values: list[Any] = session.run(variables)
    except sys.modules["tensorflow"].errors.FailedPreconditionError as error:
        raise NotReadableError("another session has their values") from error
    return values


def values(variables: list[Any]) -> list[Any]:
    """Return the current values, None for unreadable ones; only values from a session are copies."""
    if any(map(private_api.is_of_graph, variables)):
        try:
            return read(variables)
        except NotReadableError:
            return [None] * len(variables)
    return [value(variable) for variable in variables]


def value(variable: Any) -> Any:
    """Return the value of a variable as a tensor, without a copy; None if it cannot be read."""
    resource = private_api.primary(private_api.plain(variable))
    handle = getattr(resource, "handle", None)
    if handle is None or not private_api.has_value(handle):  # in a graph
        return None
    with private_api.ops().init_scope():  # hidden from gradient tapes
        return sys.modules["tensorflow"].raw_ops.ReadVariableOp(resource=handle, dtype=resource.dtype)


def view(value: Any) -> Any:
    """Return a tensor in host memory as an array without a copy; None for tensors on devices."""
    if value is None:
        return None
    if private_api.has_value(value):
        if "CPU:" not in value.device:
            return None
        value = private_api.value(value)
    array = sys.modules["numpy"].asarray(value)
    return None if array.dtype.hasobject or not array.flags.c_contiguous else array
