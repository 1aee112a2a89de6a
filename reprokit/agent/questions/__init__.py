"""Answers questions put to a run: listeners that keep more of a training than every recording does.

A kind of question is a module here with `def listener(agent, question, framework, events) -> EventListener | None`.
Each adapter of a framework asks for the listeners when it has made its events.
"""

from __future__ import annotations

import json
import os

from ..core.quiet_interrupts import hide_interrupts
from ..events import UpdateDone
from ..observing.files import append
from .step_window import StepWindow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..agent import Agent
    from ..events import EventListener, Events, Handler, TrainingEvent

ANSWERS = "answers"  # in the run directory: what is kept, a directory that the launcher has made
# What plan.json asks for, and the module that answers it.
KINDS: dict[str, str] = {
    "operators": "operator_log",
    "state": "training_state",
    "interrupt": "interrupt",
    "tensors": "tensors",
}


def start(agent: Agent, text: bytes) -> None:
    """Have each framework's events told to those who answer the question in the plan."""
    question = json.loads(text.decode("utf-8"))["question"]
    agent.event_listeners.append(Questions(agent, question).listeners)
    if ends_early(question) or question.get("may_stop"):
        hide_interrupts(f"{agent.run}/{ANSWERS}", lambda: agent.generation > 0)


def ends_early(question: Mapping[str, Any]) -> bool:
    """Return whether the replay is to be ended once the steps of the question are over."""
    return question["steps"].get("last") is not None and not question.get("to_end")


class Questions:
    """The question of this run, and who answers it."""

    def __init__(self, agent: Agent, question: Mapping[str, Any]) -> None:
        self._agent, self._question = agent, question
        if question.get("operators"):
            # JAX makes no events: what is executed is one step. The others are waited for by who logs PyTorch's.
            modules = ("jax", "torch._inductor.codecache", "torch._inductor.output_code")
            agent.listeners.append((modules, lambda name, _: self._make("operator_log", name, None)))
            if question["operators"].get("eager"):
                os.environ.update(TORCH_COMPILE_DISABLE="1", JAX_DISABLE_JIT="1")

    def listeners(self, framework: str, events: Events) -> list[EventListener]:
        """Return who listens to this framework's events."""
        asked = [module for kind, module in KINDS.items() if self._question.get(kind)]
        made = [self._agent.attempt(self._make, module, framework, events) for module in asked]
        listeners: list[EventListener] = [listener for listener in made if listener is not None]
        if ends_early(self._question):
            listeners.append(WindowEnd(self._agent, self._question))
        return listeners

    def _make(self, module: str, framework: str, events: Events | None) -> EventListener | None:
        from importlib import import_module

        make = import_module(f"{__name__}.{module}").listener
        listener: EventListener | None = make(self._agent, self._question, framework, events)
        return listener


class WindowEnd:
    """Tells the launcher when this process has taken the steps of the question; told after all who answer it."""

    def __init__(self, agent: Agent, question: Mapping[str, Any]) -> None:
        self._agent, self._window = agent, StepWindow(question["steps"])

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {UpdateDone: self._updated}

    def _updated(self, event: UpdateDone) -> None:
        was_over = self._window.is_over
        if self._window.updated(event.optimizer):
            if self._window.step == 1:
                append(f"{self._agent.run}/{ANSWERS}/stepped", b".")
            if self._window.is_over and not was_over:
                append(f"{self._agent.run}/{ANSWERS}/answered", b".")
