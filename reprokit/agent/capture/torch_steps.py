"""Steps of PyTorch's optimizers, also by closures and in parts: applied, or left out."""

from __future__ import annotations

import functools
import weakref

from ..patching import replace
from .settings import ROLLBACK
from .torch_beginnings import HOOK, Beginnings
from .torch_held import Held
from .torch_phases import Phases, own_step, parts_of_steps
from .torch_state import Copy
from .torch_watched import NotApplied, Record, drop_gradients

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Function = Callable[..., Any]


class Steps(Beginnings):
    """Tests gradients when an optimizer is about to apply them."""

    def _attach(self, torch: Any) -> None:
        super()._attach(torch)
        self._phases = Phases(torch, self)

    def _make_initializer(self, original: Function) -> Function:
        attempt, is_compiling, record = self._capture.attempt, self._is_compiling, self._record

        def initialize(optimizer: Any, *arguments: Any, **keywords: Any) -> None:
            original(optimizer, *arguments, **keywords)
            if not is_compiling() and self._only is None:
                attempt(record, optimizer)

        return initialize

    def _record(self, optimizer: Any) -> Record:
        known = self._watched.records.get(id(optimizer))
        if known is not None and known.reference() is optimizer:
            return known
        record = self._watched.add(optimizer)
        self._threads.held.buffers.known = False
        if not self._threads.held.armed and not self._threads.held.began:
            self._arm(self._threads.held)
        for owner in type(optimizer).__mro__:
            if "step" in vars(owner) and owner is not object:
                replace(owner, "step", self._make_step, self._mark)
                break
        for owner, name in parts_of_steps(type(optimizer)):
            replace(owner, name, self._make_part(name), self._mark)
        return record

    def _make_step(self, original: Function) -> Function:
        is_compiling, take = self._is_compiling, self._step

        def step(self: Any, *arguments: Any, **keywords: Any) -> Any:
            if is_compiling():
                return original(self, *arguments, **keywords)
            return take(original, self, arguments, keywords)

        return step

    def _make_part(self, name: str) -> Callable[[Function], Function]:
        def make(original: Function) -> Function:
            is_compiling, take = self._is_compiling, self._part

            def part(self: Any, *arguments: Any, **keywords: Any) -> Any:
                if is_compiling():
                    return original(self, *arguments, **keywords)
                return take(name, original, self, arguments, keywords)

            return part

        return make

    def _part(self, name: str, original: Function, optimizer: Any, arguments: Any, keywords: Any) -> Any:
        """A part of a step, unless it must not be made."""
        held, record = self._threads.held, self._watched.records.get(id(optimizer))
        if held.inside or record is None:
            return original(optimizer, *arguments, **keywords)
        if self._capture.attempt(self._phases.refuses, held, record, optimizer, name):
            drop_gradients([record])  # which the part may have been told to do
            return None
        phase, result = held.phase, original(optimizer, *arguments, **keywords)
        if phase is not None and phase.first != name:
            self._phases.made(held, record)
        return result

    def _make_own_step(self, optimizer: Any, original: Function) -> Function:
        reference = weakref.ref(optimizer)

        @functools.wraps(original)
        def step(*arguments: Any, **keywords: Any) -> Any:
            def bare(_optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
                return original(*arguments, **keywords)

            return self._step(bare, reference(), arguments, keywords)

        return step

    def _step(self, original: Function, optimizer: Any, arguments: Any, keywords: Any) -> Any:
        """An optimizer's step, unless it must not be applied."""
        held, record = self._threads.held, self._watched.records.get(id(optimizer))
        if held.inside or (record is None and self._only is not None):
            return original(optimizer, *arguments, **keywords)
        held.inside = True
        try:
            if record is None or record.reference() is not optimizer:
                record = self._record(optimizer)  # a copy, or one that was unpickled
            if record.thread != held.thread:
                record.thread, held.buffers.known = held.thread, False
            if arguments or keywords:
                closure = arguments[0] if arguments else keywords.get("closure")
                if callable(closure) and not hasattr(closure, "_modules"):
                    if own_step(type(optimizer)) and self._capture.attempt(
                        self._refuses_before, held, record, optimizer
                    ):
                        self.skipped(held, record)
                        drop_gradients([record])
                        return None
                    return self._step_with_closure(original, optimizer, record, closure, arguments, keywords)
            if not self._is_fine(held, record, optimizer) and self._capture.attempt(
                self._refuses, held, record, optimizer
            ):
                self.skipped(held, record)
                return None
            is_held = self._capture.attempt(self._updates.before, held, record, optimizer)
            result = original(optimizer, *arguments, **keywords)
            if is_held and self._capture.attempt(self._is_ruinous, held, record):
                self.skipped(held, record)
            else:
                self.applied(held, record)
            return result
        finally:
            held.inside = False

    def _is_ruinous(self, held: Held, record: Record) -> bool:
        """Whether an update of finite gradients has made parameters that are not finite; then it is taken back."""
        if self._is_recorded() or not self._updates.is_ruined(record):
            return False
        triggers = self._snapshooter.parameter_triggers(self._models(), [record])
        self._updates.put_back(record)
        self._alarm(held, [record], triggers)
        return True

    def _is_fine(self, held: Held, record: Record, optimizer: Any) -> bool:
        """Whether the gradients of the only optimizer lie here and are finite, as in most steps."""
        if held.triggers or held.skipped or held.far or held.counts or held.clean:
            return False
        if self._jumps or len(self._watched.records) > 1:
            return False
        try:
            found = self._gradients.of_groups(optimizer.param_groups)
            return self._gradients.are_finite_here(record.table, record.gradients()) if found is None else found
        except Exception:  # whatever it is, the slower way knows it, or says so
            return False

    def is_refused(self, held: Held, record: Record, optimizer: Any) -> bool:
        """Whether gradients must not be used; what is wrong with them is captured."""
        return not self._is_fine(held, record, optimizer) and self._refuses(held, record, optimizer)

    def _refuses(self, held: Held, record: Record, optimizer: Any) -> bool:
        """Whether the gradients must not be applied; where training is to stop it does so here."""
        if id(record) in held.skipped:
            return True
        if self._is_recorded():
            return False
        records = [record]
        if len(self._watched.records) > 1:
            records += self._watched.following(record, held.round)
        is_scaled = getattr(optimizer, "found_inf", None) is not None  # it skips on the device, by itself
        triggers = held.triggers + self._triggers(held, records, is_scaled)
        if not triggers:
            return False
        self._alarm(held, records, triggers)
        return True

    def applied(self, held: Held, record: Record) -> None:
        """A step was made."""
        record.stepped(held.round)
        self._steps += 1
        self._since_copy += 1
        if len(self._watched.records) > 1:
            held.note_update()
        if held.epoch is not None:
            held.epoch.steps += 1
        held.end(record)
        if not held.armed:
            held.armed = True
            self._armed += 1
            self._hooks[HOOK] = self._hook

    def skipped(self, held: Held, record: Record) -> None:
        """A step is left out: this optimizer's turn has passed, that of others with the same gradients comes yet."""
        remaining = held.skipped - {id(record)}
        record.stepped(held.round)
        self._steps += 1
        self._put_buffers_back(held)
        self._end(held, record)
        held.skipped = remaining

    def _put_buffers_back(self, held: Held) -> None:
        """What the forward pass of a step that is left out has moved, unless an older state takes its place."""
        if held.has_buffers and self._settings.action != ROLLBACK:
            self._capture.attempt(held.buffers.put_back)

    def _end(self, held: Held, record: Record) -> None:
        held.end(record)
        if not held.armed:
            self._arm(held)

    def _step_with_closure(
        self, original: Function, optimizer: Any, record: Record, closure: Function, arguments: Any, keywords: Any
    ) -> Any:
        """The closure's gradients are tested each time that it was called; what it moved before is put back."""
        held = self._threads.held
        held.closure = guarded = _Closure(self, held, record, optimizer, closure)
        if own_step(type(optimizer)):
            guarded.begin(self._torch)
        try:
            if arguments:
                result = original(optimizer, guarded, *arguments[1:], **keywords)
            else:
                result = original(optimizer, **{**keywords, "closure": guarded})
        except NotApplied:
            self.skipped(held, record)
            return guarded.loss
        finally:
            held.closure = None
        record.repeats = guarded.calls > 1 or (record.repeats and record.steps > 0)
        self.applied(held, record)
        return result

    def _refuses_before(self, held: Held, record: Record, optimizer: Any) -> bool:
        """Whether gradients that are there before a closure is called, which may be used too, must not be."""
        return id(record) in held.skipped or (held.round != record.round and self.is_refused(held, record, optimizer))

    def evaluated(self, held: Held, record: Record, optimizer: Any, closure: _Closure) -> None:
        """A closure was called; raises NotApplied where what it came to must not be applied."""
        if self._capture.attempt(self._refuses_evaluation, held, record, optimizer, closure):
            raise NotApplied

    def _refuses_evaluation(self, held: Held, record: Record, optimizer: Any, closure: _Closure) -> bool:
        triggers = held.triggers + self._triggers(held, [record], is_scaled=False)
        if not triggers:
            if record.repeats and closure.copy is None:
                closure.copy = Copy(self._torch, record.parameters(), [optimizer], ())
            return False
        triggers = [trigger.with_(evaluation=closure.calls) for trigger in triggers]
        if closure.has_moved and closure.copy is not None:
            closure.copy.put_back()
        self._alarm(held, [record], triggers)
        return True


class _Closure:
    """A closure whose gradients are tested before the optimizer gets its loss."""

    def __init__(self, steps: Steps, held: Held, record: Record, optimizer: Any, closure: Function) -> None:
        self._steps = steps
        self._held = held
        self._record = record
        self._optimizer = optimizer
        self._closure = closure
        self.calls = 0
        self.loss: Any = None
        self.copy: Copy | None = None
        self.has_moved = False  # what the copy is of

    def begin(self, torch: Any) -> None:
        """The optimizer may move parameters before it calls this."""
        self.copy = Copy(torch, self._record.parameters(), [self._optimizer], ())
        self.has_moved = True

    def __call__(self) -> Any:
        self.loss = self._closure()
        self.calls += 1
        self.has_moved = self.has_moved or self.calls > 1
        self._steps.evaluated(self._held, self._record, self._optimizer, self)
        return self.loss
