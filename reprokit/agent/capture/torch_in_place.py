"""Explains a captured step of PyTorch where a replay of its recording makes it again, in the script's own computation.

The capture watches as it did in the recording. From the update before the captured step on operators are watched too;
what the capture then finds is compared with the snapshot, bit by bit, and explained.
"""

from __future__ import annotations

from collections import deque

from .. import events
from ..observing.torch_inputs import tensors as tensors_in
from ..pytorch.tensors import is_finite
from .causes import CALLED_WITH
from .header import PARAMETER
from .redo import RedoDriver, StepOutcome
from .settings import LOSS_ABOVE
from .torch_explain import Explaining
from .torch_trials import SORTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .header import SnapshotHeader
    from .torch_capture import Training

AHEAD = 8  # batches that a script may have fetched before the step that it uses them in
LAST = "indices in the data set are told as if the step worked on what its loader gave last, in that order"
NOTHING = {"words": "no operator turned finite values into others", "phase": None, "operation": None}


class InPlaceExplanation:
    """Watches the operators of one step, from the update before it to what the capture finds."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._driver = driver = RedoDriver(training.capture)
        wanted = driver.header
        self._step, self._optimizer = wanted.step, "".join(wanted.trigger.optimizers[:1])
        self._explaining = Explaining(training.torch)
        self._is_watching = False
        self._batches: deque[Any] = deque(maxlen=AHEAD)
        self._called: Any = ()
        self._losses: list[Any] = []
        self._unused = 0  # batches that were fetched, less backward passes
        self._takes_turns = True  # each backward pass came after one batch: it is of what was fetched last
        self._rows = 0  # of the batches of the step

    def handlers(self) -> dict[type[events.TrainingEvent], events.Handler]:
        return {
            events.OptimizerMade: self._look,
            events.UpdateDone: self._look,
            events.ScaledUpdateEnded: self._look,
            events.BatchFetched: self._batch_fetched,
            events.ForwardBegan: self._forward_began,
            events.LossScaled: self._loss_scaled,
            events.BackwardBegan: self._backward_began,
        }

    def failed(self, error: Exception, handler: events.Handler) -> None:
        self._training.capture.failed(handler, error)

    def forget(self) -> None:
        """In a forked child: its operators are not the step's."""
        self._explaining.end()
        self._is_watching = self._driver.is_done = False
        self._step = -1

    def _look(self, _event: events.TrainingEvent) -> None:
        """Watch from here on, once the optimizer has made the updates before the step."""
        self._driver.require_end()
        if not self._is_watching:
            alive = self._training.watched.alive()
            named = dict(zip(self._training.watched.names(alive), alive))
            record = named.get(self._optimizer)
            if record is not None and record.steps == self._step:
                self._is_watching = True
                self._explaining.begin()

    def _batch_fetched(self, event: events.BatchFetched) -> None:
        self._batches.append(event.batch)
        if self._training.torch.is_grad_enabled():
            self._unused += 1
            self._takes_turns = self._takes_turns and self._unused == 1
            count = len(event.indices) if self._is_watching and hasattr(event.indices, "__len__") else 0
            is_known = self._takes_turns and count > 0
            self._explaining.batch = range(self._rows, self._rows + count) if is_known else None
            self._rows += count

    def _forward_began(self, event: events.ForwardBegan) -> None:
        self._look(event)
        if self._is_watching:
            self._called = [event.arguments, dict(event.keywords)]
            self._know()

    def _know(self) -> None:
        """Tell the names of modules and tensors that no operator of the step makes."""
        training, models = self._training, self._training.models()
        layers: dict[int, str] = {}
        for model in models:
            for name, module in model.named_modules():
                layers.setdefault(id(module), name)
        named = [(f"parameter {name}", one) for name, one in training.names().tensors.items()]
        named += [(CALLED_WITH, one) for one in tensors_in(training.torch, self._called)]
        named += [("the batch", one) for one in tensors_in(training.torch, list(self._batches))]
        self._explaining.know(layers, named)

    def _loss_scaled(self, event: events.LossScaled) -> None:
        self._losses += [event.loss] if self._is_watching else []

    def _backward_began(self, event: events.BackwardBegan) -> None:
        self._unused -= 1
        self._takes_turns = self._takes_turns and self._unused == 0
        if self._is_watching:
            tensors = event.tensors
            self._losses += [tensors] if hasattr(tensors, "data_ptr") else list(tensors)

    def conclude(self, header: SnapshotHeader) -> None:
        """Where this is the captured step, explain it, and end the process."""
        if not self._is_watching or header.step != self._step:
            return
        self._explaining.end()
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
        self._driver.came((), 0, outcome, explain=lambda: self._cause(header))

    def _cause(self, header: SnapshotHeader) -> dict[str, Any]:
        parameters, found = self._training.parameters(), [header.trigger, *header.also]
        if header.trigger.kind == PARAMETER:  # which were put back since
            targets = [parameters[one.name] for one in found if one.kind == PARAMETER and one.name in parameters]
        else:
            losses = [one for one in self._losses if not is_finite(one)]
            targets = losses or [parameters[name].grad for name in header.gradients]
        loaded = [one for one in header.batches if one["from"] == "loader"]
        cause = self._explaining.cause(targets, None if loaded else _samples(header))
        if cause is None:
            return NOTHING
        rows, indices = cause["samples"], [index for batch in loaded for index in batch.get("indices") or []]
        if isinstance(rows, list) and rows and self._takes_turns and len(indices) == self._rows:
            cause["indices"] = [indices[row] for row in rows]
            if len(loaded) < len(header.batches):
                self._driver.problem(LAST)
            if any(batch.get("may_be_sorted") for batch in loaded):
                self._driver.problem(SORTED)
        return cause


def _samples(header: SnapshotHeader) -> int | None:
    """Return how many samples a model was called with, where it was called once."""
    is_known = len(header.batches) == 1 and header.batches[0].get("sample_axis") == 0
    return header.batches[0]["samples"] if is_known else None
