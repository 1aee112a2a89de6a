"""Makes the events of calls of graphs that torch.compile made: a graph is one operator."""

from __future__ import annotations

import re
import weakref

from ..core.patching import replace
from ..events.operators import BACKWARD, FORWARD
from .operators import PytorchCalled, without_workspaces
from .places import Places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from ..core.agent import Agent
    from ..events.operators import OperatorListener

COMPILED = "torch.compile"
COMPILERS = ("torch._inductor.codecache", "torch._inductor.output_code")
MAX_GRAPHS = 2000
MAX_OPERATORS = 64
MAX_SOURCE = 4 << 20
_CALL = re.compile(r"torch\.ops\.(\w+)\.(\w+)")
_ORIGINAL = re.compile(r"Original ATen: \[([^\]]*)\]")


class CompiledGraph:
    """A graph as an operator."""

    name = COMPILED
    overload = ""
    built_in = False  # no schema tells whether it changes inputs
    changes = True
    is_uninitialized = takes_storage = draws = has_no_outputs_yet = False

    def __init__(self, torch: Any, graph: Any) -> None:
        options = getattr(graph, "fx_kwargs", None) or {}
        self._torch = torch
        self.program = str(getattr(graph, "cache_key", ""))  # a hash of the generated code
        self.operators = _operators_in(graph)
        self.devices = sorted({str(device) for device in getattr(graph, "device_types", ())} - {"cpu"}) or ["cpu"]
        # CUDA graphs own their memory.
        self.owns_memory = bool(options.get("cudagraphs")) and "cuda" in self.devices

    def attributes(self, _args: Any, _kwargs: Any) -> dict[str, object]:
        return {"program": self.program}

    def input_values(self, args: tuple[Any, ...], _kwargs: Any) -> list[Any]:
        return list(args)

    def output_values(self, args: tuple[Any, ...], _kwargs: Any, result: Any) -> list[Any]:
        """Return the results and the inputs, which it may change in place."""
        return [*result, *args]

    def comparable_results(self, result: Any) -> list[Any]:
        values = list(result) if isinstance(result, (list, tuple)) else [result]
        return without_workspaces(self._torch, values, [""] * len(values))


class GraphEvents:
    """Makes the event of each call of a compiled graph."""

    def __init__(
        self,
        torch: Any,
        agent: Agent,
        listener: OperatorListener,
        make_places: Callable[[], Places],
        is_watching: Callable[[], bool],
    ) -> None:
        self._torch, self._agent, self._listener = torch, agent, listener
        self._make_places, self._is_watching = make_places, is_watching
        self.forget()

    def forget(self) -> None:
        """In a forked child: drop the state of the parent."""
        self._places = self._make_places()
        self._forward: dict[object, list[Any]] = {}
        self._graphs: dict[int, tuple[Callable[[], Any], CompiledGraph]] = {}  # by id, valid while the graph exists

    def watch(self, module: ModuleType) -> None:
        """Patch the class of compiled graphs, if this module of Inductor defines it."""
        graph = vars(module).get("CompiledFxGraph")
        if graph is not None and graph.__module__ == module.__name__:
            replace(graph, "__call__", self._make_call)

    def _make_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(graph: Any, inputs: Any) -> Any:
            if not self._is_watching():
                return original(graph, inputs)
            begun = self._agent.attempt(self._begin, original, graph, inputs)
            if begun is None:
                return original(graph, inputs)
            event, record = begun
            event.outputs = original(graph, inputs)
            self._agent.attempt(self._listener.ended, event, record)
            return event.outputs

        return call

    def _begin(self, original: Callable[..., Any], graph: Any, inputs: Any) -> tuple[PytorchCalled, Any] | None:
        def function(*values: Any) -> Any:
            return original(graph, list(values))  # the graph empties the list

        found, operator = self._place_of(graph), self._operator(graph)
        if operator is None:
            return None
        event = PytorchCalled(operator, function, tuple(inputs), {}, self._places, found)
        record = self._listener.begins(event)
        return None if record is None else (event, record)

    def _operator(self, graph: Any) -> CompiledGraph | None:
        reference, operator = self._graphs.get(id(graph), (None, None))
        if reference is not None and reference() is graph:
            return operator
        if len(self._graphs) >= MAX_GRAPHS:
            return None
        operator = CompiledGraph(self._torch, graph)
        self._graphs[id(graph)] = weakref.ref(graph), operator
        return operator

    def _place_of(self, graph: Any) -> tuple[list[Any], str]:
        """Return places and phase of a call of a graph; a backward graph has the places of its forward graph."""
        options = getattr(graph, "fx_kwargs", None) or {}
        graph_id, (where, _) = options.get("graph_id"), self._places.of_call(4)
        if options.get("is_backward"):
            return self._forward.get(graph_id, where), BACKWARD
        self._forward[graph_id] = where
        return where, FORWARD


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
