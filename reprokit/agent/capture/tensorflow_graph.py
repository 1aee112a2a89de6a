"""The graph that is being built: where in it we are, and calls from it to functions on the host."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_OVER_DATA = ("scan_body", "reduce_body", "dataset_reduce", "dataset_scan")  # graphs of loops over a data set


def building() -> Any:
    """The graph itself."""
    return sys.modules["tensorflow.python.framework.ops"].get_default_graph()


def in_xla() -> bool:
    """Whether the graph that is being built is compiled by XLA."""
    utilities = sys.modules["tensorflow.python.ops.control_flow_util"]
    return bool(utilities.GraphOrParentsInXlaContext(building()))


def in_loop() -> bool:
    """Whether the graph that is being built is, or is within, the body of a loop or of a data set's reduction."""
    graph = building()
    while graph is not None:
        name = str(getattr(graph, "name", ""))
        if "while" in name or "educe" in name or "While" in type(graph).__name__:
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def batch_in_graph() -> list[tuple[str, Any]]:
    """What was fetched last in the graph that is being built or in those around it."""
    graph = building()
    while graph is not None:
        if hasattr(graph, "_reprokit_batch"):
            return [("loader", graph._reprokit_batch)]
        if any(word in str(getattr(graph, "name", "")).lower() for word in _OVER_DATA):
            captured = set(map(id, graph.internal_captures))
            return [("loader", [one for one in graph.inputs if id(one) not in captured])]
        graph = getattr(graph, "outer_graph", None)
    return []


def branch(condition: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """Return what one of two functions gives when the graph runs.

    On one device it stays a call of a function. Else TensorFlow takes it apart into operations of control flow, and
    runs the whole graph by a slower executor.
    """
    tensorflow = sys.modules["tensorflow"]
    result = tensorflow.cond(condition, then, otherwise)
    if not hasattr(result, "_numpy") and len(tensorflow.config.list_logical_devices()) == 1:
        operation = result.op
        while operation.type not in ("If", "StatelessIf") and operation.inputs:
            operation = operation.inputs[0].op
        no = sys.modules["tensorflow.core.framework.attr_value_pb2"].AttrValue(b=False)
        operation._set_attr("_lower_using_switch_merge", no)
    return result


def numbers_given_to(graph: Any) -> list[Any]:
    """The tensors of numbers that a function's graph is called with."""
    captured = set(map(id, graph.internal_captures))
    return [one for one in graph.inputs if id(one) not in captured and has_numbers(one)]


def has_numbers(value: Any) -> bool:
    """Whether it is a tensor or an array of numbers."""
    dtype = getattr(value, "dtype", None)
    return (
        hasattr(value, "shape")
        and any(getattr(dtype, name, False) for name in ("is_floating", "is_integer", "is_complex"))
    ) or getattr(dtype, "kind", "") in "iufc"


def call_host(on_host: Callable[..., None], seen: Any) -> None:
    """In a graph: call a function on the host with the values of all tensors in a nested value."""
    tensorflow = sys.modules["tensorflow"]
    nest = tensorflow.nest
    flat = nest.flatten(seen, expand_composites=True)
    places = [place for place, one in enumerate(flat) if _can_be_handed(tensorflow, one)]

    def call(*given: Any) -> None:
        values = list(flat)
        for place, value in zip(places, given):  # noqa: B905
            values[place] = value
        on_host(nest.pack_sequence_as(seen, values, expand_composites=True))

    tensorflow.py_function(call, [flat[place] for place in places], [])


def _can_be_handed(tensorflow: Any, one: Any) -> bool:
    is_tensor = isinstance(one, tensorflow.Tensor) or hasattr(one, "handle")
    return is_tensor and one.dtype not in (tensorflow.resource, tensorflow.variant)
