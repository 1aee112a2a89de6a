"""Code that torch.compile made: named as such, with the operators that it is made of, and executed again if asked."""

from __future__ import annotations

import re
import weakref

from ..core.patching import replace
from .torch_confirm import COMPILED
from .torch_operators import CallRecord, TorchOperators
from .torch_places import Places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from . import Observer

MAX_GRAPHS = 2000
MAX_OPERATORS = 64
MAX_SOURCE = 4 << 20
_CALL = re.compile(r"torch\.ops\.(\w+)\.(\w+)")
_ORIGINAL = re.compile(r"Original ATen: \[([^\]]*)\]")


def observe(module: ModuleType, observer: Observer) -> None:
    """Begin with the module of Inductor that holds its compiled graphs."""
    graph, operators = graph_class(module), observer.parts.get("torch")
    if graph is not None and operators is not None:
        compiled = Compiled(observer, operators)
        observer.callbacks.in_child.append(compiled.forget)
        replace(graph, "__call__", compiled.make_call)


class GraphPlaces:
    """Where compiled graphs were called: those of a backward pass where their forward half was."""

    def __init__(self, torch: Any) -> None:
        self._places = Places(torch)
        self._forward: dict[object, list[Any]] = {}

    def of_call(self, graph: Any) -> tuple[list[Any], str]:
        """Return place and phase of a graph that is called."""
        options = getattr(graph, "fx_kwargs", None) or {}
        half, (where, _) = options.get("graph_id"), self._places.of_call(4)
        if options.get("is_backward"):
            return self._forward.get(half, where), "backward"
        self._forward[half] = where
        return where, "forward"


def graph_class(module: ModuleType) -> Any:
    """Return the class of compiled graphs, where this module of Inductor has it."""
    graph = vars(module).get("CompiledFxGraph")
    return graph if graph is not None and graph.__module__ == module.__name__ else None


class Compiled:
    """The compiled graphs of this process."""

    def __init__(self, observer: Observer, operators: TorchOperators) -> None:
        self._observer = observer
        self._operators = operators
        self.forget()

    def forget(self) -> None:
        """In a forked child: what the parent noted is the parent's."""
        self._known: dict[int, tuple[Callable[[], Any], CallRecord]] = {}  # by id of the graph, while it lives
        self._number = 0
        self._places = GraphPlaces(self._operators.torch)

    def make_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """In the place of a graph's own call."""

        def call(graph: Any, inputs: Any) -> Any:
            known, record = self._known.get(id(graph)), None
            if known is not None and known[0]() is graph:
                record = known[1]
                record.line["calls"] += 1
            elif self._observer.collecting and self._number < MAX_GRAPHS:
                record = self._observer.agent.attempt(self._note, graph, inputs)
            return self._call(record, graph, inputs, original)

        return call

    def _call(self, record: CallRecord | None, graph: Any, inputs: Any, original: Callable[..., Any]) -> Any:
        confirmer = self._operators.confirmer
        if record is None or confirmer is None or not confirmer.is_due(record) or _is_cuda_graph(graph):
            return original(graph, inputs)

        def function(*values: Any) -> Any:
            return original(graph, list(values))  # it empties the list

        values = tuple(inputs)
        if type(inputs) is list:
            inputs.clear()  # as it would itself: their memory can go before the end
        return confirmer.call(record, function, values, {})

    def _note(self, graph: Any, inputs: Any) -> CallRecord:
        torch = self._operators.torch
        where, phase = self._places.of_call(graph)
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        devices = sorted({str(device) for device in getattr(graph, "device_types", ())} - {"cpu"}) or ["cpu"]
        line: dict[str, Any] = {
            "framework": "pytorch",
            "version": str(torch.__version__),
            "name": COMPILED,
            "overload": "",
            "function": where[0][2] if where else "",
            "phase": phase,
            "device": devices[0],
            "dtypes": sorted({str(tensor.dtype).partition("torch.")[2] for tensor in tensors}),
            "shapes": [list(tensor.shape) for tensor in tensors[:16]],
            "attributes": {},
            "operators": _made_of(graph),
            "calls": 1,
            "where": where,
        }
        self._number += 1
        key = (COMPILED, phase, self._number)
        record = CallRecord(GRAPH, line, key)
        self._known[id(graph)] = (weakref.ref(graph), record)
        self._observer.write("compiled", key, line)
        return record


class _Graph:
    """A compiled graph, as if it were an operator."""

    name = COMPILED
    built_in = False  # that it changes inputs is no part of a schema
    changes = True
    is_uninitialized = False
    returns = ()


GRAPH: Any = _Graph()


def _is_cuda_graph(graph: Any) -> bool:
    """Return whether its memory is a recorded graph's own."""
    options = getattr(graph, "fx_kwargs", None) or {}
    return bool(options.get("cudagraphs")) and "cuda" in getattr(graph, "device_types", ())


def _made_of(graph: Any) -> list[str]:
    """Return the operators that are in it, as Inductor wrote them down."""
    text = getattr(graph, "inductor_post_grad_graph_str", None)
    if text:
        code = "\n".join(line for line in text[:MAX_SOURCE].splitlines() if line.strip()[:1] != "#")
        names = [f"{namespace}::{name}" for namespace, name in _CALL.findall(code)]
    else:
        source = (getattr(graph, "source_code", None) or "")[:MAX_SOURCE]
        found = {name.strip() for names in _ORIGINAL.findall(source) for name in names.split(",")}
        names = sorted(name.replace(".", "::", 1) for name in found - {""})
    return list(dict.fromkeys(names))[:MAX_OPERATORS]
