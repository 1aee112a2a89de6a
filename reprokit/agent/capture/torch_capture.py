"""Captures the step of a PyTorch training whose gradients or loss are not finite, before it is applied.

Gradients are tested when an optimizer is about to apply them. What a step changes (buffers, random states) or releases
(batches) before that is saved from its first forward pass on; everything else is unchanged at that moment.
"""

from __future__ import annotations

import functools
import sys
import weakref

from ..events import steps as events
from ..pytorch import private_api
from ..pytorch.events import EventHooks
from ..pytorch.state import Modules
from . import CaptureSession, checks
from .checks import NormMean
from .header import GRADIENT, Trigger
from .random_states import RandomStates
from .torch_checks import FiniteTests, StepChecks
from .torch_copies import UpdateBackup
from .torch_fit import ParameterNames
from .torch_policy import CapturePolicy
from .torch_ranks import RankCoordinator
from .torch_snapshot import SnapshotBuilder
from .torch_state import parameters_of
from .torch_steps import THIS_THREAD, ThreadSteps, TrainingStep
from .torch_updates import UpdateChecks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from .torch_explain import InPlaceExplanation

MAX_TRIGGERS = 1000


class TorchCapture:
    """Captures PyTorch's steps: passes training events to the parts below. A context manager, active until closed."""

    def __init__(self, capture: CaptureSession) -> None:
        self._capture = capture
        self._hooks: EventHooks | None = None  # set when PyTorch is imported, like all that follows
        self._training: CaptureContext
        self._updates: UpdateChecks

    def begin(self, name: str, module: ModuleType) -> None:
        """Attach to PyTorch, or to a module of it that is imported later."""
        if self._hooks is not None:
            self._hooks.watch(name, module)
        elif name == "torch":
            hooks = hooks_of(self._capture, module)
            self._training = CaptureContext(self._capture, module, hooks.modules)
            self._updates = UpdateChecks(self._training)
            hooks.decide(self)
            self._hooks = hooks
            if self._capture.settings.redo is not None:
                self._capture.attempt(self._start_explanation, hooks.events)

    def _start_explanation(self, training_events: events.Events) -> None:
        """Explain a step that was captured in the recording of this replay."""
        from .torch_explain import InPlaceExplanation

        self._training.in_place = InPlaceExplanation(self._training)
        training_events.add(self._training.in_place)

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
        watched, updates = self._training.watched, self._updates
        starts, losses = updates.starts, updates.losses
        outputs: dict[type[events.TrainingEvent], events.Handler] = {events.OutputComputed: losses.output_computed}
        return {
            events.LoaderBegan: starts.loader_began,
            events.BatchFetched: starts.batch_fetched,
            events.LoaderExhausted: starts.loader_exhausted,
            events.ForwardBegan: updates.forward_began,
            events.ForwardEnded: updates.compiled_ended,
            events.BackwardBegan: losses.backward_began,
            events.BackwardEnded: losses.backward_ended,
            events.ClippingDue: losses.clipping_due,
            events.GradientsClipped: losses.gradients_clipped,
            events.LossScaled: losses.loss_scaled,
            events.ScaledUpdateEnded: losses.scaled_update_ended,
            events.ScalerMade: lambda event: watched.register(watched.scalers, event.scaler),
            events.ScheduleMade: lambda event: watched.register(watched.schedules, event.schedule),
            events.OptimizerMade: updates.optimizer_made,
            events.PartDue: updates.part_due,
            events.PartDone: updates.part_done,
            events.UpdateDue: updates.update_due,
            events.UpdateDone: updates.update_done,
            events.UpdateEnded: updates.update_ended,
            **(outputs if self._capture.settings.conditions.activations else {}),
        }

    def forget(self) -> None:
        """Drop the parent's state, in a forked child."""
        if self._hooks is not None:
            self._training.forget()


def hooks_of(capture: CaptureSession, torch: Any) -> EventHooks:
    """Return the hooks of a run that is recorded too, else some of the capture's own."""
    hooks = None if capture.agent is None else capture.agent.pytorch
    if hooks is not None:
        return hooks
    compiled = capture.attempt(private_api.compiled, torch, capture.settings.library)
    return EventHooks(capture, events.Events(capture.failed), torch, Modules(), compiled=compiled)


class LoaderPass:
    """One pass (epoch) over a DataLoader."""

    def __init__(self, loader: Any, number: int) -> None:
        self.loader = weakref.ref(loader)
        is_part = type(loader.dataset) is sys.modules["torch.utils.data"].Subset
        self.subset = weakref.ref(loader.dataset) if is_part else None
        collating = str(getattr(loader.collate_fn, "__module__", ""))
        self.may_be_sorted = not collating.startswith("torch.utils.data.")  # by the script's function
        self.number = number
        self.steps = 0


class OptimizerSteps:
    """An optimizer, the count of its steps, and its state before recent updates."""

    def __init__(self, optimizer: Any) -> None:
        self.reference = weakref.ref(optimizer)
        self.thread = THIS_THREAD.key  # that created it; from its first step on, the one that it steps in
        self.steps = 0
        self.last_backward = -1  # number of backward passes at its last step
        self.backward_gap = 0  # backward passes between its last two steps; 0: unknown
        self.overflows = 0  # of a GradScaler, in a row
        self.norms = NormMean()  # of its gradients
        self.repeats = True  # its closure is called more than once in a step
        self.backup: UpdateBackup | None = None  # set at its first update

    def stepped(self, backward: int) -> None:
        """Count a step, applied or skipped, after this backward pass."""
        self.steps += 1
        if 0 <= self.last_backward < backward:
            self.backward_gap = backward - self.last_backward
        self.last_backward = backward

    def turn_order(self, backward: int) -> tuple[float, int]:
        """Return a sort key: the optimizer whose previous interval fits this backward pass best sorts first."""
        if self.last_backward < 0:
            return 0.5, self.last_backward
        return (
            abs(backward - self.last_backward - self.backward_gap) if self.backward_gap else 1.0
        ), self.last_backward

    def parameters(self) -> list[Any]:
        """Return the optimizer's parameters, group by group; none if the optimizer was deleted."""
        optimizer = self.reference()
        return [] if optimizer is None else parameters_of(optimizer)

    def gradients(self) -> list[Any]:
        """Return the gradients of its parameters that have one."""
        return [gradient for gradient in [p.grad for p in self.parameters()] if gradient is not None]

    def drop_gradients(self) -> None:
        """Set to None the gradients that this optimizer would apply."""
        for parameter in self.parameters():
            parameter.grad = None

    def is_ruined(self) -> bool:
        """Return whether parameters that were finite before an update are no longer finite."""
        return self.backup is not None and self.backup.is_ruined()


class WatchedObjects:
    """The optimizers, schedules and GradScalers of this process."""

    def __init__(self) -> None:
        self.records: dict[int, OptimizerSteps] = {}  # by id of the optimizer, while it lives
        self.schedules: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()  # in the order of making
        self.scalers: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self.only: set[int] | None = None  # optimizers that the script guards by itself
        self.steps = 0  # of all optimizers
        self._epochs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def add(self, optimizer: Any) -> OptimizerSteps:
        """Register a new optimizer and return its record."""
        records, key = self.records, id(optimizer)
        record = records[key] = OptimizerSteps(optimizer)

        def end() -> None:
            if records.get(key) is record:
                del records[key]

        weakref.finalize(optimizer, end).atexit = False
        return record

    def register(self, kind: weakref.WeakKeyDictionary[Any, bool], value: Any) -> None:
        """Register a new schedule or GradScaler."""
        if self.only is None:
            kind[value] = True

    def next_epoch(self, loader: Any) -> LoaderPass:
        """Begin a new pass over a DataLoader."""
        self._epochs[loader] = self._epochs.get(loader, -1) + 1
        return LoaderPass(loader, self._epochs[loader])

    def alive(self) -> list[OptimizerSteps]:
        """Return this thread's optimizers in the order of creation; if it has none, those that never stepped."""
        alive = [entry for entry in list(self.records.values()) if entry.reference() is not None]
        own = [record for record in alive if record.thread is THIS_THREAD.key]
        return own or [record for record in alive if not record.steps]

    def names(self, records: list[OptimizerSteps]) -> list[str]:
        """Return the names of these optimizers in a snapshot."""
        alive = self.alive()
        return [f"optimizer#{alive.index(record)}" for record in records if record in alive]

    def sharing_backward(self, record: OptimizerSteps, backward: int) -> list[OptimizerSteps]:
        """Return the other optimizers that will apply gradients of the same backward pass, as they did the last time.

        A GAN's two optimizers never do, those of an encoder and its decoder always.
        """
        others = [other for other in self.alive() if other is not record]
        return [
            other for other in others if other.last_backward == record.last_backward and other.last_backward != backward
        ]

    def with_gradients(self) -> list[OptimizerSteps]:
        """Return the optimizers that have any gradient; if none has, all of them."""
        records = self.alive()
        return [record for record in records if record.gradients()] or records

    def due(self, reached: set[int], backward: int) -> list[OptimizerSteps]:
        """Return the optimizers that will step after this backward pass: one, and those that step together with it.

        ``reached`` has the ids of the parameters that the loss was computed from, if known.
        """
        records = self.with_gradients()
        records = [other for other in records if any(id(p) in reached for p in other.parameters())] or records
        if not records:
            return []
        first = min(records, key=lambda record: record.turn_order(backward))
        following = self.sharing_backward(first, backward)
        return [first, *[other for other in records if other in following]]

    def versions(self) -> int:
        """Return the sum of the parameters' version counters, which every in-place change raises."""
        return private_api.changes_of(self.parameters())

    def parameters(self) -> list[Any]:
        """Return the parameters of all optimizers."""
        return [parameter for record in self.alive() for parameter in record.parameters()]


class CaptureContext:
    """What the parts of a capture share: the watched objects, the checks, the policy, and each thread's step."""

    def __init__(self, capture: CaptureSession, torch: Any, modules: Modules) -> None:
        self.capture = capture
        self.torch = torch
        self.modules = modules
        self.watched = WatchedObjects()
        path = capture.settings.library
        compiled = capture.attempt(private_api.compiled, torch, path) if path else None
        self.tests = FiniteTests(torch, compiled)
        self.snapshot_builder = SnapshotBuilder(torch, self.tests, self.watched)
        self.ranks = RankCoordinator(torch)
        self.checks = StepChecks(self)
        self.policy = CapturePolicy(self)
        self._make_random = functools.partial(RandomStates, torch, compiled)
        self.threads = ThreadSteps(self._new_step)
        self.in_place: InPlaceExplanation | None = None

    def _new_step(self) -> TrainingStep:
        """Return the first step of a thread, whose optimizers another thread may have created."""
        step = TrainingStep(self.torch, self._make_random)
        step.armed = bool(self.watched.alive())
        return step

    def forget(self) -> None:
        """Drop the parent's state, in a forked child."""
        self.threads = ThreadSteps(self._new_step)
        if self.in_place is not None:
            self.in_place.forget()

    def is_recorded(self) -> bool:
        """Return whether a CUDA graph is being captured; no operator of reprokit's may get into it."""
        return bool(private_api.uses_cuda(self.torch) and self.torch.cuda.is_current_stream_capturing())

    def backs_up(self, step: TrainingStep, record: OptimizerSteps) -> bool:
        """Back up the state before an update if it is due; return whether to test the parameters after it."""
        if record.backup is None:
            record.backup = UpdateBackup(self.torch, self.tests, record.reference())
        return record.backup.keep(record.steps, step.losses.recent[-1] if step.losses.recent else 0.0)

    def names(self) -> ParameterNames:
        """Return the names of this thread's parameters."""
        return ParameterNames(self.models(), [record.reference() for record in self.watched.alive()])

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of all optimizers by name."""
        return self.names().parameters

    def models(self) -> list[Any]:
        """Return the models that own parameters of any optimizer."""
        return self.modules.owners(self.watched.parameters(), self.torch.nn.Module)

    def triggers(self, kind: str, records: list[OptimizerSteps]) -> list[Trigger]:
        """Return a trigger for each gradient, or parameter, of these optimizers that is not finite."""
        parameters = {id(parameter): parameter for record in records for parameter in record.parameters()}
        triggers: list[Trigger] = []
        for name, parameter in self.names().of(list(parameters.values())):
            tensor = parameter.grad if kind == GRADIENT else parameter.data
            if tensor is not None and len(triggers) < MAX_TRIGGERS:
                trigger = checks.elements(kind, name, *self.tests.count(tensor))
                triggers += [] if trigger is None else [trigger]
        return triggers
