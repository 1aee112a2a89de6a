"""Proves step by step that a replay is its recording; no answer is valid from the first differing step on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from reprokit.core.tolerance import Tolerances
from reprokit.run_files import trails
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.categories import resumption
from reprokit.verify.categories.divergence_words import NAMES
from reprokit.verify.categories.divergences import LENGTH, RESULTS, SeriesDivergence, TrailSide, compared
from reprokit.verify.categories.match import match
from reprokit.verify.categories.trails import Key, sides
from reprokit.verify.read.metric_lines import END_WEIGHTS


@dataclass(frozen=True)
class DivergedSeries:
    """The first step in which a replay's series differs from its recording's, and the differing quantity."""

    process: str
    series: str
    step: int
    quantity: str  # "loss": as the trail's page names them


@dataclass(frozen=True)
class ReplayProof:
    """What the trails of a recording and of its replay prove about each process."""

    steps: Mapping[Key, int]  # number compared, by process and series; of series that both have
    diverged: tuple[DivergedSeries, ...] = ()  # the earliest first
    results: tuple[str, ...] = ()  # of steps, such as "gradients", that both have of every compared series
    every: int = 1  # of how many steps the trail of one of them has one

    @property
    def holds(self) -> bool:
        """Whether at least one step was compared, and all compared steps are equal."""
        return bool(self.steps) and not self.diverged

    @property
    def parted_early(self) -> bool:
        """Whether a series diverges in the first quarter of its steps: equal runs are then unlikely to be luck."""
        return any(4 * (series.step + 1) <= self.steps[series.process, series.series] for series in self.diverged)

    def until(self, step: int) -> ReplayProof:
        """Return the proof of the steps before this one."""
        steps = {key: min(count, step) for key, count in self.steps.items()}
        return replace(self, steps=steps, diverged=tuple(series for series in self.diverged if series.step < step))

    def holds_until(self, process: str) -> int | None:
        """Return the first step of a process that differs; None if all compared steps are equal.

        Later steps than the compared ones are not proved.
        """
        if not any(key[0] == process for key in self.steps):
            return 0
        return min((series.step for series in self.diverged if series.process == process), default=None)


def prove(
    recording: RunDirectory,
    replay: RunDirectory,
    skipped: Mapping[str, int] = MappingProxyType({}),
    resumed_at: int = 0,
) -> ReplayProof:
    """Compare the trails of a recording and its replay, as far as the replay went.

    `skipped` says of how many steps, by series, the replay left out what they compute; `resumed_at`, which step of the
    recording is the first of a replay that resumes a checkpoint.
    """
    left, right = (sides(run, list(trails.read(run))) for run in (recording, replay))
    common = [key for key in left if key in right]
    counts = {key: min(left[key].series.count, right[key].series.count) for key in common}
    behind = {key: resumed_at or min(skipped.get(key[1], 0), counts[key]) for key in common}
    comparisons = {
        key: resumption.aligned(left[key], right[key], resumed_at)
        if resumed_at
        else compared(_later(left[key], behind[key]), _later(right[key], behind[key]))
        for key in common
    }
    steps = {key: comparison.compared_steps + behind[key] for key, comparison in comparisons.items()}
    diverged = [
        replace(series, step=series.step + behind[key])
        for key, comparison in comparisons.items()
        for series in _parted(key, comparison)
    ]
    results = [name for name in RESULTS if common and all(diff.quantities[name].known for diff in comparisons.values())]
    every = max((comparison.every for comparison in comparisons.values()), default=1)
    return ReplayProof(steps, tuple(sorted(diverged, key=lambda series: series.step)), tuple(results), every)


def _later(side: TrailSide, skipped: int) -> TrailSide:
    """Return a side without its first steps."""
    return replace(side, series=side.series.later(skipped)) if skipped else side


def with_end_weights(proof: ReplayProof, recording: RunDirectory, replay: RunDirectory) -> ReplayProof:
    """Return the proof, refuted for processes whose weights at the end differ although all compared steps are equal.

    They differ after the last step whose parameters the trail holds: TensorFlow's are not digested at each step.
    """
    runs = match(recording, replay, Tolerances())
    equal = {
        process: name for process, name in proof.steps if process not in {series.process for series in proof.diverged}
    }
    differing = {pair.key.process for pair in runs.of(END_WEIGHTS) if pair.differs} & equal.keys()
    known = known_parameters(recording) if differing else {}
    quantity = "digest of the weights at the end"
    refuted = [DivergedSeries(process, equal[process], known[process] + 1, quantity) for process in differing]
    return replace(proof, diverged=tuple(sorted([*proof.diverged, *refuted], key=lambda series: series.step)))


def known_parameters(run: RunDirectory) -> dict[str, int]:
    """Return, by process, the last step up to which all series hold parameters; -1 for none."""
    last_steps: dict[str, int] = {}
    for (process, _), side in sides(run, list(trails.read(run))).items():
        known = (step.number for step in side.series.steps() if step.parameters is not None)
        last = max(known, default=-1)
        last_steps[process] = min(last, last_steps.get(process, last))
    return last_steps


def _parted(key: Key, comparison: SeriesDivergence) -> Iterator[DivergedSeries]:
    """Yield the first difference of a series; an earlier end or a generator that no step draws from is none.

    Steps that a trail passed over before it are no longer proved.
    """
    names = [name for name in comparison.differing if name != LENGTH and not comparison.is_idle(name)]
    if names:
        step = comparison.looked_at_before(comparison.step(names[0])) + 1
        yield DivergedSeries(*key, step, NAMES.get(names[0], names[0]))
