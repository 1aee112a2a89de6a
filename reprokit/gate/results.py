"""What a gate found: cases by training, each with an outcome, and the verdict that follows from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from reprokit.errors import EXIT_DIFFERENT, EXIT_IDENTICAL, EXIT_TROUBLE
from reprokit.findings import Finding

FORMAT: Final = 1
PASSED: Final = "passed"
FAILED: Final = "failed"
TROUBLE: Final = "trouble"  # nobody can say: no golden for this machine, a training that failed, nothing compared
NOT_CHECKED: Final = "not checked"  # somebody asked for the end before it was

Outcome = Literal["passed", "failed", "trouble", "not checked"]
WORST_FIRST: Final[tuple[Outcome, ...]] = (FAILED, TROUBLE, NOT_CHECKED, PASSED)
EXIT_STATUS: Final = {PASSED: EXIT_IDENTICAL, FAILED: EXIT_DIFFERENT, TROUBLE: EXIT_TROUBLE, NOT_CHECKED: EXIT_TROUBLE}
PAIRED, VARIED, GOLDEN, REQUIRED = "paired", "varied", "golden", "required"
SUITES: Final = (PAIRED, VARIED, GOLDEN, REQUIRED)


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check."""

    suite: str  # "paired", "paired 2", "varied", "golden", "required"
    name: str  # of an artifact, a metric, a requirement
    outcome: Outcome
    message: str = ""  # a sentence, where it did not pass
    left: str = ""
    right: str = ""
    finding: str = ""  # the id of the one that it is about

    @property
    def kind(self) -> str:
        """The suite without its number."""
        return self.suite.partition(" ")[0]


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one training, and where its runs are."""

    name: str
    command: tuple[str, ...]
    directory: str  # where it is run
    cases: tuple[Case, ...]
    runs: tuple[str, ...] = ()  # their directories
    pairs: tuple[tuple[str, str], ...] = ()  # those of each recording and its replay
    seconds: float = 0.0
    findings: tuple[Finding, ...] = ()  # where they were looked for
    notes: tuple[str, ...] = ()  # what qualifies the outcome

    @property
    def unpassed(self) -> list[Case]:
        """The cases that did not pass."""
        return [case for case in self.cases if case.outcome != PASSED]

    @property
    def is_cut_short(self) -> bool:
        """Whether an interruption left something unchecked."""
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
    machine: str  # key under which goldens of such a machine are kept
    trainings: tuple[Judged, ...]
    interrupted: int = 0  # the number of the signal by which somebody asked for the end, where anything is not checked

    @property
    def outcome(self) -> Outcome:
        """The outcome of all trainings. Nothing checked is trouble: silence never passes a gate."""
        outcomes = {one.outcome() or TROUBLE for one in self.trainings} or {TROUBLE}
        return next(outcome for outcome in WORST_FIRST if outcome in outcomes)

    @property
    def exit_status(self) -> int:
        """The exit status; that of an interruption comes before all others."""
        return 128 + self.interrupted if self.interrupted else EXIT_STATUS[self.outcome]

    def unpassed(self) -> Iterator[tuple[Judged, Case]]:
        """Yield every case that did not pass, with its training."""
        for training in self.trainings:
            yield from ((training, case) for case in training.unpassed)
