"""What is known of the step that is being taken: in eager code one a thread, in graphs one a graph that is being built.

A step begins where a gradient tape is entered, or where Keras or a strategy runs one. Until its update, each variable
that is written to is held as it was before: the running statistics, seeds and metrics that a forward pass moves.
"""

from __future__ import annotations

import sys
from _thread import _local

from ..core.patching import replace
from ..tensorflow import private_api
from .tensorflow_random import MARK
from .tensorflow_state import generators, known_generators, plain, resource_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Function = Callable[..., Any]

MAX_BATCHES = 64  # of one step that accumulates gradients
MAX_LOSSES = 16
MAX_DRAWN = 10_000
_WRITES = (
    "assign",
    "assign_add",
    "assign_sub",
    *[f"scatter_{nd}{name}" for nd in ("", "nd_") for name in ("sub", "add", "max", "min", "mul", "div", "update")],
)


class StepValues:
    """What a step worked on and came to, in tensors of a graph or in values."""

    def __init__(self, batches: Iterable[tuple[str, Any]] = ()) -> None:
        self.batches = list(batches)
        self.losses: list[Any] = []
        self.unscaled: Any = None  # the loss before a loss scale
        self.activations: list[tuple[str, Any]] = []  # of layers: whether their outputs are finite
        self.drawn: list[tuple[str, Any]] = []  # by operations whose random states nobody can read: type and numbers

    @property
    def tested(self) -> list[Any]:
        """The losses that must be finite."""
        return self.losses if self.unscaled is None else [self.unscaled]

    @property
    def loss(self) -> Any:
        """The loss: of several the last, before a loss scale where there is one."""
        return self.tested[-1] if self.tested else None


class StepVariables:
    """The variables that a step writes to, as they were before."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self.held: dict[int, tuple[Any, Any]] = {}  # by resource_id: a variable and its value before the step
        self.updated: dict[int, tuple[Any, Any]] = {}  # the same of what optimizers have updated within it
        self.earlier: dict[int, tuple[Any, Any]] = {}  # the same at the start of steps before it in the same graph
        self.count = 0  # how many were held before the update

    def hold(self, variable: Any) -> None:
        """Keep the value that a variable has, unless it was kept."""
        key = resource_id(variable)
        if key not in self.held:
            self.held[key] = variable, self._read(variable)

    def hold_updated(self, variables: list[Any]) -> None:
        """Keep what an optimizer is about to update, for a further one in the same step."""
        for variable in map(plain, variables):
            key = resource_id(variable)
            if key not in self.held and key not in self.updated:
                self.updated[key] = variable, self._read(private_api.primary(variable))

    @property
    def before(self) -> dict[int, tuple[Any, Any]]:
        """What is known of the start of all: of a graph the start of its call."""
        return {**self.held, **self.updated, **self.earlier}

    def _read(self, variable: Any) -> Any:
        raw = sys.modules["tensorflow"].raw_ops
        if self._graph is None:
            return raw.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
        with self._graph.as_default():  # not in the loop or branch that may be built within it
            return raw.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


class TensorFlowStep:
    """One step, in the graph that it is built in; None: in eager code."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.values = StepValues()
        self.variables = StepVariables(graph)
        self.tapes = 0  # that are open
        self.pinned = False  # it has an end of its own, which somebody tells
        self.differentiated = False
        self.applied = False
        self.passes = False  # what is written now is the update itself
        self.finite: Any = None  # once it was tested
        self.together: Any = None  # the replicas that share it
        self.optimizers: list[Any] = []  # of eager code: which have tested their gradients, in order

    @property
    def over(self) -> bool:
        """Whether the next tape begins another step."""
        return not self.pinned and not self.tapes and (self.applied or not self.differentiated)


class ThreadStep(_local):
    """The step of a thread's eager code."""

    step: TensorFlowStep | None = None


class StepTracker:
    """The steps under way."""

    def __init__(self) -> None:
        self.here = ThreadStep()
        self.begins: Function = _nobody  # called with each eager step
        self.differentiates: Function = _nobody  # called where a step asks for gradients

    # Which step

    def current(self) -> TensorFlowStep | None:
        """The step of this thread or of the graph that is being built."""
        if private_api.executing_eagerly():
            return self.here.step
        graph = private_api.default_graph()
        while graph is not None:
            found: TensorFlowStep | None = getattr(graph, "_reprokit_step", None)
            if found is not None or type(graph).__name__ == "FuncGraph":  # a function's, which hands out no tensors
                return found
            graph = getattr(graph, "outer_graph", None)
        return None

    def begin(self) -> TensorFlowStep:
        """A new step here."""
        if private_api.executing_eagerly():
            step = self.here.step = TensorFlowStep(None)
            self.begins(step)
        else:
            graph = private_api.default_graph()
            last = getattr(graph, "_reprokit_step", None)
            step = graph._reprokit_step = TensorFlowStep(graph)
            step.variables.earlier = {} if last is None else last.variables.before
        for generator in known_generators():
            step.variables.hold(private_api.state(generator))
        return step

    def end(self) -> None:
        """No step is under way here."""
        if private_api.executing_eagerly():
            self.here.step = None
        else:
            private_api.default_graph()._reprokit_step = None

    # Where steps are seen

    def watch_tapes(self, tape: Any) -> None:
        """Steps begin with tapes, and losses are what gradients are asked of."""
        put(tape, "__enter__", self._make_enter)
        put(tape, "__exit__", self._make_exit)
        put(tape, "gradient", self._make_gradient)

    def _make_enter(self, original: Function) -> Function:
        def enter(tape: Any) -> Any:
            step = self.current()
            if step is None or (step.over and (step.graph is None or step.graph is private_api.default_graph())):
                step = self.begin()
            step.tapes += 1
            return original(tape)

        return enter

    def _make_exit(self, original: Function) -> Function:
        def leave(tape: Any, *arguments: Any) -> Any:
            step = self.current()
            if step is not None:
                step.tapes = max(0, step.tapes - 1)
            return original(tape, *arguments)

        return leave

    def _make_gradient(self, original: Function) -> Function:
        def gradient(tape: Any, target: Any, sources: Any, *arguments: Any, **keywords: Any) -> Any:
            step = self.current()
            if step is not None and _any_variable(sources):
                step.differentiated = True
                self.differentiates(step)
                step.values.losses = [*step.values.losses, *_floats(target)][-MAX_LOSSES:]
            return original(tape, target, sources, *arguments, **keywords)

        return gradient

    def drew(self, kind: str, drawn: Any) -> Any:
        """An operation of this type drew what no state tells; graphs hand it out themselves."""
        step = self.current() if private_api.has_value(drawn) else None
        if step is not None and not step.over and len(step.values.drawn) < MAX_DRAWN:
            step.values.drawn.append((kind, drawn))
        return drawn

    def watch_scaling(self, owner: Any, name: str) -> None:
        """What scales a loss is given the loss itself."""

        def make(original: Function) -> Function:
            def scale(optimizer: Any, loss: Any) -> Any:
                step = self.current()
                if step is not None and hasattr(loss, "dtype"):
                    step.values.unscaled = loss
                return original(optimizer, loss)

            return scale

        put(owner, name, make)

    def watch_writes(self, owner: Any) -> None:
        """Variables are held before they are written to."""
        for name in _WRITES:
            put(owner, name, self._make_write)

    def _make_write(self, original: Function) -> Function:
        def write(variable: Any, *arguments: Any, **keywords: Any) -> Any:
            step = self.current()
            if step is not None and not step.passes:
                self._hold(step, variable)
            return original(variable, *arguments, **keywords)

        return write

    def _hold(self, step: TensorFlowStep, variable: Any) -> None:
        try:
            step.variables.hold(variable)
        except Exception:  # a variable without a value, as at its first assignment
            pass

    def watch_generators(self, owner: Any) -> None:
        """Know every tf.random.Generator."""

        def make(original: Function) -> Function:
            def begin(generator: Any, *arguments: Any, **keywords: Any) -> None:
                original(generator, *arguments, **keywords)
                generator._reprokit_number = self._number = getattr(self, "_number", 0) + 1
                generators.add(generator)

            return begin

        put(owner, "__init__", make)


def _nobody(_step: TensorFlowStep) -> None:
    """Nobody wants to know that a step begins."""


def put(owner: Any, name: str, make: Callable[[Function], Function]) -> None:
    """Put make(original) in the place of a method, once; autograph is to leave it as it is."""
    replace(owner, name, make, MARK)
    if name in vars(owner):
        vars(owner)[name].autograph_info__ = None


def _any_variable(sources: Any) -> bool:
    flat = sys.modules["tensorflow"].nest.flatten(sources)
    return any(hasattr(one, "assign") or hasattr(one, "path") for one in flat)


def _floats(target: Any) -> list[Any]:
    flat = sys.modules["tensorflow"].nest.flatten(target)
    return [one for one in flat if getattr(getattr(one, "dtype", None), "is_floating", False)]
