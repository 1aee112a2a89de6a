"""Counts the steps whose tensors are saved, and chooses these tensors by the rules of the plan."""

from __future__ import annotations

import os
import sys
from types import MappingProxyType

from ..core.step_window import TrainingSteps
from ..questions import ends_early, last_step, report_steps
from .tensor_rules import TensorRules
from .tensor_writer import NumberArray, SavePlan, TensorWriter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from ..core.agent import Agent
    from ..events.steps import Events

NOT_SAVED = "tensors-not-saved"  # code of warnings
MAX_NAMED = 5  # unsaved tensors in a warning
_REDUCED = {"float32": False, "float64": True}  # dtypes reduced without a copy: whether they are double


class SavedSteps:
    """The current step, the rules that choose its tensors, and the writer that saves them."""

    def __init__(self, agent: Agent, question: Mapping[str, Any], framework: str, events: Events) -> None:
        self._agent, self._events, self._question = agent, events, question["tensors"]
        self._last: int | None = last_step(question) if ends_early(question) else None
        self.buffer = int(self._question["buffer"])
        self.writer = TensorWriter(agent, framework, self.buffer)
        self.forget_callbacks: list[Callable[[], object]] = []
        self.flush_callbacks: list[Callable[[], object]] = []  # wait for pending copies
        self.after_copies: Callable[[Callable[[], object]], object] = (
            _at_once  # calls a callback once pending copies are complete
        )
        self.forget()
        os.register_at_fork(after_in_child=self.forget)
        agent.end_callbacks.append(self.finish)

    def forget(self) -> None:
        """Start at step 0, also in a forked child."""
        self._training = TrainingSteps()
        self.rules = TensorRules(self._question["rules"])
        self._calls: dict[tuple[str, str], int] = {}
        self._modes: dict[str, None] = {}
        self._unsaved: dict[str, dict[str, None]] = {}  # names by reason
        self.step = 0
        self.is_armed = self.rules.is_any_due
        self.writer.forget()
        for forget in self.forget_callbacks:
            forget()

    def value_key(self, name: str, mode: str) -> tuple[int, str, str, int]:
        """Return the key of a value: step, mode, name, and how many values of this name came before in the step."""
        self._modes[mode] = None
        call = self._calls.get((name, mode), 0)
        self._calls[name, mode] = call + 1
        return self.step, mode, name, call

    def put_again(self, plan: SavePlan, arrays: bytes, reduce: Callable[[bytes, int], list[float]]) -> bool:
        """Save values by a plan that fits them; False if a value of such a name came before in the step."""
        if not plan.calls.keys().isdisjoint(self._calls):
            return False
        self._calls.update(plan.calls)
        self._modes[plan.lines[0].mode] = None
        self.writer.put_again(self.step, plan, arrays, reduce)
        return True

    def put_array(
        self,
        name: str,
        collections: Sequence[str],
        mode: str,
        read: Callable[[], Any],
        facts: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """Save a NumPy array, or what can be made one, if a rule chooses it; None is recorded as unreadable."""
        choice = self.rules.choice(name, collections, mode)
        if choice is None:
            return
        key, value, numpy = self.value_key(name, mode), read(), sys.modules["numpy"]
        array = None if value is None else numpy.ascontiguousarray(value)
        if array is None or array.dtype.hasobject:
            self.writer.drop(key[0], mode, name, "unreadable")
            return
        shape = numpy.shape(value)  # a 0-d array loses its own
        self.writer.declare(name, collections, lambda: facts)
        memory = array.__array_interface__["data"][0], array.nbytes
        self.writer.put(key, choice, array.dtype.name, shape, memory, lambda: _numbers(array))

    def report_unsaved(
        self, name: str, collections: Sequence[str], mode: str, reason: str, why: str = "unreadable"
    ) -> None:
        """Record why a tensor cannot be saved, if a rule chooses it: in words, and as the index has it."""
        if self.rules.choice(name, collections, mode) is not None:
            self.writer.drop(self.step, mode, name, why)
            self._unsaved.setdefault(reason, {})[name] = None

    def expect(self, optimizer: object) -> None:
        """Let the first step last until this optimizer has updated, or another one updates again."""
        self._training.expect(optimizer)

    def begin_backward(self) -> None:
        """Begin the next step if it is due. Must be called whether or not the steps are armed."""
        self._training.begin_backward()

    def updated(self, optimizer: object) -> None:
        """Count an update. The step ends with the next event that is no update by another optimizer."""
        training, before = self._training, self._training.count
        training.updated(optimizer)
        if self._last is not None:
            for count in range(before, training.count):
                report_steps(self._agent, count + 1, self._last)
        self._listen(self.rules.are_due(training.step) or self.rules.are_due(training.step + 1))

    def _listen(self, is_armed: bool) -> None:
        is_armed = is_armed and not self.writer.has_ended
        if is_armed != self.is_armed:
            self.is_armed = is_armed
            self._events.arrange()

    def begin_due_step(self, optimizer: object = None) -> None:
        """Begin the next step if it is due: at a forward pass, a loss, or another update by the same optimizer."""
        step = self._training.next_step(optimizer)
        if self.step < step:
            self._end_step()
            self.step = step
            self.rules.begin(self.step)
            self._listen(self.rules.is_any_due)

    def _end_step(self) -> None:
        if self._calls:
            step, modes = self.step, list(self._modes)
            self.after_copies(lambda: self.writer.end_step(step, modes))
            self._calls, self._modes = {}, {}

    def finish(self) -> None:
        """Write what remains, and warn of rules that chose nothing, unless the process took no steps."""
        for flush in self.flush_callbacks:
            flush()
        self._end_step()
        self.writer.finish(self._training.summary())
        if self._training.count:
            for reason, names in self._unsaved.items():
                more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
                self._agent.warn(
                    f"--tensors: not saved, as {reason}: {', '.join([*names][:MAX_NAMED])}{more}", NOT_SAVED
                )
            for problem in self.rules.problems():
                self._agent.warn(problem, NOT_SAVED)


def _at_once(callback: Callable[[], object]) -> None:
    callback()


def _numbers(array: Any) -> NumberArray:
    """Return an array as numbers to be reduced: of complex numbers, their absolute values."""
    if array.dtype.name not in _REDUCED:
        array = (abs(array) if array.dtype.kind == "c" else array).astype("float64")
    return NumberArray(array.__array_interface__["data"][0], array.size, _REDUCED[array.dtype.name], array)
