"""Does a captured step of PyTorch again, at the first step of the user's own script, and again on parts of its batch.

The script builds its model and optimizers and asks its DataLoader for a batch: it is given the snapshot's. Before the
first forward pass the snapshot's state is put into what the script built. Where the optimizer would update, the
gradients are compared, and the update is left out. The next turn of the user's loop is the next trial; a script that
ends before the search does is started again.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref

from .. import events
from ..events import SKIP, NotApplied
from ..pytorch import private_api
from ..pytorch.decisions import own_step, replace_targets
from ..pytorch.tensors import tensors_in
from .causes import CALLED_WITH
from .header import ACTIVATION, CONDITION, PARAMETER, Trigger
from .redo import EXPLAIN, MINIMIZE, RedoDriver
from .store import SnapshotError
from .torch_capture import hooks_of
from .torch_fit import ScriptObjects
from .torch_trials import BEGUN, CALLED, UNUSED, WAITING, CapturedStep, RedoThread, StepTrials
from .variables import give, parts, standing_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from ..pytorch.events import EventHooks
    from ..pytorch.state import Modules
    from . import CaptureSession
    from .torch_batches import SavedBatch


class RedoInputs:
    """Stands between the script and what it works on."""

    def __init__(self, trials: StepTrials) -> None:
        self._trials = trials
        self._torch = trials.torch
        self._built = trials.built
        self._driver = trials.driver
        self._header = trials.captured.header
        self._like: Any = None  # what the script's loader gave
        self._iterator: Any = None  # that handed a batch out last
        self._evaluates: Any = weakref.WeakSet()  # iterators that give their own batches

    def batch_due(self, event: events.BatchDue) -> None:
        """Give the loop a batch, where a loader's iterator is asked for its next one."""
        trials, trial, iterator = self._trials, self._trials.trial, event.iterator
        if not trials.is_active or not trial.inputs.fetched or not self._torch.is_grad_enabled():
            return
        if trial.evaluated is not None:
            self._evaluates.add(trial.evaluated)
            trial.evaluated = None
        if iterator in self._evaluates:
            return
        self._iterator = iterator
        if trial.is_begun and trial.inputs.handed >= len(trial.inputs.fetched):
            if trial.is_used_up:
                trials.conclude()  # the loop goes on to other batches: what it does with ours, it has done
            elif not trial.losses:
                trials.unused()
        trial, inputs = trials.trial, trials.trial.inputs
        if trial.state is UNUSED:
            inputs.handed, trial.state = 0, WAITING
        trials.is_ahead = trials.is_ahead or inputs.handed >= len(inputs.fetched)
        event.replace, event.wants_own = self._replaced, self._like is None

    def _replaced(self, own: Any) -> Any:
        """Return the snapshot's batch in the place of the script's own, which is there the first time."""
        trials, trial, inputs = self._trials, self._trials.trial, self._trials.trial.inputs
        if self._like is None:
            self._like = own
        batch, samples = inputs.fetched[min(inputs.handed, len(inputs.fetched) - 1)]
        inputs.handed += 1
        if not trial.is_begun:
            trials.restore_if_built()
        value = self._hand(batch, samples, self._like)
        if not trial.is_begun and (self._header.parameters or not self._header.models):
            trials.begin()  # parameters of no module may be used before one is called, if any will be
        self._built.restore_random(batch.random or None)
        return value

    def _hand(self, batch: SavedBatch, samples: list[int], like: Any) -> Any:
        """Return the part of a batch as the script is given it."""
        value = self._driver.attempt(lambda: batch.part(samples, like, self._driver.repeats_samples))
        if self._driver.mode == EXPLAIN:
            name = "the batch" if batch.source == "loader" else CALLED_WITH
            tensors = [(name, tensor) for tensor in tensors_in(value)]
            self._trials.trial.inputs.tensors += tensors
            self._trials.explain()
        return value

    def called(self, module: Any, arguments: Any, keywords: Any) -> tuple[Any, Any]:
        """Return what a module is to be called with, that the script calls."""
        trial, inputs = self._trials.trial, self._trials.trial.inputs
        is_training = self._torch.is_grad_enabled() and bool(self._built.optimizers)
        if not is_training or self._is_evaluating(module):
            if not trial.is_begun:
                trial.state = UNUSED
                if is_training:
                    trial.evaluated = self._iterator
            return arguments, keywords
        if not inputs.handed if inputs.fetched else not self._is_wanted(module):
            return arguments, keywords
        trial.evaluated = None
        if not trial.is_begun:
            self._trials.begin()
        if trial.state is BEGUN:
            trial.state = CALLED
            self._trials.restore_random()  # as it was then, whatever was drawn between
        if inputs.root is None:
            inputs.root = module
        if inputs.called and not inputs.fetched and inputs.root is module and self._is_wanted(module):
            batch, samples = inputs.called[min(inputs.calls, len(inputs.called) - 1)]
            inputs.calls += 1
            given = [arguments, keywords]
            value = self._hand(batch, samples, given)
            arguments, keywords = _moved(self._torch, value, given)
            give(sys._getframe(1), standing_for(given, [arguments, keywords]), self._variables)
        return arguments, keywords

    def _variables(self, function: str, known: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield what the snapshot has for variables of one of the script's functions."""
        inputs = self._trials.trial.inputs
        if inputs.calls != len(inputs.called):  # they are those of the end
            return
        for batch, samples in inputs.variables:
            if batch.name != function:
                continue
            value = self._hand(batch, samples, dict(known))
            for name in value if isinstance(value, dict) else ():
                if name in known and _are_alike(known[name], value[name]):
                    yield name, _moved(self._torch, value[name], known[name])
        if self._driver.mode != MINIMIZE:  # which would choose all samples of the batch
            loops = self._trials.captured.loops.get(function)
            for name, number in loops.items() if isinstance(loops, dict) else ():
                if type(known.get(name)) is int is type(number):
                    yield name, number

    def target(self, target: Any) -> Any:
        """Return what a loss is to be computed against; the snapshot may know the target that it was."""
        trials, trial, inputs = self._trials, self._trials.trial, self._trials.trial.inputs
        is_known = trials.is_active and trial.is_begun and inputs.targets
        if not is_known or not isinstance(target, self._torch.Tensor):
            return target
        batch, samples = inputs.targets[min(inputs.judged, len(inputs.targets) - 1)]
        inputs.judged += 1
        return self._driver.attempt(
            lambda: batch.part(samples, None, self._driver.repeats_samples)["target"].to(target.device)
        )

    def _is_wanted(self, module: Any) -> bool:
        """Return whether the snapshot's module was called as this one is; the snapshot may not tell."""
        names = {batch.name for batch, _ in self._trials.trial.inputs.called}
        if not names or None in names or not private_api.has_children(module):
            return not names or None in names
        return bool(self._driver.attempt(lambda: self._built.name_of(module) in names))

    def _is_evaluating(self, module: Any) -> bool:
        """Return whether the module is not being trained, where the snapshot's models were."""
        flags = [(model.get("training") or {}).get("") for model in self._header.models]
        is_model = private_api.has_children(module)
        return (
            is_model and not module.training and bool(flags) and all(flags) and any(True for _ in module.parameters())
        )


def _are_alike(one: Any, other: Any) -> bool:
    """Whether a variable of the script's holds what it held when the snapshot was made, and no result of the step."""
    ours, theirs = ([(type(part), part.dtype) for part in parts(value)] for value in (one, other))
    is_result = any(getattr(part, "requires_grad", False) for part in parts(one))
    return type(one) is type(other) and ours == theirs and not is_result


def _put_into(value: Any, like: Any) -> Any:
    """The value, in the script's own tensor where gradients flow through that to what the script computed it from."""
    if like.requires_grad and (like.shape, like.dtype) == (value.shape, value.dtype):
        try:
            like.data.copy_(value)
        except RuntimeError:  # it is expanded: several of its elements are one
            return value
        return like
    return value


def _moved(torch: Any, value: Any, like: Any) -> Any:
    """Return the snapshot's tensors on the devices where the script's own are."""
    if isinstance(value, torch.Tensor):
        if not isinstance(like, torch.Tensor):
            return value
        return _put_into(value.to(like.device), like)
    if type(value) in (list, tuple) and isinstance(like, (list, tuple)):
        likes = [*like, *[None] * (len(value) - len(like))]
        return type(value)([_moved(torch, item, other) for item, other in zip(value, likes)])
    if type(value) is dict and isinstance(like, dict):
        return {key: _moved(torch, value[key], like.get(key)) for key in value}
    return value


class TorchRedo:
    """Listens to batches, calls, backward passes and updates, and drives the trials by them."""

    def __init__(self, capture: CaptureSession) -> None:
        self._capture = capture
        self._driver = RedoDriver(capture)
        self._thread = RedoThread()
        self._hooks: EventHooks | None = None  # once PyTorch is there, as all that follows
        self._torch: Any
        self._trigger: Trigger
        self._built: ScriptObjects
        self._inputs: RedoInputs
        self.trials: StepTrials

    def begin(self, name: str, module: Any) -> None:
        """Attach to PyTorch, or to a module of it."""
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
            self._built = ScriptObjects(torch, driver.file, modules, driver.problem)
            self.trials = StepTrials(torch, driver, self._built, CapturedStep(driver.file, self._built))
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
                replace_targets(torch, self._inputs.target)
            except (AttributeError, TypeError):  # PyTorch before 2.0
                self._driver.problem("targets of losses are the script's own")

    def forget(self) -> None:
        """A forked child works for the loader."""
        if self._hooks is not None:
            self.trials.is_attached = self._driver.is_done = False

    def handlers(self) -> dict[type[events.TrainingEvent], events.Handler]:
        built = self._built
        outputs: dict[type[events.TrainingEvent], events.Handler] = {events.OutputComputed: self._output_computed}
        return {
            events.OptimizerMade: lambda event: built.made_optimizers.add(event.target),
            events.ScalerMade: lambda event: built.made_scalers.add(event.scaler),
            events.ScheduleMade: lambda event: built.made_schedules.add(event.schedule),
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
        """Nothing can be told of a step that is executed in part."""
        self._driver.give_up(f"{type(error).__name__}: {error}")

    def _output_computed(self, event: events.OutputComputed) -> None:
        trials = self.trials
        if not trials.is_active or not trials.trial.is_begun:
            return
        for tensor in tensors_in(event.output):
            if tensor.is_floating_point():
                trials.judge(ACTIVATION, trials.built.name_of(event.module), tensor)

    def _batch_due(self, event: events.BatchDue) -> None:
        self._driver.require_end()
        self._inputs.batch_due(event)

    def _forward_began(self, event: events.ForwardBegan) -> None:
        if self.trials.is_active:
            event.arguments, event.keywords = self._inputs.called(event.module, event.arguments, event.keywords)

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
        trial.passes += trial.is_begun
        trial.inputs.root = None
        if trial.is_begun and self.trials.captured.is_about_loss and not self._thread.in_closure:
            if all(loss.is_cpu for loss, _ in trial.losses):
                self.trials.concludes_early()

    def _loss_scaled(self, event: events.LossScaled) -> None:
        is_one = isinstance(event.loss, self._torch.Tensor)
        self._thread.scaled = (event.scaled, event.loss) if is_one else (None, None)

    def _clipping_due(self, _event: events.ClippingDue) -> None:
        """Captures look at gradients before they are clipped."""
        is_begun = self.trials.is_active and self.trials.trial.is_begun
        if is_begun and self._thread.scaled[0] is None and self._trigger.kind != CONDITION:
            self.trials.concludes_early()

    def _update_due(self, event: events.UpdateDue) -> str | None:
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
        if self._trigger.kind == PARAMETER and trials.trial.is_begun and trials.built.is_captured_optimizer(optimizer):
            event.state = True
            return None
        trials.arrived(optimizer)
        return SKIP

    def _evaluating(self, event: events.UpdateDue, closure: Callable[[], Any]) -> Callable[[], Any]:
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

    def _update_done(self, event: events.UpdateDone) -> None:
        """An update is made; of the captured one it is told what it made of the parameters."""
        if event.due is None or event.due.state is None:
            return
        optimizer, trial, built = event.due.target, self.trials.trial, self.trials.built
        is_told = self._trigger.kind == PARAMETER and trial.is_begun and built.is_captured_optimizer(optimizer)
        for name, parameter in built.parameters([optimizer]).items() if is_told else ():
            trial.updated += [parameter] if self.trials.judge(PARAMETER, name, parameter) else []
        self.trials.arrived(optimizer)

    def _update_ended(self, event: events.UpdateEnded) -> None:
        if not event.due.is_nested:
            self._thread.in_step = False

    def _part_due(self, event: events.PartDue) -> str | None:
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

    def _scaled_update_ended(self, event: events.ScaledUpdateEnded) -> None:
        if self.trials.is_active and not event.has_updated:
            self.trials.arrived(event.target)
