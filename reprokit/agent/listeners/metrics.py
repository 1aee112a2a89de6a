"""Records of every training by steps: losses, epochs, and the final weights of models and optimizers.

A listener, independent of frameworks: a TensorReader reads their tensors.
"""

from __future__ import annotations

import itertools
import math
import weakref
from _thread import _local

from ..core.agent import on_thread
from ..core.digests import weights_line
from ..core.exact_values import from_float, from_number
from ..events.steps import (
    EpochEnded,
    LoaderBegan,
    LoaderExhausted,
    LossComputed,
    ModelEnded,
    OptimizerEnded,
    ResultsReported,
    UpdateDue,
    tell,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Protocol

    from ..core.agent import Agent
    from ..core.digests import Tensor
    from ..events.steps import Events, Handler, TrainingEvent

    class TensorReader(Protocol):
        """Reads a framework's tensors for the metrics."""

        def number(self, tensor: Any) -> tuple[str, Any] | None:
            """Return dtype and value of a tensor of one element; None if it has more."""

        def later(self, tensor: Any) -> Any:
            """Return a copy, to be read later, of a tensor on a device; None if it is elsewhere or cannot be copied."""

        def entry(self, name: str, tensor: Any) -> Tensor:
            """Return name, dtype, shape and digest of a tensor."""

    class RecordedObject(Protocol):
        """The record of a model or optimizer, as the metrics need it."""

        name: str
        kind: str
        thread: str

        @property
        def has_buffers(self) -> bool:
            """Whether it has tensors that a forward pass changes."""

        def tensors(self) -> list[Tensor]:
            """Return names, dtypes, shapes and digests of its tensors."""

    class RecordRegistry(Protocol):
        """The models and optimizers that have not ended."""

        def current(self, thread: str) -> Iterator[Any]:
            """Return the records of a thread that take part in its training, with their current tensors."""


_UPDATE_DUE = frozenset([UpdateDue])
MAX_PENDING = 64  # losses on a device that wait to be read together
MAX_LOSSES = 1 << 20  # of an epoch that a keyframe holds


class EpochState:
    """The state of the current epoch of a data loader."""

    def __init__(self, name: str, place: tuple[str, int]) -> None:
        self.name = name
        self.place = place  # file and line of its first iteration
        self.thread = on_thread("")
        self.number = 0
        self.steps = 0
        self.exhausted = False
        self.losses: list[float] = []
        self.last: tuple[str, Any] | None = None  # dtype and value

    def values(self) -> dict[str, object]:
        """Return the last loss and the mean, which is correctly rounded whatever the order of losses."""
        if self.last is None:
            return {}
        finite = all(map(math.isfinite, self.losses))
        mean = math.fsum(self.losses) / len(self.losses) if finite else sum(self.losses)
        return {"loss": from_number(*self.last), "mean_loss": from_float("float64", mean)}

    def next(self) -> None:
        self.number += 1
        self.steps = 0
        self.exhausted = False
        self.losses = []
        self.last = None


class ThreadMetrics(_local):
    """The state of each thread."""

    def __init__(self) -> None:
        self.losses = on_thread("loss")  # the name of its losses


class Metrics:
    """Records losses, epochs and weights."""

    def __init__(self, agent: Agent, events: Events, records: RecordRegistry | None, tensors: TensorReader) -> None:
        self._agent, self._events, self._records, self._tensors = agent, events, records, tensors
        agent.shared[Metrics] = self
        self.forget()

    def forget(self) -> None:
        """In a forked child: drop the state of the parent."""
        self._thread = ThreadMetrics()
        self._loss_numbers: dict[str, Iterator[int]] = {}
        self._loss_writers: dict[tuple[str, str], Any] = {}  # by dtype too: compiled code, where there is any
        self._loaders: weakref.WeakKeyDictionary[Any, EpochState] = weakref.WeakKeyDictionary()
        self._epochs: list[EpochState] = []
        self._pending: list[tuple[str, int, Any, EpochState | None]] = []
        # Those whose loaders have no further batch, but perhaps further steps: only they need to hear of updates.
        self._exhausted: set[EpochState] = set()
        self._hear_updates()

    def _hear_updates(self) -> None:
        self._events.mute(self, frozenset() if self._exhausted else _UPDATE_DUE)

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        loader_handlers: dict[type[TrainingEvent], Handler] = {
            LoaderBegan: self._loader_began,
            LoaderExhausted: self._loader_exhausted,
            UpdateDue: self._update_due,
        }
        return {
            **({} if self._records is None else loader_handlers),  # otherwise the framework reports its epochs itself
            LossComputed: self._loss_computed,
            EpochEnded: self._epoch_ended,
            ResultsReported: self._results_reported,
            OptimizerEnded: self._optimizer_ended,
            ModelEnded: self._model_ended,
        }

    # Losses

    def _loss_computed(self, event: LossComputed) -> None:
        name, loss, number, began = self._thread.losses, event.loss, event.number, event.began
        epoch: EpochState | None = None if began is None else began.notes.get(self)
        numbers = self._loss_numbers.get(name)
        if numbers is None:
            numbers = self._loss_numbers[name] = itertools.count()
        step = next(numbers)
        if number is not None and type(number[1]) is float:
            dtype, value = number
            write = self._loss_writers.get((name, dtype))
            if write is None or not write(step, value):
                self._agent.journal.write_loss(name, step, dtype, value)
                self._loss_writers[name, dtype] = self._agent.journal.loss_writer(name, dtype)
            if epoch is not None:
                epoch.losses.append(number[1])
                epoch.last = number
            return
        if event.is_here:
            self._write_loss(name, step, loss, epoch, number)
            return
        copy = self._tensors.later(loss)
        if copy is not None:
            self._pending.append((name, step, copy, epoch))
            if len(self._pending) >= MAX_PENDING:
                self._flush()

    def _write_loss(self, name: str, step: int, loss: Any, epoch: EpochState | None, number: Any = None) -> None:
        number = number or self._tensors.number(loss)
        if number is None:
            value = {"dtype": "str", "text": self._tensors.entry("", loss)[3]}
            self._agent.journal.write_value("log", name, step, None, value)
            return
        dtype, value = number
        self._agent.journal.write_loss(name, step, dtype, value)
        if epoch is not None and type(value) is not complex:
            epoch.losses.append(float(value))
            epoch.last = number

    def _flush(self) -> None:
        """Read and write the pending losses on devices."""
        pending, self._pending = self._pending, []
        for name, step, loss, epoch in pending:
            self._agent.attempt(self._write_loss, name, step, loss, epoch)

    def losses(self) -> dict[str, list[str]]:
        """Return the losses of unfinished epochs: by loader the last one's dtype, and float64s as hexadecimal."""
        from array import array

        self._flush()
        return {
            epoch.name: [epoch.last[0], array("d", epoch.losses).tobytes().hex()]
            for epoch in self._epochs
            if epoch.last is not None and len(epoch.losses) <= MAX_LOSSES
        }

    def put_back_losses(self, losses: dict[str, list[str]]) -> None:
        """Replace the losses of epochs by those of the same loaders in another run."""
        from array import array

        self._flush()
        for epoch in self._epochs:
            if epoch.name in losses:
                dtype, values = losses[epoch.name]
                epoch.losses = list(array("d", bytes.fromhex(values)))
                epoch.last = dtype, epoch.losses[-1]

    # Epochs

    def _loader_began(self, event: LoaderBegan) -> None:
        loader = event.loader
        epoch = self._loaders.get(loader)
        if epoch is None:
            epoch = self._loaders[loader] = self._continued_epoch(event.place) or self._new_epoch(event)
        self._end_epoch(epoch)
        for former in self._epochs_of_deleted_loaders():
            if former.exhausted:  # no further iteration will end it
                self._end_epoch(former)
        event.notes[self] = epoch
        event.counters.append(epoch)

    def _loader_exhausted(self, event: LoaderExhausted) -> None:
        epoch: Any = None if event.began is None else event.began.notes.get(self)
        if epoch is not None:
            epoch.exhausted = True  # not ended: a loop that fetches ahead has batches left
            self._exhausted.add(epoch)
            self._hear_updates()

    def epoch_of(self, event: LoaderBegan) -> EpochState | None:
        """Return name and number of the epoch that an iteration of a loader is."""
        return event.notes.get(self)

    def _update_due(self, event: UpdateDue) -> None:
        """End the epoch of the last update if its loader was exhausted, and this update is of another one."""
        epoch: Any = None if event.began is None else event.began.notes.get(self)
        last: Any = None if event.previous is None else event.previous.notes.get(self)
        if last is not None and last is not epoch and last.exhausted:
            self._end_epoch(last, late=True)
        # An evaluation's loader gets no update, or is exhausted once more before one.
        thread = on_thread("")
        unused = [other for other in self._exhausted if not other.steps and other is not epoch]
        self._exhausted.difference_update([other for other in unused if other.thread == thread])
        self._hear_updates()

    def _epochs_of_deleted_loaders(self) -> list[EpochState]:
        """Return the epochs of this thread whose loaders no longer exist."""
        alive, thread = set(map(id, self._loaders.values())), on_thread("")
        return [epoch for epoch in self._epochs if id(epoch) not in alive and epoch.thread == thread]

    def _continued_epoch(self, place: tuple[str, int]) -> EpochState | None:
        """Return the epoch state of a deleted loader iterated at the same place, which the new loader continues."""
        return next((epoch for epoch in self._epochs_of_deleted_loaders() if epoch.place == place), None)

    def _new_epoch(self, event: LoaderBegan) -> EpochState:
        epoch = EpochState(self._agent.name("loader"), event.place)
        self._epochs.append(epoch)
        self._agent.computed(epoch.name, "loader", {"workers": event.workers})
        return epoch

    def _end_epoch(self, epoch: EpochState, late: bool = False) -> None:
        """Report the end of an epoch; late: another loader's first step has already computed its gradients."""
        if not epoch.steps:
            return
        self._flush()
        # Other threads' models are in mid-training; if late, a forward pass has already changed buffers.
        current = self._records.current(on_thread("")) if self._records else ()
        records = [record for record in current if not (late and record.has_buffers)]
        tell(self._events.epoch_ended, EpochEnded(epoch.name, epoch.number, epoch.steps, epoch.values(), records))
        epoch.next()
        if epoch in self._exhausted:
            self._exhausted.discard(epoch)
            self._hear_updates()

    def _epoch_ended(self, event: EpochEnded) -> None:
        line = {"name": event.name, "epoch": event.number, "values": event.values, "steps": event.steps}
        self._agent.journal.write("epoch", line)
        for record in event.records:
            self._agent.attempt(self._write_weights, record, "epoch", event.number)

    def _end_epochs(self, end_all: bool = False) -> None:
        self._flush()
        thread = on_thread("")  # other threads end their own epochs
        for epoch in list(self._epochs):
            if end_all or (epoch.exhausted and epoch.thread == thread):
                self._agent.attempt(self._end_epoch, epoch)

    def _results_reported(self, event: ResultsReported) -> None:
        self._agent.journal.write(event.kind, {"name": event.name, "values": event.values})

    # The end

    def _write_weights(self, record: RecordedObject, at: str, epoch: int | None) -> None:
        line = weights_line(at, epoch, record.name, record.kind, record.tensors(), full=at == "end")
        self._agent.journal.write("weights", line)

    def _model_ended(self, event: ModelEnded) -> None:
        self._end_epochs()
        self._write_weights(event.model, "end", None)

    def _optimizer_ended(self, event: OptimizerEnded) -> None:
        record = event.optimizer
        self._end_epochs()
        self._agent.attempt(self._write_weights, record, "end", None)
        line = {"object": record.name, "class": record.kind, "steps": record.steps}
        self._agent.journal.write("optimizer", line)

    def finish(self) -> None:
        """End all epochs, at the end of the process."""
        self._agent.attempt(self._end_epochs, True)
