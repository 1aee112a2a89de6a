"""Steps that several replicas take together under a strategy of TensorFlow's, within a graph.

All replicas learn by one number, which is summed over them, whether the step may be applied. An update that merges them
cannot be the branch of a condition, so behind the strategy's run each variable gets back what it had where it may not;
there also stands the call on the host, as there the shares of all replicas of this process are known.
"""

from __future__ import annotations

import sys

from ..tensorflow import private_api
from .settings import Conditions
from .tensorflow_checks import UpdateTest
from .tensorflow_graph import select_back

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .tensorflow_steps import TensorFlowStep

    Function = Callable[..., Any]

OF_THE_FIRST = "of what each replica has for itself, as BatchNormalization's statistics, the first one's is kept"
PATIENCE = 60_000  # milliseconds for which the other workers are waited for, before this process ends


def replica() -> Any:
    """The context of the replica that is being built, where there are several; else None."""
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
        self.site: Any = None
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
        if not self.shares:
            return
        finite = self.shares[0].finite

        def not_applied() -> Any:
            host()
            return tensorflow.constant(0)

        tensorflow.cond(finite, lambda: tensorflow.constant(0), not_applied)
        step.passes = True
        try:
            select_back(finite, list(step.variables.held.values()))
            if self.shares[0].loss is not None:
                self._remember(self.site.known.memory.losses)
        finally:
            step.passes = False

    def _remember(self, losses: Any) -> None:
        """Put the loss of a good step behind those before it."""
        tensorflow, known, share = sys.modules["tensorflow"], losses.read_value(), self.shares[0]
        losses.assign(tensorflow.where(share.finite, tensorflow.concat([known[1:], [share.loss]], 0), known))

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
    """Which worker this is, and of how many; None where there is only one."""
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
    except Exception:  # one of them has ended, or does not come
        pass
