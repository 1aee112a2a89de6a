"""Proves step by step that a replay is its recording; no answer is valid from the first differing step on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from reprokit.core.tolerance import Tolerances
from reprokit.run_files import trails
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.categories.divergence_words import NAMES
from reprokit.verify.categories.divergences import LENGTH, RESULTS, SeriesDivergence, compared
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

    @property
    def holds(self) -> bool:
        """Whether at least one step was compared, and all compared steps are equal."""
        return bool(self.steps) and not self.diverged

    @property
    def parted_early(self) -> bool:
        """Whether a series diverges in the first quarter of its steps: equal runs are then unlikely to be luck."""
        return any(4 * (series.step + 1) <= self.steps[series.process, series.series] for series in self.diverged)

    def holds_until(self, process: str) -> int | None:
        """Return the first step of a process that differs; None if all compared steps are equal.

        Later steps than the compared ones are not proved.
        """
        if not any(key[0] == process for key in self.steps):
            return 0
        return min((series.step for series in self.diverged if series.process == process), default=None)


def prove(recording: RunDirectory, replay: RunDirectory) -> ReplayProof:
    """Compare the trails of a recording and its replay, as far as the replay went."""
    left, right = (sides(run, list(trails.read(run))) for run in (recording, replay))
    common = [key for key in left if key in right]
    steps = {key: min(left[key].series.count, right[key].series.count) for key in common}
    comparisons = {key: compared(left[key], right[key]) for key in common}
    diverged = [series for key, comparison in comparisons.items() for series in _parted(key, comparison)]
    results = [name for name in RESULTS if common and all(diff.quantities[name].known for diff in comparisons.values())]
    return ReplayProof(steps, tuple(sorted(diverged, key=lambda series: series.step)), tuple(results))


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
    """Yield the first difference of a series; an earlier end or a generator that no step draws from is none."""
    names = [name for name in comparison.differing if name != LENGTH and not comparison.is_idle(name)]
    if names:
        yield DivergedSeries(*key, comparison.step(names[0]), NAMES.get(names[0], names[0]))
