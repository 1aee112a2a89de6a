"""Declares the results of a gate: cases by training, each with an outcome, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from reprokit.core.errors import EXIT_DIFFERENT, EXIT_IDENTICAL, EXIT_TROUBLE
from reprokit.model.states import SwitchedPart, SwitchOption, off_in
from reprokit.run_files.findings import Finding
from reprokit.verify.ignores import IgnoreUse, together

FORMAT: Final = 1
PASSED: Final = "passed"
FAILED: Final = "failed"
TROUBLE: Final = "trouble"  # undecided: no golden for this machine, a failed training, nothing compared
NOT_CHECKED: Final = "not checked"  # interrupted before the check

Outcome = Literal["passed", "failed", "trouble", "not checked"]
WORST_FIRST: Final[tuple[Outcome, ...]] = (FAILED, TROUBLE, NOT_CHECKED, PASSED)
EXIT_STATUS: Final = {PASSED: EXIT_IDENTICAL, FAILED: EXIT_DIFFERENT, TROUBLE: EXIT_TROUBLE, NOT_CHECKED: EXIT_TROUBLE}
NOTHING_COMPARED: Final = "comparison"  # name of the case if there was nothing to compare
PAIRED, VARIED, GOLDEN, REQUIRED = "paired", "varied", "golden", "required"
SUITES: Final = (PAIRED, VARIED, GOLDEN, REQUIRED)


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check."""

    suite: str  # "paired", "paired 2", "varied", "golden", "required"
    name: str  # name of an artifact, a metric or a requirement
    outcome: Outcome
    message: str = ""  # a sentence if it did not pass
    left: str = ""
    right: str = ""
    finding: str = ""  # id of the finding that it is about

    @property
    def words(self) -> str:
        """Return name and message; what a message begins with is not said twice."""
        category, _, part = self.name.partition(": ")
        name = category if part and self.message.startswith(part) else self.name
        return f"{name}: {self.message}" if self.message else name

    @property
    def kind(self) -> str:
        """Return the suite without its number."""
        return self.suite.partition(" ")[0]


class TrainingResult(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one training, and where its runs are."""

    name: str
    command: tuple[str, ...]
    directory: str  # working directory
    cases: tuple[Case, ...]
    runs: tuple[str, ...] = ()  # run directories
    pairs: tuple[tuple[str, str], ...] = ()  # directories of each recording and its replay
    seconds: float = 0.0
    findings: tuple[Finding, ...] = ()  # of its profile and rules
    notes: tuple[str, ...] = ()  # qualifications of the outcome
    switched_off: tuple[SwitchedPart, ...] = ()  # by the user, in any of the runs that were compared
    ignores: tuple[IgnoreUse, ...] = ()  # what was declared that it may differ, and how often that applied

    @property
    def unpassed(self) -> list[Case]:
        """Return the cases that did not pass."""
        return [case for case in self.cases if case.outcome != PASSED]

    @property
    def is_cut_short(self) -> bool:
        """Return whether an interruption left something unchecked."""
        return any(case.outcome == NOT_CHECKED for case in self.cases)

    def outcome(self, suite: str = "") -> Outcome | None:
        """Return the outcome of the suites whose names begin with this; None if there are none."""
        outcomes = {case.outcome for case in self.cases if case.suite.startswith(suite)}
        return next((outcome for outcome in WORST_FIRST if outcome in outcomes), None)


class GateVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all trainings of a gate."""

    format: int = FORMAT
    reprokit: str
    started: str
    machine: str  # key of this machine, as in the paths of goldens
    trainings: tuple[TrainingResult, ...]
    interrupted: int = 0  # number of the signal that interrupted the gate; 0 if all was checked

    @property
    def outcome(self) -> Outcome:
        """Return the outcome of all trainings; it is trouble if nothing was checked."""
        outcomes = {training.outcome() or TROUBLE for training in self.trainings} or {TROUBLE}
        return next(outcome for outcome in WORST_FIRST if outcome in outcomes)

    @property
    def ignores(self) -> tuple[IgnoreUse, ...]:
        """Return how often the user's rules applied in all trainings."""
        return together(training.ignores for training in self.trainings)

    @property
    def switched_off(self) -> list[SwitchOption]:
        """Return what the user switched off in any training."""
        return off_in(part for training in self.trainings for part in training.switched_off)

    @property
    def exit_status(self) -> int:
        """Return the exit status; an interruption takes precedence over all outcomes."""
        return 128 + self.interrupted if self.interrupted else EXIT_STATUS[self.outcome]

    def __bool__(self) -> bool:
        """Return whether everything was checked and passed."""
        return self.exit_status == EXIT_IDENTICAL

    def unpassed(self) -> Iterator[tuple[TrainingResult, Case]]:
        """Yield every case that did not pass, with its training."""
        for training in self.trainings:
            yield from ((training, case) for case in training.unpassed)
