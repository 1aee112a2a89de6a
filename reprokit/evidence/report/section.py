"""What a section of a report is: it reads the runs that the report is about, and fills some of its facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reprokit.verify.comparison import Comparison
from reprokit.verify.show.summary import RunSummary


@dataclass(frozen=True)
class Execution:
    """Results of the process that executed both runs, beyond their comparison."""

    failures: tuple[str, ...] = ()  # any of these makes the verdict "failed"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReportedRuns:
    """What a report is about: one run, or two that were compared."""

    summaries: Sequence[RunSummary]
    comparison: Comparison | None  # of a single run with itself, which lists its parts
    problem: str  # why there is no comparison
    execution: Execution | None  # set only if the process that makes the report executed both runs
    made: str  # when the report is made: ISO 8601, UTC
    is_dated: bool  # whether that date was set, and is none of a clock

    @property
    def first(self) -> RunSummary:
        return self.summaries[0]

    @property
    def last(self) -> RunSummary:
        return self.summaries[-1]

    @property
    def is_alone(self) -> bool:
        """Whether there is one run only, so that nothing was compared."""
        return len(self.summaries) == 1

    @property
    def of_two(self) -> Comparison | None:
        """The comparison of two runs; None where there is one run only, or none could be made."""
        return None if self.is_alone else self.comparison


Section = Callable[[ReportedRuns], Mapping[str, Any]]  # returns fields of AuditFacts by name
