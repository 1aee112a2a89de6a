"""The graph that is being built: where in it we are, calls from it to the host, and updates only where all is finite.

In a graph the update becomes the branch of a condition, and the other branch calls a function on the host. XLA knows
no such functions, conditions cost it much, and what is added to values that are written changes their last bits. There
a flag is written beside the update, and who called the compiled function puts back what he held.
"""

from __future__ import annotations

import sys

from ..tensorflow import private_api
from .tensorflow_state import LOADER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .tensorflow_checks import OptimizerMemory, UpdateTest
    from .tensorflow_steps import TensorFlowStep

    Function = Callable[..., Any]

_OVER_DATA = ("scan_body", "reduce_body", "dataset_reduce", "dataset_scan")  # graphs of loops over a data set


def building() -> Any:
    """The graph itself."""
    return private_api.default_graph()


def in_xla() -> bool:
    """Whether the graph that is being built is compiled by XLA."""
    return bool(private_api.module("control_flow").GraphOrParentsInXlaContext(building()))


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
            return [(LOADER, graph._reprokit_batch)]
        if any(word in str(getattr(graph, "name", "")).lower() for word in _OVER_DATA):
            captured = set(map(id, graph.internal_captures))
            return [(LOADER, [one for one in graph.inputs if id(one) not in captured])]
        graph = getattr(graph, "outer_graph", None)
    return []


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
        for place, value in zip(places, given):
            values[place] = value
        on_host(nest.pack_sequence_as(seen, values, expand_composites=True))

    tensorflow.py_function(call, [flat[place] for place in places], [])


def _can_be_handed(tensorflow: Any, one: Any) -> bool:
    is_tensor = isinstance(one, tensorflow.Tensor) or hasattr(one, "handle")
    return is_tensor and one.dtype not in (tensorflow.resource, tensorflow.variant)


# ---- updates --------------------------------------------------------------------------------------------------------


def conditional(
    step: TensorFlowStep,
    test: UpdateTest,
    update: Function,
    host: Function,
    moved: list[tuple[Any, Any]],
    *,
    stops: bool,
) -> None:
    """In a graph: the update, or the call on the host and then what the step had moved before put back.

    Where training stops at such a step, later steps of the graph are not applied either.
    """
    tensorflow, graph = sys.modules["tensorflow"], building()

    def applied() -> Any:
        for variable, value in test.remember():
            variable.assign(value)
        update()
        return tensorflow.constant(0)

    def kept() -> Any:
        host()
        put_back(moved)
        return tensorflow.constant(0)

    finite = test.passes()
    if stops:
        earlier = getattr(graph, "_reprokit_finite", None)
        finite = graph._reprokit_finite = finite if earlier is None else tensorflow.logical_and(finite, earlier)
    step.finite = finite if graph is step.graph else None
    step.passes = True
    try:
        tensorflow.cond(finite, applied, kept)
    finally:
        step.passes = False


def put_back(moved: list[tuple[Any, Any]]) -> None:
    """Give variables the values that they had."""
    for variable, value in moved:
        variable.assign(value)


def flagged(step: TensorFlowStep, test: UpdateTest, update: Function, memory: OptimizerMemory) -> None:
    """In a graph for XLA: the update as it is, and a flag that tells whether it should not have happened."""
    tensorflow = sys.modules["tensorflow"]
    finite = test.passes()
    step.passes = True
    try:
        update()
        for variable, value in test.remember():
            variable.assign(tensorflow.where(finite, value, variable.read_value()))
        memory.good.assign(tensorflow.logical_and(memory.good.read_value(), finite))
    finally:
        step.passes = False


def select_back(finite: Any, moved: list[tuple[Any, Any]]) -> None:
    """Give variables the values that they had, unless all is finite."""
    for variable, value in moved:
        variable.assign(sys.modules["tensorflow"].where(finite, variable.read_value(), value))
