"""The graph that is being built: where in it we are, calls from it to the host, and updates only where all is finite.

In a graph the update becomes the branch of a condition, and the other branch calls a function on the host. XLA knows
no such functions, conditions cost it much, and what is added to values that are written changes their last bits. There
a flag is written beside the update, and who called the compiled function puts back what he held.

Several replicas learn by one number, which is summed over them, whether the step that they take together may be
applied. An update that merges them cannot be the branch of a condition, so behind the strategy's run each variable gets
back what it had where it may not; there the shares of all replicas of this process are known to the host.
"""

from __future__ import annotations

import sys

from ..core.signal_errors import pass_on
from ..tensorflow import private_api
from ..tensorflow.decisions import RANDOM_OPERATIONS
from .checks import MEMORY, WARM
from .settings import Conditions
from .tensorflow_state import LOADER, as_array, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from .tensorflow_steps import StepValues, TensorFlowStep
    from .tensorflow_updates import UpdateSite

    Function = Callable[..., Any]

LAST_LOSSES = 100
OF_THE_FIRST = "of what each replica has for itself, as BatchNormalization's statistics, the first one's is kept"
PATIENCE = 60_000  # milliseconds for which the other workers are waited for, before this process ends
_OVER_DATA = ("scan_body", "reduce_body", "dataset_reduce", "dataset_scan")  # graphs of loops over a data set


def in_loop() -> bool:
    """Whether the graph that is being built is, or is within, the body of a loop or of a data set's reduction."""
    graph = private_api.default_graph()
    while graph is not None:
        name = str(getattr(graph, "name", ""))
        if "while" in name or "educe" in name or "While" in type(graph).__name__:
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def batch_in_graph() -> list[tuple[str, Any]]:
    """Return what was fetched last in the graph that is being built or in those around it."""
    graph = private_api.default_graph()
    while graph is not None:
        if hasattr(graph, "_reprokit_batch"):
            return [(LOADER, graph._reprokit_batch)]
        if any(word in str(getattr(graph, "name", "")).lower() for word in _OVER_DATA):
            captured = set(map(id, graph.internal_captures))
            return [(LOADER, [one for one in graph.inputs if id(one) not in captured])]
        graph = getattr(graph, "outer_graph", None)
    return []


def numbers_given_to(graph: Any) -> list[Any]:
    """Return the tensors of numbers that a function's graph is called with."""
    captured = set(map(id, graph.internal_captures))
    return [one for one in graph.inputs if id(one) not in captured and has_numbers(one)]


def has_numbers(value: Any) -> bool:
    """Return whether it is a tensor or an array of numbers."""
    dtype = getattr(value, "dtype", None)
    return (
        hasattr(value, "shape")
        and any(getattr(dtype, name, False) for name in ("is_floating", "is_integer", "is_complex"))
    ) or getattr(dtype, "kind", None) in (*"iufc",)


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


def drawing(graph: Any) -> list[Any]:
    """Return the operations of a graph that draw from a state of their own, in the order of their making."""
    return [operation for operation in graph.get_operations() if operation.type in RANDOM_OPERATIONS.values()]


def hidden(graph: Any) -> list[str]:
    """Return the names of those in functions that a graph calls, as branches and loops, which hand nothing out."""
    functions = graph.as_graph_def().library.function
    names = [node.name for function in functions for node in function.node_def if node.op in RANDOM_OPERATIONS.values()]
    return list(dict.fromkeys(names))


# ---- tests -----------------------------------------------------------------------------------------------------------


class OptimizerMemory:
    """Variables of ours that one optimizer's graphs keep from step to step."""

    def __init__(self) -> None:
        tensorflow = sys.modules["tensorflow"]
        variable = private_api.module("variables").ResourceVariable  # one, under any strategy
        with private_api.ops().init_scope():
            nothing = tensorflow.fill([LAST_LOSSES], tensorflow.constant(float("nan")))
            self.losses = variable(nothing, trainable=False, name="reprokit_losses")
            self.norms = variable([0.0, 0.0], trainable=False, name="reprokit_norms")  # mean, and of how many
            self.good = variable(True, trainable=False, name="reprokit_good")  # whether all compiled steps were
        self._read = private_api.module("variable_calls").read_variable_op

    @property
    def variables(self) -> list[Any]:
        """All of them."""
        return [self.losses, self.norms, self.good]

    def last_losses(self) -> list[float]:
        """Return all that are remembered."""
        numbers = as_array(self.losses).tolist()
        return [number for number in numbers if number == number][-LAST_LOSSES:]

    def is_flagged(self) -> bool:
        """In eager code: whether a compiled step should not have happened."""
        return not bool(self._read(self.good.handle, self.good.dtype))


def values(gradients: Sequence[Any]) -> list[Any]:
    """Return the numbers of gradients that can be not finite; of sparse ones those of the rows they have."""
    dense = [getattr(one, "values", one) if hasattr(one, "indices") else one for one in gradients if one is not None]
    return [one for one in dense if one.dtype.is_floating or one.dtype.is_complex]


class UpdateTest:
    """Whether a step may be applied, as a tensor of the graph that is being built."""

    def __init__(
        self,
        seen: StepValues,
        gradients: Sequence[Any],
        conditions: Conditions,
        memory: Any,
        allowed: Any = None,
    ) -> None:
        self._tensorflow: Any = sys.modules["tensorflow"]
        self._memory = memory
        self._gradients = values(gradients)
        self._allowed = allowed  # whether gradients may overflow, as those of a scaled loss
        self._losses = seen.tested
        self._conditions = conditions
        self._flags = [flag for _, flag in seen.activations]
        self.norm: Any = None

    def passes(self) -> Any:
        """Look at each number: whether the step is good."""
        if self._allowed is None:
            return self._with_conditions(are_finite(self._gradients + self._losses))
        gradients = self._tensorflow.logical_or(self._allowed, are_finite(self._gradients))
        return self._with_conditions(self._tensorflow.logical_and(gradients, are_finite(self._losses)))

    def _with_conditions(self, good: Any) -> Any:
        tensorflow, conditions = self._tensorflow, self._conditions
        if conditions.loss_above is not None and self._losses:
            worst = tensorflow.reduce_max([tensorflow.reduce_max(_wide(tensorflow, one)) for one in self._losses])
            good = tensorflow.logical_and(good, worst <= conditions.loss_above)
        if conditions.gradient_jump is not None and self._gradients:
            squares = [tensorflow.reduce_sum(tensorflow.square(_wide(tensorflow, one))) for one in self._gradients]
            self.norm = tensorflow.sqrt(tensorflow.add_n(squares))
            mean, count = tensorflow.unstack(self._memory.norms.read_value())
            small = tensorflow.logical_or(count < WARM, self.norm <= conditions.gradient_jump * mean)
            good = tensorflow.logical_and(good, small)
        return tensorflow.reduce_all(tensorflow.stack([good, *self._flags])) if self._flags else good

    def remember(self) -> list[tuple[Any, Any]]:
        """Return what a good step writes into the memory: variable and value."""
        if not self._losses:
            return self._norms()
        known = self._memory.losses.read_value()
        losses = self._tensorflow.concat([known[1:], [self._loss()]], 0)
        return [(self._memory.losses, losses), *self._norms()]

    def _loss(self) -> Any:
        return _wide(self._tensorflow, self._tensorflow.reduce_mean(self._losses[-1]))

    def _norms(self) -> list[tuple[Any, Any]]:
        tensorflow = self._tensorflow
        if self.norm is None:
            return []
        mean, count = tensorflow.unstack(self._memory.norms.read_value())
        mean = tensorflow.where(count < 1, self.norm, MEMORY * mean + (1 - MEMORY) * self.norm)
        return [(self._memory.norms, tensorflow.stack([mean, count + 1]))]


def _wide(tensorflow: Any, value: Any) -> Any:
    value = tensorflow.abs(value) if value.dtype.is_complex else value
    return tensorflow.cast(value, tensorflow.float32)


def all_finite(value: Any) -> Any:
    """Return whether all numbers of a tensor are finite, as a tensor."""
    tensorflow = sys.modules["tensorflow"]
    if value.dtype.is_complex:
        value = tensorflow.stack([tensorflow.math.real(value), tensorflow.math.imag(value)])
    elif value.dtype.size == 1:
        value = tensorflow.cast(value, tensorflow.float32)
    return tensorflow.reduce_all(tensorflow.math.is_finite(value))


# ---- updates --------------------------------------------------------------------------------------------------------


def conditional(
    step: TensorFlowStep,
    test: UpdateTest,
    update: Function,
    host: Function,
    moved: list[tuple[Any, Any]],
    updated: list[Any],
    *,
    stops: bool,
) -> None:
    """In a graph: the update, or the call on the host and then what the step had moved before put back.

    The host is called too where the update has made variables not finite, of those that are named here. Where training
    stops at such a step, later steps of the graph are not applied either.
    """
    tensorflow, graph = sys.modules["tensorflow"], private_api.default_graph()

    def applied() -> Any:
        for variable, value in test.remember():
            variable.assign(value)
        update()
        return are_finite(now(updated))

    def kept() -> Any:
        host()
        put_back(moved)
        return tensorflow.constant(False)

    good, earlier = test.passes(), getattr(graph, "_reprokit_good", None)
    if stops and earlier is not None:
        good = tensorflow.logical_and(good, earlier)
    step.passes = True
    try:
        if updated:
            good = tensorflow.cond(good, applied, lambda: tensorflow.constant(False))
            tensorflow.cond(good, lambda: tensorflow.constant(True), kept)
        else:
            tensorflow.cond(good, applied, kept)
    finally:
        step.passes = False
    graph._reprokit_good = good
    step.finite = good if graph is step.graph else None


def now(variables: Iterable[Any]) -> list[Any]:
    """Return what variables have now, as tensors."""
    return [plain(variable).read_value() for variable in variables]


def are_finite(tensors: Iterable[Any]) -> Any:
    """Return whether all of these are finite, as a tensor."""
    tensorflow = sys.modules["tensorflow"]
    finite = list(map(all_finite, tensors))
    return tensorflow.reduce_all(tensorflow.stack(finite)) if finite else tensorflow.constant(True)


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


# ---- replicas --------------------------------------------------------------------------------------------------------


def replica() -> Any:
    """Return the context of the replica that is being built, where there are several; else None."""
    found = sys.modules["tensorflow"].distribute.get_replica_context()
    return found if found is not None and found.num_replicas_in_sync > 1 else None


class ReplicaShare:
    """What one replica adds to a step."""

    def __init__(self, number: int, gradients: list[Any], loss: Any, finite: Any, where: Any) -> None:
        self.number = number
        self.gradients = gradients
        # Tensors, the same for all replicas:
        self.loss = loss  # the sum of all, of which each has a part
        self.finite = finite  # whether all are
        self.where = where  # the number of the one that is not, where it is only one; else -1


class ReplicaRound:
    """The replicas of this process while a strategy runs them in a graph: they share a step."""

    def __init__(self) -> None:
        self.step: TensorFlowStep | None = None
        self.site: UpdateSite | None = None
        self.shares: list[ReplicaShare] = []

    def add(self, step: TensorFlowStep, batch: tuple[str, Any]) -> None:
        """A replica begins."""
        self.step, step.together = step, self
        step.differentiated = False  # as another replica has done, whose threads take turns
        step.values.batches = [*step.values.batches, batch]

    def take(self, replica: Any, gradients: list[Any], conditions: Conditions, allowed: Any) -> None:
        """The part of one replica, in its own thread: the threads run one at a time, and change where they merge."""
        assert self.step is not None
        test = UpdateTest(self.step.values, gradients, Conditions(), None, allowed)
        losses = self.step.values.tested[-1:]
        finite, loss, where = everywhere(replica, test.passes(), losses)
        if conditions.loss_above is not None and losses:
            finite = sys.modules["tensorflow"].logical_and(finite, loss <= conditions.loss_above)
        number = sys.modules["tensorflow"].get_static_value(replica.replica_id_in_sync_group)
        number = len(self.shares) if number is None else int(number)
        self.shares.append(ReplicaShare(number, gradients, loss if losses else None, finite, where))

    def end(self, host: Function) -> None:
        """Behind the run: have what is wrong handled on the host, and put back what the forward passes moved."""
        tensorflow, step = sys.modules["tensorflow"], self.step
        if step is None:
            return
        step.pinned = False
        if not self.shares or self.site is None:
            return
        finite = self.shares[0].finite

        def not_applied() -> Any:
            host()
            return tensorflow.constant(0)

        tensorflow.cond(finite, lambda: tensorflow.constant(0), not_applied)
        step.passes = True
        try:
            for variable, value in step.variables.held.values():
                variable.assign(tensorflow.where(finite, variable.read_value(), value))
            if self.shares[0].loss is not None:  # that of a good step goes behind those before it
                losses = self.site.known.memory.losses
                known = losses.read_value()
                losses.assign(tensorflow.where(finite, tensorflow.concat([known[1:], [self.shares[0].loss]], 0), known))
        finally:
            step.passes = False

    @property
    def gradients(self) -> list[Any]:
        """The sums of this process's replicas' gradients."""
        convert, add = sys.modules["tensorflow"].convert_to_tensor, sys.modules["tensorflow"].add_n
        return [add([convert(one) for one in ones]) for ones in zip(*[share.gradients for share in self.shares])]


def everywhere(replica: Any, good: Any, losses: list[Any]) -> tuple[Any, Any, Any]:
    """Whether it is good on all replicas, the sum of their losses, and the number of the only one that is not good."""
    tensorflow = sys.modules["tensorflow"]
    bad = tensorflow.cast(tensorflow.logical_not(good), tensorflow.float32)
    number = tensorflow.cast(replica.replica_id_in_sync_group, tensorflow.float32)
    loss = tensorflow.add_n(
        [tensorflow.reduce_sum(tensorflow.cast(one, tensorflow.float32)) for one in losses] or [0.0]
    )
    sums = replica.all_reduce(tensorflow.distribute.ReduceOp.SUM, tensorflow.stack([bad, bad * number, loss]))
    return sums[0] < 0.5, sums[2], tensorflow.where(tensorflow.equal(sums[0], 1.0), sums[1], -1.0)


# ---- several processes -----------------------------------------------------------------------------------------------


def worker(strategy: Any) -> tuple[int, int] | None:
    """Return which worker this is, and of how many; None where there is only one."""
    if not private_api.has_workers(strategy):
        return None
    resolver = strategy.cluster_resolver
    workers = resolver.cluster_spec().as_dict()
    count = len(workers.get("worker", ())) + len(workers.get("chief", ()))
    is_after_chief = resolver.task_type == "worker" and "chief" in workers
    return int(resolver.task_id) + (len(workers["chief"]) if is_after_chief else 0), count


def wait_for_workers() -> None:
    """Until all of them have saved: when the first one ends, TensorFlow ends the others."""
    context = private_api.module("context").context()
    try:
        context.wait_at_barrier("reprokit/captured", PATIENCE)
    except Exception as error:  # one of them has ended, or does not come
        pass_on(error)
