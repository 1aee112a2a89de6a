"""Saves the tensors that the rules of the plan choose, while a training goes on or is replayed."""

from __future__ import annotations

import os
import sys
from types import MappingProxyType

from .step_window import StepWindow
from .tensor_rules import TensorRules
from .tensor_writer import NumbersOf, TensorWriter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from ..agent import Agent
    from ..events import EventListener, Events

MAX_NAMED = 5  # tensors that are not seen
_REDUCED = {"float32": False, "float64": True}  # as they lie, and whether the library takes them for double


class SavedSteps:
    """Which step is under way, what of it is saved, and what saves it."""

    def __init__(self, agent: Agent, question: Mapping[str, Any], framework: str, events: Events) -> None:
        self._agent, self._events, self._question = agent, events, question["tensors"]
        self.buffer = int(self._question["buffer"])
        self.writer = TensorWriter(agent, framework, self.buffer)
        self.forgetting: list[Callable[[], object]] = []
        self.settling: list[Callable[[], object]] = []  # brings what is still on its way
        self.behind: Callable[[Callable[[], object]], object] = (
            _at_once  # does something once what is on its way is here
        )
        self.forget()
        os.register_at_fork(after_in_child=self.forget)
        agent.end_callbacks.append(self.finish)

    def forget(self) -> None:
        """At the beginning, and in a forked child."""
        self._window = StepWindow({})
        self.rules = TensorRules(self._question["rules"])
        self._calls: dict[tuple[str, str], int] = {}
        self._modes: dict[str, None] = {}
        self._unseen: dict[str, dict[str, None]] = {}  # names by why they are
        self.step = 0
        self.is_armed = self.rules.are_due(0)
        self.writer.forget()
        for forget in self.forgetting:
            forget()

    def at(self, name: str, mode: str) -> tuple[int, str, str, int]:
        """Return where a value belongs: step, mode, name, and how many of this name came before it in the step."""
        self._modes[mode] = None
        call = self._calls.get((name, mode), 0)
        self._calls[name, mode] = call + 1
        return self.step, mode, name, call

    def put_array(
        self,
        name: str,
        collections: Sequence[str],
        mode: str,
        read: Callable[[], Any],
        facts: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """Save an array of NumPy, or what it makes one of, where a rule is about it; None is of no use."""
        choice = self.rules.choice(name, collections, mode)
        if choice is None:
            return
        at, value, numpy = self.at(name, mode), read(), sys.modules["numpy"]
        array = None if value is None else numpy.ascontiguousarray(value)
        if array is None or array.dtype.hasobject:
            self.writer.drop(at[0], mode, name, "unreadable")
            return
        shape = numpy.shape(value)  # a 0-d array loses its own
        self.writer.declare(name, collections, lambda: facts)
        place = array.__array_interface__["data"][0], array.nbytes
        self.writer.put(at, choice, array.dtype.name, shape, place, lambda: _numbers(array))

    def not_seen(self, name: str, collections: Sequence[str], mode: str, why: str) -> None:
        """Say, where a rule is about a tensor, why it cannot be saved."""
        if self.rules.choice(name, collections, mode) is not None:
            self.writer.drop(self.step, mode, name, "unreadable")
            self._unseen.setdefault(why, {})[name] = None

    def updated(self, optimizer: object) -> None:
        """Count an update. It ends the step once something else comes than updates by other optimizers."""
        if self._window.updated(optimizer):
            self._listen(self.rules.are_due(self.step) or self.rules.are_due(self._window.step))

    def _listen(self, is_armed: bool) -> None:
        is_armed = is_armed and not self.writer.has_ended
        if is_armed != self.is_armed:
            self.is_armed = is_armed
            self._events.arrange()

    def go_on(self, optimizer: object = None) -> None:
        """Begin the next step where it is due: at a forward pass, a loss, or another update by the same optimizer."""
        if self.step < self._window.step and (optimizer is None or self._window.is_new(optimizer)):
            self._end_step()
            self.step = self._window.step
            self.rules.begin(self.step)
            self._listen(self.rules.are_due(self.step))

    def _end_step(self) -> None:
        if self._calls:
            step, modes = self.step, list(self._modes)
            self.behind(lambda: self.writer.passed(step, modes))
            self._calls, self._modes = {}, {}

    def finish(self) -> None:
        """Write what is left, and say which rules chose nothing; a process without steps has nothing to say."""
        for settle in self.settling:
            settle()
        self._end_step()
        self.writer.finish()
        if self._window.step:
            for why, names in self._unseen.items():
                more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
                self._agent.warn(f"--tensors: not saved, as {why}: {', '.join([*names][:MAX_NAMED])}{more}")
            for problem in self.rules.problems():
                self._agent.warn(problem)


def listener(agent: Agent, question: Mapping[str, Any], framework: str, events: Events) -> EventListener | None:
    """Return what saves tensors of this framework."""
    steps = SavedSteps(agent, question, framework, events)
    if framework == "torch":
        from .torch_tensors import PytorchTensors

        return PytorchTensors(agent, steps)
    if framework in ("xgboost", "lightgbm"):
        from .boosting_tensors import BoostingTensors

        return BoostingTensors(agent, steps)
    from .tensorflow_tensors import TensorflowTensors

    return TensorflowTensors(agent, steps)


def _at_once(then: Callable[[], object]) -> None:
    then()


def _numbers(array: Any) -> NumbersOf:
    """Return the numbers to be reduced: of complex ones their sizes."""
    if array.dtype.name not in _REDUCED:
        array = (abs(array) if array.dtype.kind == "c" else array).astype("float64")
    return NumbersOf(array.__array_interface__["data"][0], array.size, _REDUCED[array.dtype.name], array)
