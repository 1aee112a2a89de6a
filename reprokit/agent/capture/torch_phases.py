"""Optimizers that step in several parts, each after a backward pass of its own, as SAM's first_step and second_step.

The first part moves the parameters, by gradients that are tested before. What it moves is kept until the step is over.
"""

from __future__ import annotations

from .torch_updates import StateCopy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .torch_held import TrainingStep
    from .torch_steps import Refusals, StepEnds
    from .torch_watched import OptimizerSteps


class Phase:
    """The step that a thread is in the middle of."""

    def __init__(self, first: str, copy: StateCopy | None) -> None:
        self.first = first  # the part that it began with
        self.copy = copy  # of what that has moved; None where it was refused


class Phases:
    """Takes the parts of steps."""

    def __init__(self, torch: Any, refusals: Refusals, ends: StepEnds) -> None:
        self._torch = torch
        self._refusals = refusals
        self._ends = ends

    def refuses(self, held: TrainingStep, record: OptimizerSteps, optimizer: Any, name: str) -> bool:
        """Whether this part must not be made."""
        phase = held.update.phase
        if phase is None or phase.first == name:
            self._end(held, record, phase)
            is_refused = self._refusals.refuses(held, record, optimizer)
            copy = None if is_refused else StateCopy(self._torch, [optimizer])
            held.update.phase = Phase(name, copy)
            return is_refused
        if phase.copy is not None and not self._refusals.refuses(held, record, optimizer):
            return False
        self._end(held, record, Phase(name, None))
        return True

    def _end(self, held: TrainingStep, record: OptimizerSteps, phase: Phase | None) -> None:
        if phase is not None and phase.copy is None:
            self._ends.skipped(held, record)
            held.findings.skipped = set()  # nor were the steps of the optimizers within it
            held.update.phase = None

    def made(self, held: TrainingStep, record: OptimizerSteps) -> None:
        """A part that is not the first was made, and with it, if there is one, the step of an optimizer within."""
        if held.update.phase is not None:
            self._ends.applied(held, record)
        else:
            record.stepped(held.round)
