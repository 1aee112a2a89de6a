"""Observes code compiled by torch.compile, with the operators in it, and repeats its calls if requested."""

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
    """Patch the module of Inductor that defines compiled graphs."""
    graph, operators = graph_class(module), observer.parts.get("torch")
    if graph is not None and operators is not None:
        compiled = CompiledGraphs(observer, operators)
        observer.callbacks.in_child.append(compiled.forget)
        replace(graph, "__call__", compiled.make_call)


class GraphPlaces:
    """Places of calls of compiled graphs; for a backward graph that of its forward graph."""

    def __init__(self, torch: Any) -> None:
        self._places = Places(torch)
        self._forward: dict[object, list[Any]] = {}

    def of_call(self, graph: Any) -> tuple[list[Any], str]:
        """Return places and phase of a call of a graph."""
        options = getattr(graph, "fx_kwargs", None) or {}
        graph_id, (where, _) = options.get("graph_id"), self._places.of_call(4)
        if options.get("is_backward"):
            return self._forward.get(graph_id, where), "backward"
        self._forward[graph_id] = where
        return where, "forward"


def graph_class(module: ModuleType) -> Any:
    """Return the class of compiled graphs, if this module of Inductor defines it."""
    graph = vars(module).get("CompiledFxGraph")
    return graph if graph is not None and graph.__module__ == module.__name__ else None


class CompiledGraphs:
    """Observes the compiled graphs of this process."""

    def __init__(self, observer: Observer, operators: TorchOperators) -> None:
        self._observer = observer
        self._operators = operators
        self.forget()

    def forget(self) -> None:
        """In a forked child: drop the state of the parent."""
        self._records: dict[int, tuple[Callable[[], Any], CallRecord]] = {}  # by id of the graph, valid while it exists
        self._number = 0
        self._places = GraphPlaces(self._operators.torch)

    def make_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement of a graph's __call__ that observes it."""

        def call(graph: Any, inputs: Any) -> Any:
            entry, record = self._records.get(id(graph)), None
            if entry is not None and entry[0]() is graph:
                record = entry[1]
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
            return original(graph, list(values))  # the graph empties the list

        values = tuple(inputs)
        if type(inputs) is list:
            inputs.clear()  # as the graph does, so that memory of inputs is freed early
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
            "operators": _operators_in(graph),
            "calls": 1,
            "where": where,
        }
        self._number += 1
        key = (COMPILED, phase, self._number)
        record = CallRecord(GRAPH, line, key)
        self._records[id(graph)] = (weakref.ref(graph), record)
        self._observer.write("compiled", key, line)
        return record


class CompiledGraph:
    """Represents compiled graphs with the attributes of an Operator."""

    name = COMPILED
    built_in = False  # no schema tells whether it changes inputs
    changes = True
    is_uninitialized = False
    returns = ()


GRAPH: Any = CompiledGraph()


def _is_cuda_graph(graph: Any) -> bool:
    """Return whether a graph uses CUDA graphs, which own their memory."""
    options = getattr(graph, "fx_kwargs", None) or {}
    return bool(options.get("cudagraphs")) and "cuda" in getattr(graph, "device_types", ())


def _operators_in(graph: Any) -> list[str]:
    """Return the names of the operators in a graph, as listed by Inductor."""
    text = getattr(graph, "inductor_post_grad_graph_str", None)
    if text:
        code = "\n".join(line for line in text[:MAX_SOURCE].splitlines() if line.strip()[:1] != "#")
        names = [f"{namespace}::{name}" for namespace, name in _CALL.findall(code)]
    else:
        source = (getattr(graph, "source_code", None) or "")[:MAX_SOURCE]
        originals = {name.strip() for names in _ORIGINAL.findall(source) for name in names.split(",")}
        names = sorted(name.replace(".", "::", 1) for name in originals - {""})
    return list(dict.fromkeys(names))[:MAX_OPERATORS]
