"""Proves, step by step, that a replay is its recording: from the step on where it is not, no answer holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from reprokit import trails
from reprokit.rundir import RunDirectory
from reprokit.verify.compare.divergences import LENGTH, NAMES, TrailSide, compared
from reprokit.verify.compare.trails import Key, sides


@dataclass(frozen=True)
class PartedSeries:
    """The first step in which a replay's series is not its recording's, and the quantity that is another."""

    process: str
    series: str
    step: int
    quantity: str  # "loss": as the trail's page names them


@dataclass(frozen=True)
class ReplayProof:
    """What the trails of a recording and of its replay prove about each process."""

    steps: Mapping[Key, int]  # compared, by process and series; a series that only one of both has is not in it
    parted: tuple[PartedSeries, ...] = ()  # the earliest first

    @property
    def holds(self) -> bool:
        """Whether at least one step was compared, and all that were are equal."""
        return bool(self.steps) and not self.parted

    @property
    def parted_early(self) -> bool:
        """Whether a series parts in the first quarter of its steps: equal steps to the end are hardly luck then."""
        return any(4 * (series.step + 1) <= self.steps[series.process, series.series] for series in self.parted)

    def holds_until(self, process: str) -> int | None:
        """Return the first step of a process that is another one; None where all that were compared are equal.

        Of steps beyond the compared ones nothing is proved either.
        """
        if not any(key[0] == process for key in self.steps):
            return 0
        return min((series.step for series in self.parted if series.process == process), default=None)


def prove(recording: RunDirectory, replay: RunDirectory) -> ReplayProof:
    """Compare the trails of both, as far as the replay went."""
    left, right = (sides(run, list(trails.read(run))) for run in (recording, replay))
    common = [key for key in left if key in right]
    steps = {key: min(left[key].series.count, right[key].series.count) for key in common}
    parted = [series for key in common for series in _parted(key, left[key], right[key])]
    return ReplayProof(steps, tuple(sorted(parted, key=lambda series: series.step)))


def _parted(key: Key, left: TrailSide, right: TrailSide) -> Iterator[PartedSeries]:
    """Yield the first difference of a series; that the replay was ended earlier is none."""
    comparison = compared(left, right)
    names = [name for name in comparison.differing if name != LENGTH]
    if names:
        yield PartedSeries(*key, comparison.step(names[0]), NAMES.get(names[0], names[0]))
