"""Steps of PyTorch's optimizers, also by closures and in parts: applied, or left out."""

from __future__ import annotations

import functools
import weakref

from ..patching import replace
from .torch_held import UPDATING
from .torch_phases import Phases, own_step, parts_of_steps
from .torch_updates import StateCopy
from .torch_watched import NotApplied, OptimizerSteps, drop_gradients

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .torch_alarms import Alarms
    from .torch_beginnings import Beginnings
    from .torch_checks import StepChecks
    from .torch_held import TrainingStep
    from .torch_training import Training

    Function = Callable[..., Any]


class StepEnds:
    """Ends the steps of threads."""

    def __init__(self, training: Training, alarms: Alarms, beginnings: Beginnings) -> None:
        self._watched = training.watched
        self._alarms = alarms
        self._arm = beginnings.arm

    def applied(self, held: TrainingStep, record: OptimizerSteps) -> None:
        """A step was made."""
        record.stepped(held.round)
        watched, epoch = self._watched, held.start.epoch
        watched.steps += 1
        if len(watched.records) > 1:
            held.start.note_update()
        if epoch is not None:
            epoch.steps += 1
        self.end(held, record)

    def skipped(self, held: TrainingStep, record: OptimizerSteps) -> None:
        """A step is left out: this optimizer's turn has passed, that of others with the same gradients comes yet."""
        remaining = held.findings.skipped - {id(record)}
        record.stepped(held.round)
        self._watched.steps += 1
        self._alarms.put_buffers_back(held)
        self.end(held, record)
        held.findings.skipped = remaining

    def end(self, held: TrainingStep, record: OptimizerSteps) -> None:
        """The step is over, and the next module's call may begin another."""
        held.end(record)
        self._arm(held)


class Refusals:
    """Tells whether gradients may be applied; what is wrong with them is captured."""

    def __init__(self, training: Training, checks: StepChecks, alarms: Alarms) -> None:
        self._training = training
        self._checks = checks
        self._alarms = alarms

    def refuses(self, held: TrainingStep, record: OptimizerSteps, optimizer: Any) -> bool:
        """Whether the gradients must not be applied; where training is to stop it does so here."""
        if self._checks.is_fine(held, record, optimizer):
            return False
        if id(record) in held.findings.skipped:
            return True
        if self._training.is_recorded():
            return False
        records, watched = [record], self._training.watched
        if len(watched.records) > 1:
            records += watched.following(record, held.round)
        is_scaled = getattr(optimizer, "found_inf", None) is not None  # it skips on the device, by itself
        triggers = held.findings.triggers + self._checks.of_update(held, records, is_scaled)
        if triggers:
            self._alarms.alarm(held, records, triggers)
        return bool(triggers)

    def refuses_before_closure(self, held: TrainingStep, record: OptimizerSteps, optimizer: Any) -> bool:
        """Whether gradients that are there before a closure is called, which may be used too, must not be."""
        is_skipped = id(record) in held.findings.skipped
        return is_skipped or (held.round != record.round and self.refuses(held, record, optimizer))

    def refuses_evaluation(self, held: TrainingStep, record: OptimizerSteps, optimizer: Any, closure: _Closure) -> bool:
        """Whether what a closure came to must not be applied."""
        triggers = held.findings.triggers + self._checks.of_update(held, [record], is_scaled=False)
        if not triggers:
            if record.repeats and closure.copy is None:
                closure.copy = StateCopy(self._training.torch, [optimizer])
            return False
        if closure.has_moved and closure.copy is not None:
            closure.copy.put_back()
        self._alarms.alarm(held, [record], [trigger.with_(evaluation=closure.calls) for trigger in triggers])
        return True

    def is_ruinous(self, held: TrainingStep, record: OptimizerSteps) -> bool:
        """Whether an update of finite gradients has made parameters that are not finite; then it is taken back."""
        training = self._training
        if training.is_recorded() or not training.updates.is_ruined(record):
            return False
        triggers = training.snapshooter.parameter_triggers(training.models(), [record])
        training.updates.put_back(record)
        self._alarms.alarm(held, [record], triggers)
        return True


class Steps:
    """Tests gradients when an optimizer is about to apply them."""

    def __init__(self, training: Training, beginnings: Beginnings, refusals: Refusals, ends: StepEnds) -> None:
        self._training = training
        self._watched = training.watched
        self._attempt = training.capture.attempt
        self._beginnings = beginnings
        self._refusals = refusals
        self._ends = ends
        self._phases = Phases(training.torch, refusals, ends)

    def make_initializer(self, original: Function) -> Function:
        """Watch the optimizers that are made from now on."""
        attempt, is_compiling, watch, watched = self._attempt, self._training.is_compiling, self.watch, self._watched

        def initialize(optimizer: Any, *arguments: Any, **keywords: Any) -> None:
            original(optimizer, *arguments, **keywords)
            if not is_compiling() and watched.only is None:
                attempt(watch, optimizer)

        return initialize

    def watch(self, optimizer: Any) -> OptimizerSteps:
        """Watch the steps of an optimizer."""
        known = self._watched.records.get(id(optimizer))
        if known is not None and known.reference() is optimizer:
            return known
        record, held, mark = self._watched.add(optimizer), self._training.threads.held, self._training.mark
        held.buffers.forget()
        if not held.is_begun:
            self._beginnings.arm(held)
        for owner in type(optimizer).__mro__:
            if "step" in vars(owner) and owner is not object:
                replace(owner, "step", self._make_step, mark)
                break
        for owner, name in parts_of_steps(type(optimizer)):
            replace(owner, name, self._make_part(name), mark)
        return record

    def _make_step(self, original: Function) -> Function:
        is_compiling, take = self._training.is_compiling, self._step

        def step(self: Any, *arguments: Any, **keywords: Any) -> Any:
            if is_compiling():
                return original(self, *arguments, **keywords)
            return take(original, self, arguments, keywords)

        return step

    def _make_part(self, name: str) -> Callable[[Function], Function]:
        def make(original: Function) -> Function:
            is_compiling, take = self._training.is_compiling, self._part

            def part(self: Any, *arguments: Any, **keywords: Any) -> Any:
                if is_compiling():
                    return original(self, *arguments, **keywords)
                return take(name, original, self, arguments, keywords)

            return part

        return make

    def _part(self, name: str, original: Function, optimizer: Any, arguments: Any, keywords: Any) -> Any:
        """A part of a step, unless it must not be made."""
        held, record = self._training.threads.held, self._watched.records.get(id(optimizer))
        if held.is_updating or record is None:
            return original(optimizer, *arguments, **keywords)
        if self._attempt(self._phases.refuses, held, record, optimizer, name):
            drop_gradients([record])  # which the part may have been told to do
            return None
        phase, result = held.update.phase, original(optimizer, *arguments, **keywords)
        if phase is not None and phase.first != name:
            self._phases.made(held, record)
        return result

    def make_own_step(self, optimizer: Any, original: Function) -> Function:
        """Watch the step that a schedule has put in front of an optimizer's."""
        reference = weakref.ref(optimizer)

        @functools.wraps(original)
        def step(*arguments: Any, **keywords: Any) -> Any:
            def bare(_optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
                return original(*arguments, **keywords)

            return self._step(bare, reference(), arguments, keywords)

        return step

    def _step(self, original: Function, optimizer: Any, arguments: Any, keywords: Any) -> Any:
        """An optimizer's step, unless it must not be applied."""
        held, record = self._training.threads.held, self._watched.records.get(id(optimizer))
        if held.is_updating or (record is None and self._watched.only is not None):
            return original(optimizer, *arguments, **keywords)
        before, held.activity = held.activity, UPDATING
        try:
            if record is None or record.reference() is not optimizer:
                record = self.watch(optimizer)  # a copy, or one that was unpickled
            if record.thread != held.thread:
                record.thread = held.thread
                held.buffers.forget()
            closure = _closure_in(arguments, keywords) if arguments or keywords else None
            if closure is not None:
                return self._step_with_closure(original, optimizer, record, closure, arguments, keywords)
            if self._attempt(self._refusals.refuses, held, record, optimizer):
                self._ends.skipped(held, record)
                return None
            is_held = self._attempt(self._training.updates.before, held, record, optimizer)
            result = original(optimizer, *arguments, **keywords)
            if is_held and self._attempt(self._refusals.is_ruinous, held, record):
                self._ends.skipped(held, record)
            else:
                self._ends.applied(held, record)
            return result
        finally:
            held.activity = before

    def _step_with_closure(
        self,
        original: Function,
        optimizer: Any,
        record: OptimizerSteps,
        closure: Function,
        arguments: Any,
        keywords: Any,
    ) -> Any:
        """The closure's gradients are tested each time that it was called; what it moved before is put back."""
        held, refusals, is_own = self._training.threads.held, self._refusals, own_step(type(optimizer))
        if is_own and self._attempt(refusals.refuses_before_closure, held, record, optimizer):
            self._ends.skipped(held, record)
            drop_gradients([record])
            return None
        guarded = _Closure(closure)
        if is_own:  # it may move parameters before it calls the closure
            guarded.copy, guarded.has_moved = StateCopy(self._training.torch, [optimizer]), True

        def evaluate() -> Any:
            loss = guarded()
            if self._attempt(refusals.refuses_evaluation, held, record, optimizer, guarded):
                raise NotApplied
            return loss

        held.update.closure = evaluate
        try:
            if arguments:
                result = original(optimizer, evaluate, *arguments[1:], **keywords)
            else:
                result = original(optimizer, **{**keywords, "closure": evaluate})
        except NotApplied:
            self._ends.skipped(held, record)
            return guarded.loss
        finally:
            held.update.closure = None
        record.repeats = guarded.calls > 1 or (record.repeats and record.steps > 0)
        self._ends.applied(held, record)
        return result


def _closure_in(arguments: Any, keywords: Any) -> Function | None:
    closure = arguments[0] if arguments else keywords.get("closure")
    return closure if callable(closure) and not hasattr(closure, "_modules") else None


class _Closure:
    """A closure that is called by an optimizer, and what is known of its calls."""

    def __init__(self, closure: Function) -> None:
        self._closure = closure
        self.calls = 0
        self.loss: Any = None
        self.copy: StateCopy | None = None
        self.has_moved = False  # what the copy is of

    def __call__(self) -> Any:
        self.loss = self._closure()
        self.calls += 1
        self.has_moved = self.has_moved or self.calls > 1
        return self.loss
