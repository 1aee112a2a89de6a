"""Extends a graph that is being built: finds the place in it, calls the host from it, makes updates conditional.

In a graph the update becomes a branch of a condition, and the other branch calls a function on the host. XLA has no
host functions, conditions are slow there, and operations added to written values change their last bits. So under XLA
a flag is written beside the update, and the caller of the compiled function restores the values that it saved.

Several replicas reduce one number, by which all of them know whether their common step may be applied. An update that
merges replicas cannot be a branch of a condition. So variables are restored after the strategy's run if it may not; the
host then has the shares of all replicas of this process.
"""

from __future__ import annotations

import math
import sys
import weakref

from ..core.signal_errors import pass_on
from ..tensorflow import private_api
from ..tensorflow.training_state import plain
from .checks import MEMORY, WARM
from .settings import Conditions
from .tensorflow_state import LOADER, is_numeric, nested_random_operations, random_operations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from .tensorflow_steps import OptimizerMemory, OutermostCall, StepValues, TensorFlowStep, WatchedOptimizer

    Function = Callable[..., Any]

FIRST_REPLICA_ONLY = "of what each replica has for itself, as BatchNormalization's statistics, the first one's is kept"
PATIENCE = 60_000  # milliseconds to wait for the other workers, before this process ends
_OVER_DATA = ("scan_body", "reduce_body", "dataset_reduce", "dataset_scan")  # graphs of loops over a data set


def in_loop() -> bool:
    """Return whether the graph being built is within the body of a loop or of a data set's reduction."""
    graph = private_api.default_graph()
    while graph is not None:
        name = str(getattr(graph, "name", ""))
        if "while" in name or "educe" in name or "While" in type(graph).__name__:
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def batch_in_graph() -> list[tuple[str, Any]]:
    """Return the batch that was fetched last in the graph being built, or in those around it."""
    graph = private_api.default_graph()
    while graph is not None:
        if hasattr(graph, "_reprokit_batch"):
            return [(LOADER, graph._reprokit_batch)]
        if any(word in str(getattr(graph, "name", "")).lower() for word in _OVER_DATA):
            captured = set(map(id, graph.internal_captures))
            return [(LOADER, [tensor for tensor in graph.inputs if id(tensor) not in captured])]
        graph = getattr(graph, "outer_graph", None)
    return []


def numeric_inputs(graph: Any) -> list[Any]:
    """Return the numeric tensors that a function's graph is called with."""
    captured = set(map(id, graph.internal_captures))
    return [tensor for tensor in graph.inputs if id(tensor) not in captured and is_numeric(tensor)]


def call_host(on_host: Callable[..., None], nested: Any) -> None:
    """Add a call of a host function to the graph, with the values of all tensors in a nested value."""
    tensorflow = sys.modules["tensorflow"]
    nest = tensorflow.nest
    flat = nest.flatten(nested, expand_composites=True)
    positions = [position for position, tensor in enumerate(flat) if _can_be_handed(tensorflow, tensor)]

    def call(*tensor_values: Any) -> None:
        values = list(flat)
        for position, value in zip(positions, tensor_values):
            values[position] = value
        on_host(nest.pack_sequence_as(nested, values, expand_composites=True))

    tensorflow.py_function(call, [flat[position] for position in positions], [])


def _can_be_handed(tensorflow: Any, value: Any) -> bool:
    is_tensor = isinstance(value, tensorflow.Tensor) or hasattr(value, "handle")
    return is_tensor and value.dtype not in (tensorflow.resource, tensorflow.variant)


# ---- tests -----------------------------------------------------------------------------------------------------------


def values(gradients: Sequence[Any]) -> list[Any]:
    """Return the float tensors of gradients; of sparse ones, those of their existing rows."""
    dense = [
        getattr(each, "values", each) if hasattr(each, "indices") else each for each in gradients if each is not None
    ]
    return [each for each in dense if each.dtype.is_floating or each.dtype.is_complex]


class UpdateTest:
    """The test whether a step may be applied, as a tensor of the graph being built, or an eager one."""

    def __init__(
        self,
        step_values: StepValues,
        gradients: Sequence[Any],
        conditions: Conditions,
        memory: Any,
        may_overflow: Any = None,
    ) -> None:
        self._tensorflow: Any = sys.modules["tensorflow"]
        self._memory = memory
        self._gradients = values(gradients)
        self._may_overflow = may_overflow  # whether gradients may overflow, as those of a scaled loss
        self._losses = step_values.tested
        self._conditions = conditions
        self._flags = [flag for _, flag in step_values.activations]
        self.norm: Any = None

    def is_good(self) -> Any:
        """Return a tensor: whether losses, gradients, outputs and conditions are good."""
        if self._may_overflow is None:
            return self._with_conditions(are_finite(self._gradients + self._losses))
        gradients = self._tensorflow.logical_or(self._may_overflow, are_finite(self._gradients))
        return self._with_conditions(self._tensorflow.logical_and(gradients, are_finite(self._losses)))

    def _with_conditions(self, is_good: Any) -> Any:
        tensorflow, conditions = self._tensorflow, self._conditions
        if conditions.loss_above == -math.inf:  # of a step that is executed again; it may have no loss
            is_good = tensorflow.logical_and(is_good, False)
        elif conditions.loss_above is not None and self._losses:
            worst = tensorflow.reduce_max(
                [tensorflow.reduce_max(_as_float32(tensorflow, part)) for part in self._losses]
            )
            is_good = tensorflow.logical_and(is_good, worst <= conditions.loss_above)
        if conditions.gradient_jump is not None and self._gradients:
            squares = [
                tensorflow.reduce_sum(tensorflow.square(_as_float32(tensorflow, part))) for part in self._gradients
            ]
            self.norm = tensorflow.sqrt(tensorflow.add_n(squares))
            mean, count = tensorflow.unstack(self._memory.norms.read_value())
            small = tensorflow.logical_or(count < WARM, self.norm <= conditions.gradient_jump * mean)
            is_good = tensorflow.logical_and(is_good, small)
        return tensorflow.reduce_all(tensorflow.stack([is_good, *self._flags])) if self._flags else is_good

    def remember(self) -> list[tuple[Any, Any]]:
        """Return what a good step writes to the OptimizerMemory: pairs of variable and value."""
        if not self._losses:
            return self._norms()
        last_losses = self._memory.losses.read_value()
        losses = self._tensorflow.concat([last_losses[1:], [self._loss()]], 0)
        return [(self._memory.losses, losses), *self._norms()]

    def _loss(self) -> Any:
        return _as_float32(self._tensorflow, self._tensorflow.reduce_mean(self._losses[-1]))

    def _norms(self) -> list[tuple[Any, Any]]:
        tensorflow = self._tensorflow
        if self.norm is None:
            return []
        mean, count = tensorflow.unstack(self._memory.norms.read_value())
        mean = tensorflow.where(count < 1, self.norm, MEMORY * mean + (1 - MEMORY) * self.norm)
        return [(self._memory.norms, tensorflow.stack([mean, count + 1]))]


def _as_float32(tensorflow: Any, value: Any) -> Any:
    value = tensorflow.abs(value) if value.dtype.is_complex else value
    return tensorflow.cast(value, tensorflow.float32)


def is_all_finite(value: Any) -> Any:
    """Return a tensor: whether all numbers of a tensor are finite."""
    tensorflow = sys.modules["tensorflow"]
    if value.dtype.is_complex:
        value = tensorflow.stack([tensorflow.math.real(value), tensorflow.math.imag(value)])
    elif value.dtype.size == 1:
        value = tensorflow.cast(value, tensorflow.float32)
    return tensorflow.reduce_all(tensorflow.math.is_finite(value))


# ---- updates --------------------------------------------------------------------------------------------------------


def conditional_update(
    step: TensorFlowStep,
    test: UpdateTest,
    update: Function,
    host: Function,
    changed: list[tuple[Any, Any]],
    updated: list[Any],
    *,
    stops: bool,
) -> None:
    """Add a condition to the graph: the update, or else the host's call and the restoring of changed variables.

    The host is also called if the update makes any of the ``updated`` variables non-finite. With ``stops``, later steps
    of the graph are not applied either.
    """
    tensorflow, graph = sys.modules["tensorflow"], private_api.default_graph()

    def apply() -> Any:
        for variable, value in test.remember():
            variable.assign(value)
        update()
        return are_finite(current_values(updated))

    def reject() -> Any:
        host()
        restore_values(changed)
        return tensorflow.constant(False)

    is_good, were_good = test.is_good(), getattr(graph, "_reprokit_good", None)
    if stops and were_good is not None:
        is_good = tensorflow.logical_and(is_good, were_good)
    step.is_updating = True
    try:
        if updated:
            is_good = tensorflow.cond(is_good, apply, lambda: tensorflow.constant(False))
            tensorflow.cond(is_good, lambda: tensorflow.constant(True), reject)
        else:
            tensorflow.cond(is_good, apply, reject)
    finally:
        step.is_updating = False
    graph._reprokit_good = is_good
    step.finite = is_good if graph is step.graph else None


def current_values(variables: Iterable[Any]) -> list[Any]:
    """Return the current values of variables, as tensors."""
    return [plain(variable).read_value() for variable in variables]


def are_finite(tensors: Iterable[Any]) -> Any:
    """Return a tensor: whether all of these tensors are finite."""
    tensorflow = sys.modules["tensorflow"]
    finite = list(map(is_all_finite, tensors))
    return tensorflow.reduce_all(tensorflow.stack(finite)) if finite else tensorflow.constant(True)


def restore_values(saved: list[tuple[Any, Any]]) -> None:
    """Assign saved values to variables."""
    for variable, value in saved:
        variable.assign(value)


def flagged_update(step: TensorFlowStep, test: UpdateTest, update: Function, memory: OptimizerMemory) -> None:
    """Add the update to a graph for XLA, and a flag that says whether it should not have happened."""
    tensorflow = sys.modules["tensorflow"]
    finite = test.is_good()
    step.is_updating = True
    try:
        update()
        for variable, value in test.remember():
            variable.assign(tensorflow.where(finite, value, variable.read_value()))
        memory.all_good.assign(tensorflow.logical_and(memory.all_good.read_value(), finite))
    finally:
        step.is_updating = False


class UpdateSite:
    """A place in a graph where an optimizer applies gradients."""

    def __init__(
        self, watched: WatchedOptimizer, variables: list[Any], step: TensorFlowStep, call: OutermostCall | None
    ) -> None:
        self.watched = watched
        self.step = step
        self.variables = variables
        # TensorFlow never releases graphs, which refer to this object: the model must not live as long.
        self._model = None if call is None or call.model is None else weakref.ref(call.model)
        self.record = None if call is None else call.record  # of the function that the graph was built in
        self.activations = [name for name, _ in step.values.activations]
        self.random_types: list[str] = []  # types of the operations in random_results()
        self.changed: dict[int, tuple[Any, Any]] = {}  # other variables that the compiled step writes to

    @property
    def model(self) -> Any:
        """The model whose fit it belongs to, if there is one and it still exists."""
        return None if self._model is None else self._model()

    def random_results(self) -> list[Any]:
        """Return the results of operations with a random state of their own, to be passed to the host."""
        draws = random_operations(self.step.graph)
        self.random_types = [draw.type for draw in draws]
        return [draw.outputs[0] for draw in draws]

    @property
    def updated(self) -> list[Any]:
        """The variables that are tested after the update."""
        return self.variables if self.watched.is_backed_up else []

    @property
    def unreadable(self) -> list[str]:
        """Names of operations with a random state of their own whose results are not passed to the host."""
        graph = self.step.graph
        return [
            operation.name for operation in random_operations(graph)[len(self.random_types) :]
        ] + nested_random_operations(graph)


# ---- replicas --------------------------------------------------------------------------------------------------------


def replica() -> Any:
    """Return the context of the replica being built, if there are several; else None."""
    context = sys.modules["tensorflow"].distribute.get_replica_context()
    return context if context is not None and context.num_replicas_in_sync > 1 else None


class ReplicaShare:
    """One replica's gradients, and the reduced results of all replicas."""

    def __init__(self, number: int, gradients: list[Any], loss: Any, finite: Any, failed_replica: Any) -> None:
        self.number = number
        self.gradients = gradients
        # Tensors, the same for all replicas:
        self.loss = loss  # the sum over all replicas
        self.finite = finite  # whether all replicas are finite
        self.failed_replica = failed_replica  # number of the replica that is not finite, if it is only one; else -1


class ReplicaRound:
    """The replicas of this process that a strategy runs in a graph, and that share a step."""

    def __init__(self) -> None:
        self.step: TensorFlowStep | None = None
        self.site: UpdateSite | None = None
        self.shares: list[ReplicaShare] = []

    def add(self, step: TensorFlowStep, batch: tuple[str, Any]) -> None:
        """Add a replica that begins the step, with its batch."""
        self.step, step.replica_round = step, self
        step.differentiated = False  # another replica's thread, with which it alternates, has set it
        step.values.batches = [*step.values.batches, batch]

    def take(self, replica: Any, gradients: list[Any], conditions: Conditions, may_overflow: Any) -> None:
        """Add the test of one replica, in its own thread; threads run one at a time, and switch where they merge."""
        assert self.step is not None
        test = UpdateTest(self.step.values, gradients, Conditions(), None, may_overflow)
        losses = self.step.values.tested[-1:]
        finite, loss, failed_replica = reduce_over_replicas(replica, test.is_good(), losses)
        if conditions.loss_above is not None and losses:
            finite = sys.modules["tensorflow"].logical_and(finite, loss <= conditions.loss_above)
        number = sys.modules["tensorflow"].get_static_value(replica.replica_id_in_sync_group)
        number = len(self.shares) if number is None else int(number)
        self.shares.append(ReplicaShare(number, gradients, loss if losses else None, finite, failed_replica))

    def end(self, host: Function) -> None:
        """Add the host's call for a bad step, and restore what the forward passes changed, after the run."""
        tensorflow, step = sys.modules["tensorflow"], self.step
        if step is None:
            return
        step.pinned = False
        if not self.shares or self.site is None:
            return
        finite = self.shares[0].finite

        def reject() -> Any:
            host()
            return tensorflow.constant(0)

        tensorflow.cond(finite, lambda: tensorflow.constant(0), reject)
        step.is_updating = True
        try:
            for variable, value in step.variables.saved.values():
                variable.assign(tensorflow.where(finite, variable.read_value(), value))
            if self.shares[0].loss is not None:  # a good step's loss is appended to the last ones
                losses = self.site.watched.memory.losses
                last = losses.read_value()
                losses.assign(tensorflow.where(finite, tensorflow.concat([last[1:], [self.shares[0].loss]], 0), last))
        finally:
            step.is_updating = False

    @property
    def gradients(self) -> list[Any]:
        """The sums of the gradients of this process's replicas."""
        convert, add = sys.modules["tensorflow"].convert_to_tensor, sys.modules["tensorflow"].add_n
        return [add([convert(part) for part in parts]) for parts in zip(*[share.gradients for share in self.shares])]


def reduce_over_replicas(replica: Any, is_good: Any, losses: list[Any]) -> tuple[Any, Any, Any]:
    """Return tensors: whether all replicas are good, the sum of losses, and the number of the only bad one, or -1."""
    tensorflow = sys.modules["tensorflow"]
    bad = tensorflow.cast(tensorflow.logical_not(is_good), tensorflow.float32)
    number = tensorflow.cast(replica.replica_id_in_sync_group, tensorflow.float32)
    loss = tensorflow.add_n(
        [tensorflow.reduce_sum(tensorflow.cast(loss_part, tensorflow.float32)) for loss_part in losses] or [0.0]
    )
    sums = replica.all_reduce(tensorflow.distribute.ReduceOp.SUM, tensorflow.stack([bad, bad * number, loss]))
    return sums[0] < 0.5, sums[2], tensorflow.where(tensorflow.equal(sums[0], 1.0), sums[1], -1.0)


# ---- several processes -----------------------------------------------------------------------------------------------


def worker(strategy: Any) -> tuple[int, int] | None:
    """Return this worker's number and the number of workers; None if there is only one."""
    if not private_api.has_workers(strategy):
        return None
    resolver = strategy.cluster_resolver
    workers = resolver.cluster_spec().as_dict()
    count = len(workers.get("worker", ())) + len(workers.get("chief", ()))
    is_after_chief = resolver.task_type == "worker" and "chief" in workers
    return int(resolver.task_id) + (len(workers["chief"]) if is_after_chief else 0), count


def wait_for_workers() -> None:
    """Wait until all workers have saved: when the first one ends, TensorFlow ends the others."""
    context = private_api.module("context").context()
    try:
        context.wait_at_barrier("reprokit/captured", PATIENCE)
    except Exception as error:  # one of them has ended, or does not come
        pass_on(error)
