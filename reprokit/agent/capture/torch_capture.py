"""Captures the step of a PyTorch training whose gradients or loss are not finite, before it is applied.

Gradients are tested when an optimizer is about to apply them. What a step changes (buffers, random states) or releases
(batches) before that is saved from its first forward pass on; everything else is unchanged at that moment.
"""

from __future__ import annotations

from ..events import steps as events
from ..pytorch import private_api
from ..pytorch.events import EventHooks, recording_hooks
from ..pytorch.state import Modules
from . import CaptureSession
from .torch_checks import CaptureContext
from .torch_updates import UpdateChecks
from .torch_usual import UsualStepListener

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from .torch_explain import InPlaceExplanation


class TorchCapture:
    """Captures PyTorch's steps: passes training events to the parts below. A context manager, active until closed."""

    def __init__(self, capture: CaptureSession) -> None:
        self._capture = capture
        self._hooks: EventHooks | None = None  # set when PyTorch is imported, like all that follows
        self._training: CaptureContext
        self._updates: UpdateChecks
        self._usual: UsualStepListener
        self._in_place: InPlaceExplanation | None = None

    def begin(self, name: str, module: ModuleType) -> None:
        """Attach to PyTorch, or to a module of it that is imported later."""
        if self._hooks is not None:
            self._hooks.watch(name, module)
        elif name == "torch":
            hooks = hooks_of(self._capture, module)
            self._training = CaptureContext(self._capture, module, hooks.modules)
            self._updates = UpdateChecks(self._training)
            self._usual = UsualStepListener(self._training, self._updates)
            hooks.decide(self)
            self._hooks = hooks
            if self._capture.settings.redo is not None:
                self._capture.attempt(self._start_explanation, hooks.events)

    def _start_explanation(self, training_events: events.Events) -> None:
        """Explain a step that was captured in the recording of this replay."""
        from .torch_explain import InPlaceExplanation

        self._in_place = in_place = InPlaceExplanation(self._training)
        self._training.header_listeners.append(in_place.conclude)
        training_events.add(in_place)

    def guard(self, model: Any, optimizers: list[Any]) -> TorchCapture:
        """Watch only these optimizers, for a script that uses the capture API itself."""
        assert self._hooks is not None
        self._training.watched.only = set(map(id, optimizers))
        self._training.modules.registered(model, "", None)
        for optimizer in optimizers:
            self._updates.watch(optimizer)
            self._hooks.attach(optimizer)
        return self

    def close(self) -> None:
        """Stop watching, and release all state."""
        assert self._hooks is not None
        self._hooks.events.remove(self)
        self._training.watched.records.clear()
        self._training.forget()

    def __enter__(self) -> TorchCapture:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def handlers(self) -> dict[type[events.TrainingEvent], events.Handler]:
        """Return the handler of each training event."""
        watched, updates, usual = self._training.watched, self._updates, self._usual
        starts, losses = updates.starts, updates.losses
        outputs: dict[type[events.TrainingEvent], events.Handler] = {events.OutputComputed: losses.output_computed}
        return {
            events.LoaderBegan: starts.loader_began,
            events.BatchFetched: usual.batch_fetched,
            events.LoaderExhausted: starts.loader_exhausted,
            events.ForwardBegan: usual.forward_began,
            events.ForwardEnded: updates.compiled_ended,
            events.BackwardBegan: usual.backward_began,
            events.BackwardEnded: usual.backward_ended,
            events.ClippingDue: losses.clipping_due,
            events.GradientsClipped: losses.gradients_clipped,
            events.LossScaled: losses.loss_scaled,
            events.ScaledUpdateEnded: losses.scaled_update_ended,
            events.ScalerMade: lambda event: watched.register(watched.scalers, event.scaler),
            events.ScheduleMade: lambda event: watched.register(watched.schedules, event.schedule),
            events.OptimizerMade: updates.optimizer_made,
            events.PartDue: updates.part_due,
            events.PartDone: updates.part_done,
            events.UpdateDue: usual.update_due,
            events.UpdateDone: usual.update_done,
            events.UpdateEnded: updates.update_ended,
            **(outputs if self._capture.settings.conditions.activations else {}),
        }

    def forget(self) -> None:
        """Drop the parent's state, in a forked child."""
        if self._hooks is not None:
            self._training.forget()
        if self._in_place is not None:
            self._in_place.forget()


def hooks_of(capture: CaptureSession, torch: Any) -> EventHooks:
    """Return the hooks of a run that is recorded too, else some of the capture's own."""
    hooks = None if capture.agent is None else recording_hooks(capture.agent)
    if hooks is not None:
        return hooks
    compiled = capture.attempt(private_api.compiled, torch, capture.settings.library)
    return EventHooks(capture, events.Events(capture.failed), torch, Modules(), compiled=compiled)
