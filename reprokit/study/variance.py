"""Computes how far runs of a setup that might have been equal differ in predictions and metrics."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice
from operator import ne
from pathlib import Path
from statistics import fmean, stdev
from typing import Final, Literal, NamedTuple

import msgspec

from reprokit.study import predictions, statistics, wording
from reprokit.study.facts import ClassSpread, Inconsistent, ProcessVariance, Source, Spread, Variance
from reprokit.study.results import Evaluation, MetricSeries, RunResult

Way = Literal["any two runs", "within pairs"]
Key = tuple[int, str]  # pair and part: names a run of a setup
Values = Mapping[Key, float | None]

SHUFFLED: Final = "runs predict other samples, or in another order: such predictions are not laid side by side"
MAX_NAMES: Final = 50  # evaluations, and metrics, reported per setup
MAX_CLASSES: Final = 20  # classes per evaluation
MAX_COMPARED: Final = 200_000_000  # predictions of a setup that are compared
MAX_TWO: Final = 100_000  # pairs of runs of a setup that are compared
MAX_HELD: Final = 50_000_000  # predictions in memory


@dataclass(frozen=True)
class SpreadSample:
    """The finished runs of a setup, and which of them might have been equal."""

    setup: str
    source: Source
    way: Way
    runs: Sequence[RunResult] = field(hash=False)

    def two(self) -> Iterator[tuple[RunResult, RunResult]]:
        """Yield every two runs to compare."""
        if self.way == "any two runs":
            return combinations(self.runs, 2)
        by_pair: dict[int, list[RunResult]] = {}
        for run in self.runs:
            by_pair.setdefault(run.pair, []).append(run)
        return ((runs[0], runs[1]) for runs in by_pair.values() if len(runs) == 2)


def way(source: Source) -> Way:
    """Return which runs might have been equal: any two, or those of a pair that has its own seed or recording."""
    return "any two runs" if source in ("both", "software") else "within pairs"


def variances(directory: Path, sample: SpreadSample) -> Iterator[Variance]:
    """Yield a row for each evaluation that any of the runs has."""
    names = dict.fromkeys(evaluation.name for run in sample.runs for evaluation in run.evaluations)
    predictions = _kept(directory, sample)
    for name in islice(names, MAX_NAMES):
        yield _variance(sample, name, predictions.get(name, {}))


def _variance(sample: SpreadSample, name: str, predictions: Mapping[Key, _RunPredictions]) -> Variance:
    evaluations = {_key(run): one for run in sample.runs for one in run.evaluations if one.name == name}
    accuracies = {key: one.accuracy for key, one in evaluations.items() if one.accuracy is not None}
    errors = {key: one.mae for key, one in evaluations.items() if one.mae is not None}
    rates = _rates(evaluations)
    classes = sorted(
        (ClassSpread(label=wording.short(label), spread=_spread(sample, values)) for label, values in rates.items()),
        key=lambda one: -(one.spread.largest or 0.0),
    )
    first = next(iter(evaluations.values()))
    inconsistent = _inconsistent(sample, evaluations, predictions)
    several: list[Values] = [*([accuracies] if accuracies else []), *([errors] if errors else []), *rates.values()]
    shuffled = any(one.truth != other.truth for one, other in _some(sample, predictions))
    differ = shuffled or any(_differ(sample, values) for values in several)
    any_compared = any(_key(one) in evaluations and _key(other) in evaluations for one, other in sample.two())
    row = Variance(
        source=sample.source,
        setup=sample.setup,
        evaluation=wording.short(name),
        task=first.task,
        way=sample.way,
        runs=len(evaluations),
        missing=len(sample.runs) - len(evaluations),
        accuracy=_spread(sample, accuracies) if accuracies else None,
        class_largest=classes[0].spread.largest if classes else None,
        class_deviation=max(
            (one.spread.deviation for one in classes if one.spread.deviation is not None), default=None
        ),
        class_label=classes[0].label if classes else "",
        classes=tuple(classes[:MAX_CLASSES]),
        classes_left_out=max(0, len(classes) - MAX_CLASSES),
        inconsistent=inconsistent,
        mae=_spread(sample, errors) if errors else None,
        zero=any_compared and not differ and not (inconsistent is not None and inconsistent.largest),
        notes=(*_notes(sample, evaluations), *([SHUFFLED] if shuffled else [])),
        sentence="",
    )
    return msgspec.structs.replace(row, sentence=wording.variance(row))


def _key(run: RunResult) -> Key:
    return run.pair, run.part


def _rates(evaluations: Mapping[Key, Evaluation]) -> dict[str, dict[Key, float | None]]:
    """Return the accuracy of each class in each run."""
    rates: dict[str, dict[Key, float | None]] = {}
    for key, evaluation in evaluations.items():
        for label in evaluation.labels:
            if label.count:
                rates.setdefault(label.label, {})[key] = label.correct / label.count
    return rates


def _spread(sample: SpreadSample, values: Values) -> Spread:
    usable_values = {key: value for key, value in values.items() if value is not None and statistics.usable(value)}
    left_out = len(values) - len(usable_values)
    if sample.way == "any two runs":
        return statistics.spread(list(usable_values.values()), left_out)
    both = [(_key(one), _key(other)) for one, other in sample.two()]
    pairs = [
        (usable_values[one], usable_values[other])
        for one, other in both
        if one in usable_values and other in usable_values
    ]
    return statistics.spread_within(pairs, left_out)


def _differ(sample: SpreadSample, values: Values) -> bool:
    """Return whether any two compared values differ; NaN equals NaN."""
    texts = {key: repr(value) for key, value in values.items()}
    if sample.way == "any two runs":
        return len(set(texts.values())) > 1
    return any(texts.get(_key(one)) != texts.get(_key(other)) for one, other in sample.two())


def _notes(sample: SpreadSample, evaluations: Mapping[Key, Evaluation]) -> Iterator[str]:
    missing = len(sample.runs) - len(evaluations)
    if missing:
        yield f"{missing} of {len(sample.runs)} finished runs do not have it"
    if len({evaluation.task for evaluation in evaluations.values()}) > 1:
        yield "some runs tell of a classification, others of a regression"
    counts = {evaluation.count for evaluation in evaluations.values()}
    if len(counts) > 1:
        yield f"runs have from {min(counts)} to {max(counts)} predictions: compared as far as both go"
    bad = sum(
        not statistics.usable(value)
        for evaluation in evaluations.values()
        for value in (evaluation.accuracy, evaluation.mae)
        if value is not None
    )
    if bad:
        yield f"{bad} of {len(evaluations)} runs have a value that is not a finite number: left out"


# ---- predictions -----------------------------------------------------------------------------------------------------


class _RunPredictions(NamedTuple):
    """The predictions of a run."""

    labels: array[int]
    truth: str  # digest of the true values


def _inconsistent(
    sample: SpreadSample, evaluations: Mapping[Key, Evaluation], predictions: Mapping[Key, _RunPredictions]
) -> Inconsistent | None:
    """Return the number of predictions in which two runs differ, if both predicted the same samples."""
    two = [(one.labels, other.labels) for one, other in _some(sample, predictions) if one.truth == other.truth]
    if not two:
        return None
    length = max(min(len(one), len(other)) for one, other in two)
    chosen = two[:: -(-len(two) * length // MAX_COMPARED) or 1]
    counts = [sum(map(ne, one, other)) if one != other else 0 for one, other in chosen]
    with_predictions = sum(bool(one.predictions) for one in evaluations.values())
    return Inconsistent(
        comparisons=len(chosen),
        predictions=length,
        largest=max(counts),
        mean=fmean(counts),
        deviation=stdev(counts) if len(counts) > 1 else None,
        sampled=len(chosen) < len(two) or len(predictions) < with_predictions or _step(len(predictions)) > 1,
    )


def _some(
    sample: SpreadSample, predictions: Mapping[Key, _RunPredictions]
) -> Iterator[tuple[_RunPredictions, _RunPredictions]]:
    """Yield every two runs to compare, or an even selection if there are too many."""
    both = ((_key(one), _key(other)) for one, other in sample.two())
    pairs_of_predictions = (
        (predictions[one], predictions[other]) for one, other in both if one in predictions and other in predictions
    )
    return islice(pairs_of_predictions, 0, None, _step(len(predictions)) if sample.way == "any two runs" else 1)


def _step(runs: int) -> int:
    return runs * (runs - 1) // 2 // MAX_TWO + 1


def _kept(directory: Path, sample: SpreadSample) -> dict[str, dict[Key, _RunPredictions]]:
    """Return the predictions by evaluation and run, as numbers that mean the same label in all runs."""
    numbers: dict[str, dict[str, int]] = {}
    vectors: dict[str, dict[Key, _RunPredictions]] = {}
    room = MAX_HELD
    for run in sample.runs:
        names = {
            of_evaluation.name: of_evaluation.predictions
            for of_evaluation in run.evaluations
            if of_evaluation.predictions
        }
        content = predictions.read(directory, next(iter(names.values()), "")) if room > 0 else {}
        for name, of_evaluation in content.items():
            if name in names:
                room -= len(of_evaluation.predicted) + len(of_evaluation.labels)
                numbers_of_labels = numbers.setdefault(name, {})
                common = [numbers_of_labels.setdefault(label, len(numbers_of_labels)) for label in of_evaluation.labels]
                labels = array("i", [common[position] for position in of_evaluation.predicted])
                vectors.setdefault(name, {})[_key(run)] = _RunPredictions(labels, of_evaluation.truth)
    return vectors


# ---- metrics through the run -----------------------------------------------------------------------------------------


def processes(sample: SpreadSample) -> tuple[list[ProcessVariance], int]:
    """Return a row for each metric that any of the runs has, and how many metrics are left out."""
    names = dict.fromkeys((series.name, series.by) for run in sample.runs for series in run.series if series.values)
    rows = [_process(sample, *name) for name in islice(names, MAX_NAMES)]
    return rows, max(0, len(names) - MAX_NAMES)


def _process(sample: SpreadSample, name: str, by: Literal["epoch", "step"]) -> ProcessVariance:
    series_by_run = {
        _key(run): series
        for run in sample.runs
        for series in run.series
        if (series.name, series.by) == (name, by) and series.values
    }
    lengths = [len(series.values) for series in series_by_run.values()]
    row = ProcessVariance(
        source=sample.source,
        setup=sample.setup,
        metric=wording.short(name),
        by=by,
        way=sample.way,
        runs=len(series_by_run),
        missing=len(sample.runs) - len(series_by_run),
        lengths=(min(lengths), max(lengths)),
        at=min(lengths),
        spread=_at_the_end(sample, series_by_run),
        notes=tuple(_process_notes(sample, series_by_run, by)),
        sentence="",
    )
    return msgspec.structs.replace(row, sentence=wording.process(row))


def _at_the_end(sample: SpreadSample, series_by_run: Mapping[Key, MetricSeries]) -> Spread:
    """Return the spread of the last values that all runs have; within pairs, that both have."""
    if sample.way == "any two runs":
        last = min(len(series.values) for series in series_by_run.values()) - 1
        return _spread(sample, {key: series.values[last] for key, series in series_by_run.items()})
    ends: dict[Key, float | None] = {}
    for both in sample.two():
        here = [series_by_run[_key(run)].values for run in both if _key(run) in series_by_run]
        if len(here) == 2:
            last = min(map(len, here)) - 1
            ends.update({_key(run): series_by_run[_key(run)].values[last] for run in both})
    return _spread(sample, ends)


def _process_notes(sample: SpreadSample, series_by_run: Mapping[Key, MetricSeries], by: str) -> Iterator[str]:
    missing = len(sample.runs) - len(series_by_run)
    if missing:
        yield f"{missing} of {len(sample.runs)} finished runs do not have it"
    lengths = [len(series.values) for series in series_by_run.values()]
    if min(lengths) < max(lengths):
        where = "as far as all go" if sample.way == "any two runs" else "as far as both runs of a pair go"
        yield f"runs have from {min(lengths)} to {max(lengths)} {by}s: compared {where}"
    bad = sum(not statistics.usable(series.values[min(lengths) - 1]) for series in series_by_run.values())
    if bad:
        yield f"{bad} of {len(series_by_run)} runs have no finite number at {by} {min(lengths)}"
