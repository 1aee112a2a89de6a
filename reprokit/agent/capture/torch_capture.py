"""Captures the step of a PyTorch training whose gradients or loss are not finite, before it is applied.

The gradients are tested when an optimizer is about to apply them. Whatever a step changes before that (buffers, random
states) or lets go of (batches) is held from its first forward pass on; everything else is still what it was.
"""

from __future__ import annotations

from ..events import (
    BackwardBegan,
    BackwardEnded,
    BatchFetched,
    ClippingDue,
    Events,
    ForwardBegan,
    ForwardEnded,
    GradientsClipped,
    LoaderBegan,
    LoaderExhausted,
    LossScaled,
    OptimizerMade,
    OutputComputed,
    PartDone,
    PartDue,
    ScaledUpdateEnded,
    ScalerMade,
    ScheduleMade,
    UpdateDone,
    UpdateDue,
    UpdateEnded,
)
from ..pytorch.events import EventHooks
from ..pytorch.state import Modules
from .torch_alarms import Alarms
from .torch_beginnings import Beginnings
from .torch_checks import StepChecks
from .torch_losses import Clipping, Losses, Scaling
from .torch_steps import Compiling, Refusals, StepEnds, Steps
from .torch_training import Training

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType
    from typing import Any

    from ..events import Handler, TrainingEvent
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
    return hooks or EventHooks(capture.attempt, Events(), torch, Modules())


class TorchWatch:
    """Listens to the training, by parts that know one thing of a step each."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._watched = training.watched
        self._checks = StepChecks(training)
        alarms = Alarms(training)
        self._beginnings = Beginnings(training, alarms)
        self._ends = StepEnds(training, alarms)
        refusals = Refusals(training, self._checks, alarms)
        self._steps = Steps(training, refusals, self._ends)
        self._losses = Losses(training, self._checks, alarms)
        self._clipping = Clipping(training, self._checks, alarms)
        self._scaling = Scaling(training, self._checks, alarms, self._ends)
        self._compiling = Compiling(training, alarms, self._beginnings, self._losses, refusals, self._ends)

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        watched, beginnings, losses, steps = self._watched, self._beginnings, self._losses, self._steps
        outputs: dict[type[TrainingEvent], Handler] = {OutputComputed: self._checks.output_computed}
        return {
            LoaderBegan: beginnings.loader_began,
            BatchFetched: beginnings.batch_fetched,
            LoaderExhausted: beginnings.loader_exhausted,
            ForwardBegan: self._forward_began,
            ForwardEnded: self._compiling.forward_ended,
            BackwardBegan: losses.backward_began,
            BackwardEnded: losses.backward_ended,
            ClippingDue: self._clipping.clipping_due,
            GradientsClipped: self._clipping.gradients_clipped,
            LossScaled: self._scaling.loss_scaled,
            ScaledUpdateEnded: self._scaling.scaled_update_ended,
            ScalerMade: lambda event: watched.note(watched.scalers, event.scaler),
            ScheduleMade: lambda event: watched.note(watched.schedules, event.schedule),
            OptimizerMade: steps.optimizer_made,
            PartDue: steps.part_due,
            PartDone: steps.part_done,
            UpdateDue: steps.update_due,
            UpdateDone: steps.update_done,
            UpdateEnded: steps.update_ended,
            **(outputs if self._training.settings.conditions.activations else {}),
        }

    def failed(self, error: Exception, handler: Handler) -> None:
        """The training goes on, and so do the captures."""
        self._training.capture.failed(handler, error)

    def forget(self) -> None:
        """In a forked child: drop what the parent held."""
        self._training.forget()
        self._beginnings.forget()

    def _forward_began(self, event: ForwardBegan) -> None:
        (self._compiling if event.is_compiled else self._beginnings).forward_began(event)

    def take(self, model: Any, optimizers: list[Any]) -> None:
        """Watch these optimizers, and none that was not given."""
        self._watched.only = (self._watched.only or set()) | set(map(id, optimizers))
        self._training.modules.registered(model, "", None)
        for optimizer in optimizers:
            self._steps.watch(optimizer)

    def release(self, optimizers: Iterable[Any]) -> None:
        """Watch these no longer."""
        for optimizer in optimizers:
            if self._watched.only is not None:
                self._watched.only.discard(id(optimizer))
            self._watched.records.pop(id(optimizer), None)
        if not self._watched.records:
            held = self._training.threads.held
            held.armed = False
            held.end(None)


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
