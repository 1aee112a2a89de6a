"""Re-executes a captured PyTorch step, at the first step of the user's own script, also on parts of its batch.

The script builds its model and optimizers and fetches a batch from its DataLoader: it gets the snapshot's. Before the
first forward pass the snapshot's state is restored into the script's objects. When the optimizer would update, the
gradients are compared, and the update is skipped. The next iteration of the user's loop is the next trial; a script
that ends before the search does is started again.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref

from ..events import steps as events
from ..events.steps import SKIP, NotApplied
from ..operators.explain import CALLED_WITH
from ..pytorch import private_api
from ..pytorch.decisions import own_step, replace_targets
from ..pytorch.tensors import tensors_in
from .header import ACTIVATION, CONDITION, PARAMETER, Trigger
from .redo import EXPLAIN, MINIMIZE, RedoDriver
from .store import SnapshotError
from .torch_capture import hooks_of
from .torch_fit import ScriptObjects
from .torch_trials import BEGUN, CALLED, UNUSED, WAITING, CapturedStep, RedoThread, StepTrials
from .variables import replace_variables, replacements_of, tensors_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from ..pytorch.events import EventHooks
    from ..pytorch.state import Modules
    from . import CaptureSession
    from .torch_batches import SavedBatch


class RedoInputs:
    """Replaces the script's inputs with the snapshot's: batches, arguments of calls, variables, and targets."""

    def __init__(self, trials: StepTrials) -> None:
        self._trials = trials
        self._torch = trials.torch
        self._script_objects = trials.script_objects
        self._driver = trials.driver
        self._header = trials.captured.header
        self._own_batch: Any = None  # of the script's loader
        self._iterator: Any = None  # of a loader, that gave the last batch
        self._evaluation_iterators: Any = weakref.WeakSet()  # they give their own batches

    def batch_due(self, event: events.BatchDue) -> None:
        """Replace the batch that the script's loop is about to fetch."""
        trials, trial, iterator = self._trials, self._trials.trial, event.iterator
        if not trials.is_active or not trial.inputs.fetched or not self._torch.is_grad_enabled():
            return
        if trial.evaluation_iterator is not None:
            self._evaluation_iterators.add(trial.evaluation_iterator)
            trial.evaluation_iterator = None
        if iterator in self._evaluation_iterators:
            return
        self._iterator = iterator
        if trial.is_begun and trial.inputs.fetched_count >= len(trial.inputs.fetched):
            if trial.is_used_up:
                trials.conclude()  # the loop fetches another batch: it is done with the trial's
            elif not trial.losses:
                trials.note_unused()
        trial, inputs = trials.trial, trials.trial.inputs
        if trial.state is UNUSED:
            inputs.fetched_count, trial.state = 0, WAITING
        trials.is_ahead = trials.is_ahead or inputs.fetched_count >= len(inputs.fetched)
        event.replace, event.wants_own = self._replacement, self._own_batch is None

    def _replacement(self, own: Any) -> Any:
        """Return the snapshot's batch in place of the script's own, which is given the first time."""
        trials, trial, inputs = self._trials, self._trials.trial, self._trials.trial.inputs
        if self._own_batch is None:
            self._own_batch = own
        batch, samples = inputs.fetched[min(inputs.fetched_count, len(inputs.fetched) - 1)]
        inputs.fetched_count += 1
        inputs.given_by[id(self._iterator)] = inputs.given_by.get(id(self._iterator), 0) + 1
        if not trial.is_begun:
            trials.restore_if_built()
        value = self._fitted_part(batch, samples, self._own_batch)
        if not trial.is_begun and (self._header.parameters or not self._header.models):
            trials.begin()  # parameters of no module may be used before one is called, if any will be
        self._script_objects.restore_random(batch.random or None)
        return value

    def _fitted_part(self, batch: SavedBatch, samples: list[int], like: Any) -> Any:
        """Return the trial's samples of a batch, in the form of the script's own."""
        value = self._driver.attempt(lambda: batch.part(samples, like, self._driver.repeats_samples))
        if self._driver.mode == EXPLAIN:
            name = "the batch" if batch.source == "loader" else CALLED_WITH
            tensors = [(name, tensor) for tensor in tensors_in(value)]
            self._trials.trial.inputs.tensors += tensors
            self._trials.explain()
        return value

    def call_inputs(self, module: Any, arguments: Any, keywords: Any) -> tuple[Any, Any]:
        """Return the arguments and keywords with which the script's call of a module is to proceed."""
        trial, inputs = self._trials.trial, self._trials.trial.inputs
        is_training = self._torch.is_grad_enabled() and bool(self._script_objects.optimizers)
        if not is_training or self._is_evaluating(module):
            if not trial.is_begun:
                trial.state = UNUSED
                if is_training:
                    trial.evaluation_iterator = self._iterator
            return arguments, keywords
        if not inputs.fetched_count if inputs.fetched else not self._is_captured_module(module):
            return arguments, keywords
        trial.evaluation_iterator = None
        if not trial.is_begun:
            self._trials.begin()
        if trial.state is BEGUN:
            trial.state = CALLED
            self._trials.restore_random()  # whatever was drawn since the batch was fetched
        if inputs.root is None:
            inputs.root = module
        if inputs.called and not inputs.fetched and inputs.root is module and self._is_captured_module(module):
            batch, samples = inputs.called[min(inputs.calls, len(inputs.called) - 1)]
            inputs.calls += 1
            own_inputs = [arguments, keywords]
            value = self._fitted_part(batch, samples, own_inputs)
            arguments, keywords = _on_own_devices(self._torch, value, own_inputs)
            replace_variables(sys._getframe(1), replacements_of(own_inputs, [arguments, keywords]), self._variables)
        return arguments, keywords

    def _variables(self, function: str, variables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield the snapshot's values for local variables of one of the script's functions."""
        inputs = self._trials.trial.inputs
        if inputs.calls != len(inputs.called):  # the variables were saved at the last call
            return
        for batch, samples in inputs.variables:
            if batch.name != function:
                continue
            value = self._fitted_part(batch, samples, dict(variables))
            for name in value if isinstance(value, dict) else ():
                if name in variables and _are_same_kind(variables[name], value[name]):
                    yield name, _on_own_devices(self._torch, value[name], variables[name])
        if self._driver.mode != MINIMIZE:  # a loop's variable would select all samples of the batch
            loops = self._trials.captured.loops.get(function)
            for name, number in loops.items() if isinstance(loops, dict) else ():
                if type(variables.get(name)) is int is type(number):
                    yield name, number

    def loss_target(self, target: Any) -> Any:
        """Return the target for a loss: the snapshot's if it has one, else the script's own."""
        trials, trial, inputs = self._trials, self._trials.trial, self._trials.trial.inputs
        is_known = trials.is_active and trial.is_begun and inputs.targets
        if not is_known or not isinstance(target, self._torch.Tensor):
            return target
        batch, samples = inputs.targets[min(inputs.target_count, len(inputs.targets) - 1)]
        inputs.target_count += 1
        return self._driver.attempt(
            lambda: batch.part(samples, None, self._driver.repeats_samples)["target"].to(target.device)
        )

    def _is_captured_module(self, module: Any) -> bool:
        """Return whether the captured step called this module, or whether the snapshot does not say."""
        names = {batch.name for batch, _ in self._trials.trial.inputs.called}
        if not names or None in names or not private_api.has_children(module):
            return not names or None in names
        return bool(self._driver.attempt(lambda: self._script_objects.name_of(module) in names))

    def _is_evaluating(self, module: Any) -> bool:
        """Return whether this module is in evaluation mode, while the snapshot's models were in training mode."""
        flags = [(model.get("training") or {}).get("") for model in self._header.models]
        is_model = private_api.has_children(module)
        return (
            is_model and not module.training and bool(flags) and all(flags) and any(True for _ in module.parameters())
        )


def _are_same_kind(own: Any, saved: Any) -> bool:
    """Return whether a variable has the saved value's type and dtypes, and is no result of the step."""
    own_parts, saved_parts = ([(type(part), part.dtype) for part in tensors_of(value)] for value in (own, saved))
    is_result = any(getattr(part, "requires_grad", False) for part in tensors_of(own))
    return type(own) is type(saved) and own_parts == saved_parts and not is_result


def _into_own_tensor(value: Any, like: Any) -> Any:
    """Return the value, written into the script's own tensor if gradients flow through that one."""
    if like.requires_grad and (like.shape, like.dtype) == (value.shape, value.dtype):
        try:
            like.data.copy_(value)
        except RuntimeError:  # it is expanded: several elements share memory
            return value
        return like
    return value


def _on_own_devices(torch: Any, value: Any, like: Any) -> Any:
    """Return the snapshot's tensors on the devices of the script's own."""
    if isinstance(value, torch.Tensor):
        if not isinstance(like, torch.Tensor):
            return value
        return _into_own_tensor(value.to(like.device), like)
    if type(value) in (list, tuple) and isinstance(like, (list, tuple)):
        likes = [*like, *[None] * (len(value) - len(like))]
        return type(value)([_on_own_devices(torch, item, other) for item, other in zip(value, likes)])
    if type(value) is dict and isinstance(like, dict):
        return {key: _on_own_devices(torch, value[key], like.get(key)) for key in value}
    return value


class TorchRedo:
    """Listens to training events, and drives the trials by them."""

    def __init__(self, capture: CaptureSession) -> None:
        self._capture = capture
        self._driver = RedoDriver(capture)
        self._thread = RedoThread()
        self._hooks: EventHooks | None = None  # set when PyTorch is imported, like all that follows
        self._torch: Any
        self._trigger: Trigger
        self._script_objects: ScriptObjects
        self._inputs: RedoInputs
        self.trials: StepTrials

    def begin(self, name: str, module: Any) -> None:
        """Attach to PyTorch, or to a module of it that is imported later."""
        if name == "torch":
            hooks = hooks_of(self._capture, module)
            self._begin(module, hooks.modules)
            hooks.decide(self)
            self._hooks = hooks
            self._watch_targets(module)
        elif self._hooks is not None and self.trials.is_active:
            self._hooks.watch(name, module)

    def _begin(self, torch: Any, modules: Modules) -> None:
        driver, self._torch = self._driver, torch
        if driver.mode == EXPLAIN:
            os.environ["TORCH_COMPILE_DISABLE"] = os.environ["TORCHDYNAMO_DISABLE"] = "1"
        try:
            self._script_objects = ScriptObjects(torch, driver.file, modules, driver.problem)
            self.trials = StepTrials(
                torch, driver, self._script_objects, CapturedStep(driver.file, self._script_objects)
            )
        except SnapshotError as error:
            driver.give_up(str(error))
        except (KeyError, TypeError, ValueError) as error:
            driver.give_up(f"{driver.path} cannot be used: {error!r}")
        self._trigger = self.trials.captured.trigger
        self._inputs = RedoInputs(self.trials)
        atexit.register(self.trials.ended)

    def _watch_targets(self, torch: Any) -> None:
        if any(turn.targets for turn in self.trials.captured.iterations):
            try:
                replace_targets(torch, self._inputs.loss_target)
            except (AttributeError, TypeError):  # PyTorch before 2.0
                self._driver.problem("targets of losses are the script's own")

    def forget(self) -> None:
        """Stop watching, in a forked child: it is a loader's worker."""
        if self._hooks is not None:
            self.trials.is_attached = self._driver.is_done = False

    def handlers(self) -> dict[type[events.TrainingEvent], events.Handler]:
        script_objects = self._script_objects
        outputs: dict[type[events.TrainingEvent], events.Handler] = {events.OutputComputed: self._output_computed}
        return {
            events.OptimizerMade: lambda event: script_objects.own.optimizers.add(event.target),
            events.ScalerMade: lambda event: script_objects.own.scalers.add(event.scaler),
            events.ScheduleMade: lambda event: script_objects.own.schedules.add(event.schedule),
            events.BatchDue: self._batch_due,
            events.ForwardBegan: self._forward_began,
            events.ForwardEnded: self._forward_ended,
            events.BackwardBegan: self._backward_began,
            events.BackwardEnded: self._backward_ended,
            events.LossScaled: self._loss_scaled,
            events.ClippingDue: self._clipping_due,
            events.UpdateDue: self._update_due,
            events.UpdateDone: self._update_done,
            events.UpdateEnded: self._update_ended,
            events.PartDue: self._part_due,
            events.ScaledUpdateEnded: self._scaled_update_ended,
            **(outputs if self._trigger.kind == ACTIVATION else {}),
        }

    def failed(self, error: Exception, _handler: events.Handler) -> None:
        """Give up: nothing can be said about a step that was executed only in part."""
        self._driver.give_up(f"{type(error).__name__}: {error}")

    def _output_computed(self, event: events.OutputComputed) -> None:
        trials = self.trials
        if not trials.is_active or not trials.trial.is_begun:
            return
        for tensor in tensors_in(event.output):
            if tensor.is_floating_point():
                trials.note_not_finite(ACTIVATION, trials.script_objects.name_of(event.module), tensor)

    def _batch_due(self, event: events.BatchDue) -> None:
        self._driver.require_end()
        self._inputs.batch_due(event)

    def _forward_began(self, event: events.ForwardBegan) -> None:
        if self.trials.is_active:
            event.arguments, event.keywords = self._inputs.call_inputs(event.module, event.arguments, event.keywords)

    def _forward_ended(self, event: events.ForwardEnded) -> None:
        error = event.error
        if isinstance(error, Exception) and self.trials.is_active and self.trials.trial.is_begun:
            self.trials.failed(f"{type(error).__name__}: {str(error)[:200]}")

    def _backward_began(self, event: events.BackwardBegan) -> None:
        tensors = event.tensors
        if self.trials.is_active and self.trials.trial.is_begun:
            losses = [tensors] if isinstance(tensors, self._torch.Tensor) else list(tensors)
            self.trials.trial.losses += [self._thread.unscaled(loss) for loss in losses]

    def _backward_ended(self, event: events.BackwardEnded) -> None:
        trial = self.trials.trial
        if event.has_failed or not self.trials.is_active:
            return
        trial.backward_count += trial.is_begun
        trial.inputs.root = None
        if trial.is_begun and self.trials.captured.is_about_loss and not self._thread.in_closure:
            if all(loss.is_cpu for loss, _ in trial.losses):
                self.trials.conclude_early()

    def _loss_scaled(self, event: events.LossScaled) -> None:
        is_tensor = isinstance(event.loss, self._torch.Tensor)
        self._thread.scaled = (event.scaled, event.loss) if is_tensor else (None, None)

    def _clipping_due(self, _event: events.ClippingDue) -> None:
        """Conclude before clipping if the trigger is there, as captures test gradients before it, too."""
        is_begun = self.trials.is_active and self.trials.trial.is_begun
        if is_begun and self._thread.scaled[0] is None and self._trigger.kind != CONDITION:
            self.trials.conclude_early()

    def _update_due(self, event: events.UpdateDue) -> str | None:
        optimizer, trials = event.target, self.trials
        self._driver.require_end()
        self._script_objects.own.optimizers.add(optimizer)  # a copied optimizer was never initialized
        if not trials.is_active:
            return None
        if event.is_nested:
            return SKIP if self._thread.in_step else None
        if event.closure is not None and not (own_step(type(optimizer)) and trials.is_reproduced()):
            self._thread.in_step = event.state = True
            event.closure = self._checked_closure(event, event.closure)
            return None
        if (
            self._trigger.kind == PARAMETER
            and trials.trial.is_begun
            and trials.script_objects.is_captured_optimizer(optimizer)
        ):
            event.state = True
            return None
        trials.reach_update(optimizer)
        return SKIP

    def _checked_closure(self, event: events.UpdateDue, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return a closure that computes loss and gradients, and ends the update once the trigger is seen."""

        def evaluate() -> Any:
            self._thread.in_closure = True
            try:
                with self._torch.enable_grad():
                    event.result = closure()
            finally:
                self._thread.in_closure = False
            if self.trials.is_reproduced():
                self.trials.reach_update(event.target)
                raise NotApplied
            return event.result

        return evaluate

    def _update_done(self, event: events.UpdateDone) -> None:
        """Check the parameters after an update, if it is the captured one, and conclude the trial."""
        if event.due is None or event.due.state is None:
            return
        optimizer, trial, script_objects = event.due.target, self.trials.trial, self.trials.script_objects
        is_captured = (
            self._trigger.kind == PARAMETER and trial.is_begun and script_objects.is_captured_optimizer(optimizer)
        )
        for name, parameter in script_objects.parameters([optimizer]).items() if is_captured else ():
            trial.updated += [parameter] if self.trials.note_not_finite(PARAMETER, name, parameter) else []
        self.trials.reach_update(optimizer)

    def _update_ended(self, event: events.UpdateEnded) -> None:
        if not event.due.is_nested:
            self._thread.in_step = False

    def _part_due(self, event: events.PartDue) -> str | None:
        """Answer SKIP to all parts of a step but its first, which is applied if its gradients are finite."""
        self._driver.require_end()
        trial = self.trials.trial if self.trials.is_active else None
        if trial is None:
            return None
        if trial.is_begun and trial.part in (None, event.name) and not self.trials.is_reproduced():
            trial.part = event.name
            return None
        if trial.is_begun:
            self.trials.reach_update(event.target)
        return SKIP

    def _scaled_update_ended(self, event: events.ScaledUpdateEnded) -> None:
        if self.trials.is_active and not event.has_updated:
            self.trials.reach_update(event.target)
