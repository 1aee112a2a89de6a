"""Explains the captured step of a PyTorch training within a replay of the recording.

There the capture works as it did in the recording; its result is compared with the snapshot, bit by bit, and explained.
"""

from __future__ import annotations

from collections import deque

from ..events import steps as events
from ..operators.explain import CALLED_WITH
from ..operators.pytorch.explain import OperatorExplainer
from ..pytorch.tensors import is_finite, tensors_in
from .header import PARAMETER, SnapshotHeader
from .redo import SORTED, RedoDriver, StepOutcome
from .settings import LOSS_ABOVE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class ExplainedTraining(Protocol):
        """The training whose captures are compared with the snapshot."""

        capture: Any
        torch: Any
        watched: Any

        def names(self) -> Any:
            """Return the names of parameters and modules."""

        def parameters(self) -> dict[str, Any]:
            """Return the parameters by name."""


AHEAD = 8  # batches that a script may fetch ahead of the step that uses them
LAST = "indices in the data set are told as if the step worked on what its loader gave last, in that order"


class InPlaceExplanation:
    """Explains the captured step within a replay: watches its operators from the update before it to the capture."""

    def __init__(self, training: ExplainedTraining) -> None:
        self._training = training
        self._driver = driver = RedoDriver(training.capture)
        header = driver.header
        self._step, self._optimizer = header.step, "".join(header.trigger.optimizers[:1])
        self._explainer = OperatorExplainer(training.torch)
        self._is_watching = False
        self._batches: deque[Any] = deque(maxlen=AHEAD)
        self._losses: list[Any] = []
        self._unused = 0  # number of fetched batches minus that of backward passes
        self._takes_turns = True  # one batch precedes each backward pass, which therefore is of that batch
        self._rows = 0  # number of samples of the step's batches so far

    def handlers(self) -> dict[type[events.TrainingEvent], events.Handler]:
        return {
            events.OptimizerMade: self._begin_if_due,
            events.UpdateDone: self._begin_if_due,
            events.ScaledUpdateEnded: self._begin_if_due,
            events.BatchFetched: self._batch_fetched,
            events.ForwardBegan: self._forward_began,
            events.LossScaled: self._loss_scaled,
            events.BackwardBegan: self._backward_began,
        }

    def forget(self) -> None:
        """Stop watching, in a forked child: its operators are not the step's."""
        self._explainer.end()
        self._is_watching = self._driver.is_done = False
        self._step = -1

    def _begin_if_due(self, _event: events.TrainingEvent) -> None:
        """Watch from here on, once the optimizer has made the updates before the step."""
        self._driver.require_end()
        if not self._is_watching:
            alive = self._training.watched.alive()
            named = dict(zip(self._training.watched.names(alive), alive))
            record = named.get(self._optimizer)
            if record is not None and record.steps == self._step:
                self._is_watching = True
                self._explainer.begin()

    def _batch_fetched(self, event: events.BatchFetched) -> None:
        self._batches.append(event.batch)
        if self._training.torch.is_grad_enabled():
            self._unused += 1
            self._takes_turns = self._takes_turns and self._unused == 1
            count = len(event.indices) if self._is_watching and hasattr(event.indices, "__len__") else 0
            is_known = self._takes_turns and count > 0
            samples = range(self._rows, self._rows + count)
            self._explainer.begin_samples(samples if is_known else None)
            if is_known:
                self._explainer.note_collated(event.batch, samples)
            self._rows += count

    def _forward_began(self, event: events.ForwardBegan) -> None:
        self._begin_if_due(event)
        if self._is_watching:
            inputs = [(CALLED_WITH, tensor) for tensor in tensors_in([event.arguments, dict(event.keywords)])]
            batches = [("the batch", tensor) for tensor in tensors_in(list(self._batches))]
            self._explainer.set_names(self._training.names(), inputs + batches)

    def _loss_scaled(self, event: events.LossScaled) -> None:
        self._losses += [event.loss] if self._is_watching else []

    def _backward_began(self, event: events.BackwardBegan) -> None:
        self._unused -= 1
        self._takes_turns = self._takes_turns and self._unused == 0
        if self._is_watching:
            tensors = event.tensors
            self._losses += [tensors] if hasattr(tensors, "data_ptr") else list(tensors)

    def conclude(self, header: SnapshotHeader) -> None:
        """Explain the step if it is the captured one, and end the process."""
        if not self._is_watching or header.step != self._step:
            return
        self._explainer.end()
        self._is_watching = False
        loss, value = header.loss or {}, header.trigger.value
        number = None if loss.get("value") is None else float.fromhex(loss["value"])
        outcome = StepOutcome(
            [header.trigger, *header.also],
            header.gradient_digests,
            (number, loss.get("digest", "")),
            norm=value,
            worst_loss=value if header.trigger.condition == LOSS_ABOVE else None,
        )
        self._driver.conclude_trial((), 0, outcome, explain=lambda: self._cause(header))

    def _cause(self, header: SnapshotHeader) -> dict[str, Any]:
        parameters, triggers = self._training.parameters(), [header.trigger, *header.also]
        if header.trigger.kind == PARAMETER:  # parameters were restored since
            targets = [parameters[item.name] for item in triggers if item.kind == PARAMETER and item.name in parameters]
        else:
            losses = [item for item in self._losses if not is_finite(item)]
            targets = losses or [parameters[name].grad for name in header.gradients]
        loaded = [item for item in header.batches if item["from"] == "loader"]
        indices = [index for batch in loaded for index in batch.get("indices") or []]
        is_known = self._takes_turns and len(indices) == self._rows
        cause = self._explainer.cause(targets, None if loaded else _samples(header), indices if is_known else [])
        for problem in self._explainer.problems():
            self._driver.problem(problem)
        if "indices" in cause:
            if len(loaded) < len(header.batches):
                self._driver.problem(LAST)
            if any(batch.get("may_be_sorted") for batch in loaded):
                self._driver.problem(SORTED)
        return cause


def _samples(header: SnapshotHeader) -> int | None:
    """Return the number of samples in the single call of a model; None if unknown."""
    is_known = len(header.batches) == 1 and header.batches[0].get("sample_axis") == 0
    return header.batches[0]["samples"] if is_known else None
