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
