"""Does a captured step of PyTorch again, at the first step of the user's own script, and again on parts of its batch.

The script builds its model and optimizers and asks its DataLoader for a batch: it is given the snapshot's. Before the
first forward pass the snapshot's state is put into what the script built. Where the optimizer would update, the
gradients are compared, and the update is left out. The next turn of the user's loop is the next trial; a script that
ends before the search does is started again.
"""

from __future__ import annotations

import atexit
import os

from ..events import (
    SKIP,
    BackwardBegan,
    BackwardEnded,
    BatchDue,
    ClippingDue,
    ForwardBegan,
    ForwardEnded,
    LossScaled,
    NotApplied,
    OptimizerMade,
    OutputComputed,
    PartDue,
    ScaledUpdateEnded,
    ScalerMade,
    ScheduleMade,
    UpdateDone,
    UpdateDue,
    UpdateEnded,
)
from ..observing.torch_inputs import tensors as tensors_in
from ..pytorch.decisions import own_step, replace_targets
from .redo import EXPLAIN, RedoDriver
from .snapshot_reader import SnapshotError
from .torch_capture import hooks_of
from .torch_fit import Built
from .torch_inputs import RedoInputs
from .torch_trials import CapturedStep, RedoThread, StepTrials, judged
from .trigger import ACTIVATION, CONDITION, PARAMETER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..events import Handler, TrainingEvent
    from ..pytorch.events import EventHooks
    from ..pytorch.state import Modules
    from . import CaptureSession


class TorchRedo:
    """Waits for PyTorch."""

    def __init__(self, capture: CaptureSession) -> None:
        self._capture = capture
        self._driver = RedoDriver(capture)
        self._watch: RedoWatch | None = None
        self._hooks: EventHooks

    def begin(self, name: str, module: Any) -> None:
        """Attach to PyTorch, or to a module of it."""
        if name == "torch":
            self._hooks = hooks_of(self._capture, module)
            self._watch = self._begin(module)
            self._hooks.decide(self._watch)
            self._watch_targets(module, self._watch)
        elif self._watch is not None and self._watch.trials.is_active:
            self._hooks.watch(name, module)

    def _begin(self, torch: Any) -> RedoWatch:
        driver = self._driver
        if driver.mode == EXPLAIN:
            os.environ["TORCH_COMPILE_DISABLE"] = os.environ["TORCHDYNAMO_DISABLE"] = "1"
        try:
            return RedoWatch(torch, driver, self._hooks.modules)
        except SnapshotError as error:
            driver.trouble(str(error))
        except (KeyError, TypeError, ValueError) as error:
            driver.trouble(f"{driver.path} cannot be used: {error!r}")

    def _watch_targets(self, torch: Any, watch: RedoWatch) -> None:
        if any(turn.targets for turn in watch.trials.captured.turns):
            try:
                replace_targets(torch, watch.inputs.target)
            except (AttributeError, TypeError):  # PyTorch before 2.0
                self._driver.problem("targets of losses are the script's own")

    def forget(self) -> None:
        """A forked child works for the loader."""
        if self._watch is not None:
            self._watch.trials.is_attached = self._driver.is_done = False


class RedoWatch:
    """Listens to batches, calls, backward passes and updates, and drives the trials by them."""

    def __init__(self, torch: Any, driver: RedoDriver, modules: Modules) -> None:
        self._torch = torch
        self._driver = driver
        self._built = built = Built(torch, driver.file, modules, driver.problem)
        captured = CapturedStep(driver.file, built, driver.header.trigger)
        self._trigger = captured.trigger
        self.trials = StepTrials(torch, driver, built, captured)
        self._thread = RedoThread()
        self.inputs = RedoInputs(self.trials)
        atexit.register(self.trials.ended)

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        built = self._built
        outputs: dict[type[TrainingEvent], Handler] = {OutputComputed: self._output_computed}
        return {
            OptimizerMade: lambda event: built.made_optimizers.add(event.target),
            ScalerMade: lambda event: built.made_scalers.add(event.scaler),
            ScheduleMade: lambda event: built.made_schedules.add(event.schedule),
            BatchDue: self._batch_due,
            ForwardBegan: self._forward_began,
            ForwardEnded: self._forward_ended,
            BackwardBegan: self._backward_began,
            BackwardEnded: self._backward_ended,
            LossScaled: self._loss_scaled,
            ClippingDue: self._clipping_due,
            UpdateDue: self._update_due,
            UpdateDone: self._update_done,
            UpdateEnded: self._update_ended,
            PartDue: self._part_due,
            ScaledUpdateEnded: self._scaled_update_ended,
            **(outputs if self._trigger.kind == ACTIVATION else {}),
        }

    def failed(self, error: Exception, _handler: Handler) -> None:
        """Nothing can be told of a step that is executed in part."""
        self._driver.trouble(f"{type(error).__name__}: {error}")

    def _output_computed(self, event: OutputComputed) -> None:
        trials = self.trials
        if not trials.is_active or not trials.trial.is_begun:
            return
        for tensor in tensors_in(self._torch, event.output):
            found = judged(self._torch, ACTIVATION, trials.built.name_of(event.module), tensor)
            trials.trial.not_finite += [] if found is None else [found]

    def _batch_due(self, event: BatchDue) -> None:
        self._driver.require_end()
        self.inputs.batch_due(event)

    def _forward_began(self, event: ForwardBegan) -> None:
        if self.trials.is_active:
            event.arguments, event.keywords = self.inputs.called(event.module, event.arguments, event.keywords)

    def _forward_ended(self, event: ForwardEnded) -> None:
        error = event.error
        if isinstance(error, Exception) and self.trials.is_active and self.trials.trial.is_begun:
            self.trials.failed(f"{type(error).__name__}: {str(error)[:200]}")

    def _backward_began(self, event: BackwardBegan) -> None:
        tensors = event.tensors
        if self.trials.is_active and self.trials.trial.is_begun:
            losses = [tensors] if isinstance(tensors, self._torch.Tensor) else list(tensors)
            self.trials.trial.losses += [self._thread.unscaled(loss) for loss in losses]

    def _backward_ended(self, event: BackwardEnded) -> None:
        trial = self.trials.trial
        if event.has_failed or not self.trials.is_active:
            return
        trial.passes += trial.is_begun
        trial.inputs.root = None
        if trial.is_begun and self.trials.captured.is_about_loss and not self._thread.in_closure:
            self._conclude_early(all(loss.is_cpu for loss, _ in trial.losses))

    def _loss_scaled(self, event: LossScaled) -> None:
        is_one = isinstance(event.loss, self._torch.Tensor)
        self._thread.scaled = (event.scaled, event.loss) if is_one else (None, None)

    def _clipping_due(self, _event: ClippingDue) -> None:
        """Captures look at gradients before they are clipped."""
        if self.trials.is_active and self.trials.trial.is_begun and self._thread.scaled[0] is None:
            self._conclude_early(self._trigger.kind != CONDITION)

    def _conclude_early(self, may: bool) -> None:
        """Before the update, where the capture was made so early: as soon as what it was made for is seen."""
        if may:
            self.trials.concludes_early()

    def _update_due(self, event: UpdateDue) -> str | None:
        optimizer, trials = event.target, self.trials
        self._driver.require_end()
        self._built.made_optimizers.add(optimizer)  # a copy of another has not been initialized
        if not trials.is_active:
            return None
        if event.is_nested:
            return SKIP if self._thread.in_step else None
        if event.closure is not None and not (own_step(type(optimizer)) and trials.is_seen()):
            self._thread.in_step = event.state = True
            event.closure = self._evaluating(event, event.closure)
            return None
        if self._trigger.kind == PARAMETER and trials.trial.is_begun and trials.built.is_held_back(optimizer):
            event.state = True
            return None
        trials.arrived(optimizer)
        return SKIP

    def _evaluating(self, event: UpdateDue, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The optimizer itself calls what computes loss and gradients, once or more often; it may go on in between."""

        def evaluate() -> Any:
            self._thread.in_closure = True
            try:
                with self._torch.enable_grad():
                    event.result = closure()
            finally:
                self._thread.in_closure = False
            if self.trials.is_seen():
                self.trials.arrived(event.target)
                raise NotApplied
            return event.result

        return evaluate

    def _update_done(self, event: UpdateDone) -> None:
        """An update is made; of the captured one it is told what it made of the parameters."""
        if event.due is None or event.due.state is None:
            return
        optimizer, trial, built = event.due.target, self.trials.trial, self.trials.built
        is_told = self._trigger.kind == PARAMETER and trial.is_begun and built.is_held_back(optimizer)
        for name, parameter in built.parameters([optimizer]).items() if is_told else ():
            found = judged(self._torch, PARAMETER, name, parameter)
            if found is not None:
                trial.not_finite.append(found)
                trial.updated.append(parameter)
        self.trials.arrived(optimizer)

    def _update_ended(self, event: UpdateEnded) -> None:
        if not event.due.is_nested:
            self._thread.in_step = False

    def _part_due(self, event: PartDue) -> str | None:
        """Answer SKIP to all parts of a step but its first, which moves parameters by gradients that are good."""
        self._driver.require_end()
        trial = self.trials.trial if self.trials.is_active else None
        if trial is None:
            return None
        if trial.is_begun and trial.part in (None, event.name) and not self.trials.is_seen():
            trial.part = event.name
            return None
        if trial.is_begun:
            self.trials.arrived(event.target)
        return SKIP

    def _scaled_update_ended(self, event: ScaledUpdateEnded) -> None:
        if self.trials.is_active and not event.has_updated:
            self.trials.arrived(event.target)
