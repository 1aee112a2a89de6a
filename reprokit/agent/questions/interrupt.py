"""Interrupts a training after a step by a signal that the process sends to itself, as a user's interrupt would."""

from __future__ import annotations

import glob
import os

from ..core.quiet_interrupts import ENOUGH, hide_interrupts
from ..core.step_window import StepWindow
from ..events.steps import UpdateDone
from ..operators.files import append

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..core.agent import Agent
    from ..events.steps import Events, Handler, TrainingEvent


def listener(agent: Agent, question: Mapping[str, Any], _framework: str, _events: Events) -> TrainingInterrupt:
    """Return the listener that interrupts this process."""
    return TrainingInterrupt(agent, question["interrupt"])


class TrainingInterrupt:
    """Interrupts after a given step, or after the first step that wrote a file matching the pattern."""

    def __init__(self, agent: Agent, asked: Mapping[str, Any]) -> None:
        self._agent = agent
        self._step, self._pattern, self._signal = asked["at"], asked["pattern"], asked["signal"]
        self._steps = StepWindow({})
        self._initial_files = self._files()
        self._answers = f"{agent.run}/answers"
        hide_interrupts(self._answers, lambda: agent.generation > 0)

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {UpdateDone: self._updated}

    def _files(self) -> set[tuple[str, int]]:
        files = set()
        for path in glob.glob(self._pattern, recursive=True) if self._pattern else ():
            try:
                files.add((path, os.stat(path).st_mtime_ns))
            except OSError:  # removed since it was listed
                pass
        return files

    def _updated(self, event: UpdateDone) -> None:
        if not self._steps.updated(event.optimizer):
            return
        is_due = self._steps.step == self._step if self._step is not None else not self._files() <= self._initial_files
        if is_due:
            append(f"{self._answers}/{ENOUGH}", b".")
            os.kill(os.getpid(), self._signal)
