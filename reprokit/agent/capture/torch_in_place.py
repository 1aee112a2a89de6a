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
        self._unused = 0  # batches that were fetched, less updates
        self._takes_turns = True  # each update came after one batch: what was fetched last is the step's

    def handlers(self) -> dict[type[events.TrainingEvent], events.Handler]:
        return {
            events.OptimizerMade: self._look,
            events.UpdateDone: self._updated,
            events.ScaledUpdateEnded: self._updated,
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

    def _updated(self, event: events.UpdateDone | events.ScaledUpdateEnded) -> None:
        self._unused -= isinstance(event, events.UpdateDone) or not event.has_updated
        self._takes_turns = self._takes_turns and self._unused == 0
        self._look(event)

    def _batch_fetched(self, event: events.BatchFetched) -> None:
        self._batches.append(event.batch)
        if self._training.torch.is_grad_enabled():
            self._unused += 1
            self._takes_turns = self._takes_turns and self._unused == 1

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
        named = [(f"parameter {name}", one) for name, one in training.snapshooter.names(models).tensors.items()]
        named += [(CALLED_WITH, one) for one in tensors_in(training.torch, self._called)]
        named += [("the batch", one) for one in tensors_in(training.torch, list(self._batches))]
        self._explaining.know(layers, named)

    def _loss_scaled(self, event: events.LossScaled) -> None:
        self._losses += [event.loss] if self._is_watching else []

    def _backward_began(self, event: events.BackwardBegan) -> None:
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
        samples, indices = _samples(header, self._takes_turns)
        cause = self._explaining.cause(targets, samples)
        if cause is None:
            return NOTHING
        rows = cause["samples"]
        if isinstance(rows, list) and rows and len(indices) == samples:
            cause["indices"] = [indices[row] for row in rows]
            if any(batch.get("may_be_sorted") for batch in header.batches):
                self._driver.problem(SORTED)
        return cause


def _samples(header: SnapshotHeader, is_last: bool) -> tuple[int | None, list[int]]:
    """Return how many samples the step had, and their indices, where it had one batch with a row for each.

    ``is_last`` tells whether a loader's last batch is that.
    """
    loaded = [one for one in header.batches if one["from"] == "loader"]
    batches = loaded or list(header.batches)
    if len(batches) != 1 or batches[0].get("sample_axis") != 0:
        return None, []
    return (batches[0]["samples"], batches[0].get("indices") or []) if is_last or not loaded else (None, [])
