"""What is added to the graph of a TensorFlow 1 training: a test of gradients, the update's condition, and what is read.

A session keeps the state of its random operations where nobody can read it, so that what they drew is read instead. The
variables that a step changes although its update does not happen (a batch normalisation's averages, metrics) are read
before they are changed, by edges from the reading to the change.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

MAX_OPERATIONS = 1_000_000
WARM = 10  # steps before a jump of the gradients is one
_DECAY = 0.99  # of the running mean of their norm
_RANDOM = frozenset(
    "Multinomial ParameterizedTruncatedNormal RandomGamma RandomPoisson RandomPoissonV2 RandomShuffle"
    " RandomStandardNormal RandomUniform RandomUniformInt TruncatedNormal".split()
)
_ASSIGNS = ("Assign", "ResourceApply", "ResourceScatter", "ResourceSparseApply", "Apply", "SparseApply", "Scatter")
_PASSES = frozenset(["Enter", "Identity", "RefSwitch", "Switch"])
_NARROW = frozenset(["float16", "bfloat16"])


class Test:
    """The test of one optimizer's gradients, in the graph."""

    def __init__(self, loss: Any, pairs: Sequence[tuple[Any, Any]], limits: tuple[float | None, float | None]) -> None:
        self.loss = loss
        self.pairs = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        self._tensorflow: Any = sys.modules["tensorflow"]
        self._loss_above, self._jump = limits
        self._mean: Any = None  # of the gradients' norms, and how many
        self.known: Any = None  # the mean as it was before the step
        self._norm: Any = None
        self.good = self._build()

    @property
    def values(self) -> list[Any]:
        """The numbers of each gradient; of a sparse one those of the rows that it has."""
        return [getattr(gradient, "values", gradient) for gradient, _ in self.pairs]

    def _build(self) -> Any:
        """Whether the update is to happen: a sum of squares tells it in one pass; what overflows there is looked at."""
        compat, math = self._tensorflow.compat.v1, self._tensorflow.math
        floats = [value for value in self.values if value.dtype.base_dtype.is_floating]
        squares = [compat.cast(compat.nn.l2_loss(_wide(compat, value)), "float32") for value in floats]
        total = math.add_n(squares) if squares else compat.constant(0.0)
        loss = compat.reduce_sum(compat.cast(self.loss, "float32"))

        def each() -> Any:
            return math.reduce_all([math.reduce_all(math.is_finite(value)) for value in [*floats, self.loss]])

        good = compat.cond(math.is_finite(total + loss), lambda: compat.constant(True), each)
        if self._loss_above is not None:
            good = math.logical_and(good, loss <= self._loss_above)
        if self._jump is not None:
            good = math.logical_and(good, self._is_no_jump(compat, math.sqrt(2.0 * total)))
        return good

    def _is_no_jump(self, compat: Any, norm: Any) -> Any:
        backend: Any = sys.modules["tensorflow.python.keras.backend"]
        self._norm = norm
        self._mean = backend.variable([0.0, 0.0], dtype="float32", name="reprokit_norm")
        before = compat.identity(self._mean)
        self.known = before[0]
        return compat.logical_or(before[1] < float(WARM), norm <= self._jump * before[0])

    def _remember(self) -> list[Any]:
        if self._mean is None:
            return []
        compat = self._tensorflow.compat.v1
        before = self._mean.read_value()
        mean = compat.where(before[1] < 1.0, self._norm, _DECAY * before[0] + (1 - _DECAY) * self._norm)
        return [self._mean.assign([mean, before[1] + 1.0])]

    def conditional(self, apply: Callable[[], Any]) -> Any:
        """The operation that applies the gradients if they are good."""
        compat = self._tensorflow.compat.v1

        def applied() -> Any:
            with compat.control_dependencies([apply(), *self._remember()]):
                return compat.constant(True)

        return compat.cond(self.good, applied, lambda: compat.constant(False)).op


def _wide(compat: Any, value: Any) -> Any:
    return compat.cast(value, "float32") if value.dtype.base_dtype.name in _NARROW else value


class Reads:
    """What is read of each execution beside what the training itself asks for."""

    def __init__(self, function: Any, test: Test) -> None:
        compat: Any = sys.modules["tensorflow"].compat.v1
        operations = needed([function.updates_op, *[output.op for output in function.outputs]])
        drawn = [operation for operation in operations if operation.type in _RANDOM]
        self.random = [operation.outputs[0] for operation in drawn if runs(operation)]
        self.unread = [operation.name for operation in drawn if not runs(operation)]
        self.moved: list[Any] = []  # variables that change although the update does not happen
        before = []
        with test.good.graph.as_default():
            for variable, changes in _changed(operations, test.good):
                value = compat.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype.base_dtype)
                for change in changes:
                    change._add_control_input(value.op)
                self.moved.append(variable)
                before.append(value)
            loss = compat.identity(test.loss)
        rows = [gradient.indices for gradient, _ in test.pairs if hasattr(gradient, "indices")]
        means = [] if test.known is None else [test.known]
        self.fetches = [test.good, loss, *test.values, *rows, *before, *self.random, *means]
        self._sizes = [1, 1, len(test.values), len(rows), len(before), len(self.random), len(means)]

    def split(self, values: Sequence[Any]) -> list[list[Any]]:
        """What was fetched: good, loss, gradients, rows of sparse ones, variables before, random numbers."""
        found, start = [], 0
        for size in self._sizes:
            found.append(list(values[start : start + size]))
            start += size
        return found


def _changed(operations: Iterable[Any], good: Any) -> list[tuple[Any, list[Any]]]:
    """The variables that are changed outside of the update, with the operations that do so."""
    compat: Any = sys.modules["tensorflow"].compat.v1
    with good.graph.as_default():
        variables = compat.global_variables() + compat.local_variables()
    owners = {variable.handle.name: variable for variable in variables if getattr(variable, "handle", None) is not None}
    for tracked in _tracked(good.graph):
        owners.setdefault(tracked.handle.name, tracked)
    found: dict[str, list[Any]] = {}
    for operation in operations:
        if operation.type.startswith(_ASSIGNS) and not _is_conditional(operation, good):
            for name in {_handle(tensor) for tensor in operation.inputs}.intersection(owners):
                found.setdefault(name, []).append(operation)
    return [(owners[name], found[name]) for name in sorted(found)]


def _handle(tensor: Any) -> str:
    """What a tensor was before conditions passed it on."""
    while tensor.op.type in _PASSES:
        tensor = tensor.op.inputs[0]
    return str(tensor.name)


def _tracked(graph: Any) -> list[Any]:
    """The variables that Keras made, which are in no collection."""
    known: Any = getattr(sys.modules["tensorflow.python.keras.backend"], "_GRAPH_VARIABLES", {})
    return [variable for variable in known.get(graph, ()) if getattr(variable, "handle", None) is not None]


def needed(wanted: Iterable[Any]) -> list[Any]:
    """The operations that these need, and they themselves, in the order they were made in."""
    seen: set[Any] = set()
    waiting = list(wanted)
    while waiting and len(seen) < MAX_OPERATIONS:
        operation = waiting.pop()
        if operation not in seen:
            seen.add(operation)
            waiting += [tensor.op for tensor in operation.inputs]
            waiting += operation.control_inputs
    return sorted(seen, key=lambda operation: operation._id)


def _contexts(operation: Any) -> list[Any]:
    """The conditions and loops that an operation is in, the innermost first."""
    found = []
    context = operation._get_control_flow_context()
    while context is not None:
        found.append(context)
        context = context.outer_context
    return found


def _asked(context: Any) -> Any:
    """What a condition asks; None of a loop."""
    predicate = getattr(context, "pred", None)
    inputs = [] if predicate is None else list(predicate.op.inputs)
    return inputs[0] if inputs else predicate


def _is_conditional(operation: Any, good: Any) -> bool:
    """Whether it is a part of the update, or in a loop, into which no edge can be led."""
    contexts = _contexts(operation)
    return any(_asked(context) is good or not hasattr(context, "pred") for context in contexts)


def runs(operation: Any) -> bool:
    """Whether it is executed in each training step, as far as one can know."""
    phase = sys.modules["tensorflow.python.keras.backend"].symbolic_learning_phase()
    return all(_asked(context) is phase and context.branch == 1 for context in _contexts(operation))
