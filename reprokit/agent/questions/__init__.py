"""Answers questions about a run: listeners that save more of a training than a plain recording does.

A kind of question is a module with `def listener(agent, question, framework, events) -> EventListener | None`.
Each framework's adapter requests the listeners once it has created its events.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys

from ..core.quiet_interrupts import ENOUGH, hide_interrupts
from ..core.step_window import StepWindow
from ..events.steps import UpdateDone
from ..operators.files import append

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..core.agent import Agent
    from ..events.steps import EventListener, Events, Handler, TrainingEvent

ANSWERS = "answers"  # in the run directory: the answers, a directory that the launcher has created
# Keys of the question in plan.json, and the modules that answer them.
KINDS: dict[str, str] = {
    "from_keyframe": "state.fast_forward",  # before those that see what it does
    "keyframes": "state.keyframes",
    "operators": "operators.log",
    "state": "state",
    "interrupt": "questions.interrupt",
    "tensors": "tensors",
    "debug": "questions.debugger",
}
# Modules that answer for TensorFlow in place of those.
OF_TENSORFLOW = {"state.fast_forward": "state.tensorflow_forward", "state.keyframes": "state.tensorflow_keyframes"}


def start(agent: Agent, question: Mapping[str, Any]) -> None:
    """Register listeners for the question in the plan, for the events of each framework."""
    agent.event_listeners.append(Questions(agent, question).listeners)
    # Background jobs of shell scripts ignore SIGINT. The script's own handlers are set after this.
    if question.get("interrupt") and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if ends_early(question) or question.get("may_stop"):
        hide_interrupts(f"{agent.run}/{ANSWERS}", lambda: agent.generation > 0)
        # The launcher may interrupt while the last answers are being written, or just before.
        atexit.register(pass_over_interrupts)  # runs before the agent's own end
        agent.end_callbacks.insert(0, pass_over_interrupts)  # of children of multiprocessing
        agent.last_callbacks.append(lambda: die_if_enough(agent))


def pass_over_interrupts() -> None:
    """Handle interrupts by doing nothing. One that ignores them would get SIGTERM from the launcher instead."""
    signal.signal(signal.SIGINT, lambda _number, _frame: None)
    signal.siginterrupt(signal.SIGINT, False)


def die_if_enough(agent: Agent) -> None:
    """Die of the interrupt that ended this replay: to take the interpreter apart costs as much as many steps."""
    if agent.generation == 0 and os.path.exists(f"{agent.run}/{ANSWERS}/{ENOUGH}"):
        for stream in (sys.stdout, sys.stderr):
            agent.attempt(stream.flush)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def ends_early(question: Mapping[str, Any]) -> bool:
    """Return whether the replay ends after the last step of the question."""
    return question["steps"].get("last") is not None and not question.get("to_end")


def last_step(question: Mapping[str, Any]) -> int:
    """Return the step after which a replay that ends early has nothing more to do."""
    return int(question.get("proved_by") or question["steps"]["last"])


class Questions:
    """The question that this run is asked, and the listeners that answer it."""

    def __init__(self, agent: Agent, question: Mapping[str, Any]) -> None:
        self._agent, self._question = agent, question
        if question.get("operators"):
            # JAX has no events: all its calls are one step. PyTorch's call log waits for the other modules.
            modules = ("jax", "torch._inductor.codecache", "torch._inductor.output_code")
            agent.listeners.append((modules, lambda name, _: self._make_listener(KINDS["operators"], name, None)))
        if question.get("eager"):
            os.environ.update(TORCH_COMPILE_DISABLE="1", JAX_DISABLE_JIT="1")

    def listeners(self, framework: str, events: Events) -> list[EventListener]:
        """Return the listeners for this framework's events."""
        modules = [module for kind, module in KINDS.items() if self._question.get(kind)]
        created = [self._agent.attempt(self._make_listener, module, framework, events) for module in modules]
        listeners: list[EventListener] = [listener for listener in created if listener is not None]
        if ends_early(self._question) and not self._question.get("tensors"):  # these number steps in their own way
            listeners.append(WindowEnd(self._agent, self._question))
        return listeners

    def _make_listener(self, module: str, framework: str, events: Events | None) -> EventListener | None:
        from importlib import import_module

        module = OF_TENSORFLOW.get(module, module) if framework == "tensorflow" else module
        make = import_module(f"{__package__.rpartition('.')[0]}.{module}").listener
        listener: EventListener | None = make(self._agent, self._question, framework, events)
        return listener


class WindowEnd:
    """Tells the launcher that this process has taken the question's steps; added after the other listeners."""

    def __init__(self, agent: Agent, question: Mapping[str, Any]) -> None:
        self._agent, self._last, self._window = agent, last_step(question), StepWindow(question["steps"])

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {UpdateDone: self._updated}

    def _updated(self, event: UpdateDone) -> None:
        if self._window.updated(event.optimizer):
            report_steps(self._agent, self._window.step, self._last)


def report_steps(agent: Agent, count: int, last: int) -> None:
    """Tell the launcher that this process has taken its first step, or the last step of the question."""
    if count == 1:
        append(f"{agent.run}/{ANSWERS}/stepped", b".")
    if count == last + 1:
        append(f"{agent.run}/{ANSWERS}/answered", b".")
