"""Captures the step of a PyTorch training whose gradients or loss are not finite, before it is applied.

The gradients are tested when an optimizer is about to apply them. Whatever a step changes before that (buffers, random
states) or lets go of (batches) is held from its first forward pass on; everything else is still what it was.
"""

from __future__ import annotations

from .. import events
from ..pytorch.events import EventHooks
from ..pytorch.state import Modules
from .torch_losses import Losses
from .torch_steps import StepStarts
from .torch_training import Training
from .torch_updates import Updates

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType
    from typing import Any

    from . import CaptureSession


class TorchCapture:
    """What this process captures of PyTorch."""

    def __init__(self, capture: CaptureSession) -> None:
        self._capture = capture
        self._watch: TorchWatch | None = None  # once PyTorch is there
        self._hooks: EventHooks

    def forget(self) -> None:
        """In a forked child: what the parent held is the parent's."""
        if self._watch is not None:
            self._watch.forget()

    def begin(self, name: str, module: ModuleType) -> None:
        """Attach to PyTorch, and to those of its modules that may come later."""
        if name == "torch" and self._watch is None:
            self._hooks = hooks_of(self._capture, module)
            self._watch = TorchWatch(Training(self._capture, module, self._hooks.modules))
            self._hooks.decide(self._watch)
        elif self._watch is not None:
            self._hooks.watch(name, module)

    def guard(self, model: Any, optimizers: Iterable[Any]) -> Guard:
        """Watch these optimizers, and none that was not given; under the launcher all are watched as it is."""
        if self._capture.agent is not None or self._watch is None:
            return Guard(None, [])
        optimizers = list(optimizers)
        self._watch.take(model, optimizers)
        for optimizer in optimizers:
            self._hooks.attach(optimizer)
        return Guard(self._watch, optimizers)


def hooks_of(capture: CaptureSession, torch: Any) -> EventHooks:
    """Return the hooks of a run that is recorded too, else some of the capture's own."""
    hooks = None if capture.agent is None else capture.agent.pytorch
    return hooks or EventHooks(capture.attempt, events.Events(), torch, Modules())


class TorchWatch:
    """Listens to the training, by parts that know one thing of a step each."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._watched = training.watched
        self._starts = StepStarts(training)
        self._losses = Losses(training)
        self._updates = Updates(training, self._starts, self._losses)

    def handlers(self) -> dict[type[events.TrainingEvent], events.Handler]:
        """What to call at which event."""
        watched, starts, losses, updates = self._watched, self._starts, self._losses, self._updates
        outputs: dict[type[events.TrainingEvent], events.Handler] = {events.OutputComputed: losses.output_computed}
        return {
            events.LoaderBegan: starts.loader_began,
            events.BatchFetched: starts.batch_fetched,
            events.LoaderExhausted: starts.loader_exhausted,
            events.ForwardBegan: self._forward_began,
            events.ForwardEnded: updates.compiled_ended,
            events.BackwardBegan: losses.backward_began,
            events.BackwardEnded: losses.backward_ended,
            events.ClippingDue: losses.clipping_due,
            events.GradientsClipped: losses.gradients_clipped,
            events.LossScaled: losses.loss_scaled,
            events.ScaledUpdateEnded: losses.scaled_update_ended,
            events.ScalerMade: lambda event: watched.note(watched.scalers, event.scaler),
            events.ScheduleMade: lambda event: watched.note(watched.schedules, event.schedule),
            events.OptimizerMade: updates.optimizer_made,
            events.PartDue: updates.part_due,
            events.PartDone: updates.part_done,
            events.UpdateDue: updates.update_due,
            events.UpdateDone: updates.update_done,
            events.UpdateEnded: updates.update_ended,
            **(outputs if self._training.capture.settings.conditions.activations else {}),
        }

    def failed(self, error: Exception, handler: events.Handler) -> None:
        """The training goes on, and so do the captures."""
        self._training.capture.failed(handler, error)

    def forget(self) -> None:
        """In a forked child: drop what the parent held."""
        self._training.forget()

    def _forward_began(self, event: events.ForwardBegan) -> None:
        (self._updates.compiled_began if event.is_compiled else self._starts.forward_began)(event)

    def take(self, model: Any, optimizers: list[Any]) -> None:
        """Watch these optimizers, and none that was not given."""
        self._watched.only = (self._watched.only or set()) | set(map(id, optimizers))
        self._training.modules.registered(model, "", None)
        for optimizer in optimizers:
            self._updates.watch(optimizer)

    def release(self, optimizers: Iterable[Any]) -> None:
        """Watch these no longer."""
        for optimizer in optimizers:
            if self._watched.only is not None:
                self._watched.only.discard(id(optimizer))
            self._watched.records.pop(id(optimizer), None)
        if not self._watched.records:
            held = self._training.threads.held
            held.end(None)
            held.armed = False


class Guard:
    """Watches a script's own optimizers until it is closed; also as a context."""

    def __init__(self, watch: TorchWatch | None, optimizers: list[Any]) -> None:
        self._watch = watch
        self._optimizers = optimizers

    def close(self) -> None:
        """Watch no longer."""
        if self._watch is not None:
            self._watch.release(self._optimizers)

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
