"""Values of tensors and variables of TensorFlow and Keras, read where they lie."""

from __future__ import annotations

import sys

from ..core.digests import array_entry as entry
from . import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["NotReadableError", "entry", "is_eager", "later", "name_of", "number", "read", "value", "values", "view"]


class NotReadableError(Exception):
    """The variables have no values that could be read now, as in a graph without its session."""


def is_eager(tensor: Any) -> bool:
    """Return whether it is a tensor of TensorFlow, dense or sparse, that has a value now: no graph is being built."""
    return private_api.has_value(getattr(tensor, "values", tensor) if hasattr(tensor, "indices") else tensor)


def name_of(variable: Any) -> str:
    """Return what a variable is called in its model."""
    return str(getattr(variable, "path", None) or variable.name)


def number(array: Any) -> tuple[str, Any] | None:
    """Dtype and value of an array of one element; None of more."""
    return (array.dtype.name, array.item()) if array.size == 1 else None


def later(_array: Any) -> None:
    """No copy: what Keras returns lies on this side."""


def read(variables: list[Any]) -> list[Any]:
    """Return the values as arrays of NumPy, outside whatever graph is being built at the moment."""
    if private_api.ops() is None:
        return [variable.numpy() for variable in variables]
    if any(map(private_api.is_of_graph, variables)):
        return _read_graph(variables)
    with private_api.ops().init_scope():
        return [variable.numpy() for variable in variables]


def _read_graph(variables: list[Any]) -> list[Any]:
    """TensorFlow 1: by the session that is open, or else by the one that Keras made; never by a new one."""
    session = private_api.ops().get_default_session() or private_api.keras_session()
    if session is None or any(variable.graph is not session.graph for variable in variables):
        raise NotReadableError("there is no open session to read the variables in")
    try:
        values: list[Any] = session.run(variables)
    except sys.modules["tensorflow"].errors.FailedPreconditionError as error:
        raise NotReadableError("another session has their values") from error
    return values


def values(variables: list[Any]) -> list[Any]:
    """Return the values as they are now, copied only where they come out of a session; None of what cannot be read."""
    if any(map(private_api.is_of_graph, variables)):
        try:
            return read(variables)
        except NotReadableError:
            return [None] * len(variables)
    return [value(variable) for variable in variables]


def value(variable: Any) -> Any:
    """Return the value of a variable, without the copy that its own methods make."""
    resource = private_api.plain(variable)
    handle = getattr(resource, "handle", None)
    if handle is None or not private_api.has_value(handle):  # of several devices, or of a graph
        return None
    with private_api.ops().init_scope():  # no tape is to see it
        return sys.modules["tensorflow"].raw_ops.ReadVariableOp(resource=handle, dtype=resource.dtype)


def view(value: Any) -> Any:
    """Return a view of a tensor on this side, or a number as an array; None of what lies elsewhere."""
    if value is None:
        return None
    if private_api.has_value(value):
        if "CPU:" not in value.device:
            return None
        value = private_api.value(value)
    array = sys.modules["numpy"].asarray(value)
    return None if array.dtype.hasobject or not array.flags.c_contiguous else array
