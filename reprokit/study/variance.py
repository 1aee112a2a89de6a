"""How far the runs of a setup lie apart that might have been equal: in what they predict, and in their metrics."""

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
MAX_NAMES: Final = 50  # evaluations, and metrics, of a setup that are told of
MAX_CLASSES: Final = 20  # of an evaluation
MAX_COMPARED: Final = 200_000_000  # predictions of a setup that are laid side by side
MAX_TWO: Final = 100_000  # runs of a setup that are laid side by side, two by two
MAX_HELD: Final = 50_000_000  # predictions in memory


@dataclass(frozen=True)
class SpreadSample:
    """The finished runs of a setup, and which of them might have been equal."""

    setup: str
    source: Source
    way: Way
    runs: Sequence[RunResult] = field(hash=False)

    def two(self) -> Iterator[tuple[RunResult, RunResult]]:
        """Return every two runs that are compared."""
        if self.way == "any two runs":
            return combinations(self.runs, 2)
        by_pair: dict[int, list[RunResult]] = {}
        for run in self.runs:
            by_pair.setdefault(run.pair, []).append(run)
        return ((one[0], one[1]) for one in by_pair.values() if len(one) == 2)


def way(source: Source) -> Way:
    """Which runs might have been equal: any two, or where each pair has its own seed or recording, those of a pair."""
    return "any two runs" if source in ("both", "software") else "within pairs"


def variances(directory: Path, sample: SpreadSample) -> Iterator[Variance]:
    """Yield a row for each evaluation that any of the runs has."""
    names = dict.fromkeys(one.name for run in sample.runs for one in run.evaluations)
    kept = _kept(directory, sample)
    for name in islice(names, MAX_NAMES):
        yield _variance(sample, name, kept.get(name, {}))


def _variance(sample: SpreadSample, name: str, kept: Mapping[Key, _Held]) -> Variance:
    found = {_key(run): one for run in sample.runs for one in run.evaluations if one.name == name}
    accuracies = {key: one.accuracy for key, one in found.items() if one.accuracy is not None}
    errors = {key: one.mae for key, one in found.items() if one.mae is not None}
    rates = _rates(found)
    classes = sorted(
        (ClassSpread(label=wording.short(label), spread=_spread(sample, values)) for label, values in rates.items()),
        key=lambda one: -(one.spread.largest or 0.0),
    )
    first = next(iter(found.values()))
    inconsistent = _inconsistent(sample, found, kept)
    several: list[Values] = [*([accuracies] if accuracies else []), *([errors] if errors else []), *rates.values()]
    shuffled = any(one.truth != other.truth for one, other in _some(sample, kept))
    differ = shuffled or any(_differ(sample, values) for values in several)
    any_compared = any(_key(one) in found and _key(other) in found for one, other in sample.two())
    row = Variance(
        source=sample.source,
        setup=sample.setup,
        evaluation=wording.short(name),
        task=first.task,
        way=sample.way,
        runs=len(found),
        missing=len(sample.runs) - len(found),
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
        notes=(*_notes(sample, found), *([SHUFFLED] if shuffled else [])),
        sentence="",
    )
    return msgspec.structs.replace(row, sentence=wording.variance(row))


def _key(run: RunResult) -> Key:
    return run.pair, run.part


def _rates(found: Mapping[Key, Evaluation]) -> dict[str, dict[Key, float | None]]:
    """Return the accuracy of each class in each run."""
    rates: dict[str, dict[Key, float | None]] = {}
    for key, evaluation in found.items():
        for one in evaluation.labels:
            if one.count:
                rates.setdefault(one.label, {})[key] = one.correct / one.count
    return rates


def _spread(sample: SpreadSample, values: Values) -> Spread:
    known = {key: value for key, value in values.items() if value is not None and statistics.usable(value)}
    left_out = len(values) - len(known)
    if sample.way == "any two runs":
        return statistics.spread(list(known.values()), left_out)
    both = [(_key(one), _key(other)) for one, other in sample.two()]
    pairs = [(known[one], known[other]) for one, other in both if one in known and other in known]
    return statistics.spread_within(pairs, left_out)


def _differ(sample: SpreadSample, values: Values) -> bool:
    """Return whether any two that are compared are not the same, NaN being the same as NaN."""
    texts = {key: repr(value) for key, value in values.items()}
    if sample.way == "any two runs":
        return len(set(texts.values())) > 1
    return any(texts.get(_key(one)) != texts.get(_key(other)) for one, other in sample.two())


def _notes(sample: SpreadSample, found: Mapping[Key, Evaluation]) -> Iterator[str]:
    missing = len(sample.runs) - len(found)
    if missing:
        yield f"{missing} of {len(sample.runs)} finished runs do not have it"
    if len({one.task for one in found.values()}) > 1:
        yield "some runs tell of a classification, others of a regression"
    counts = {one.count for one in found.values()}
    if len(counts) > 1:
        yield f"runs have from {min(counts)} to {max(counts)} predictions: compared as far as both go"
    bad = sum(
        not statistics.usable(value) for one in found.values() for value in (one.accuracy, one.mae) if value is not None
    )
    if bad:
        yield f"{bad} of {len(found)} runs have a value that is not a finite number: left out"


# ---- predictions -----------------------------------------------------------------------------------------------------


class _Held(NamedTuple):
    """The predictions of a run."""

    labels: array[int]
    truth: str  # digest of what is true of them


def _inconsistent(
    sample: SpreadSample, found: Mapping[Key, Evaluation], kept: Mapping[Key, _Held]
) -> Inconsistent | None:
    """Return how many predictions any two runs do not agree on, as far as both predicted the same samples."""
    two = [(one.labels, other.labels) for one, other in _some(sample, kept) if one.truth == other.truth]
    if not two:
        return None
    length = max(min(len(one), len(other)) for one, other in two)
    chosen = two[:: -(-len(two) * length // MAX_COMPARED) or 1]
    counts = [sum(map(ne, one, other)) if one != other else 0 for one, other in chosen]
    told = sum(bool(one.predictions) for one in found.values())
    return Inconsistent(
        comparisons=len(chosen),
        predictions=length,
        largest=max(counts),
        mean=fmean(counts),
        deviation=stdev(counts) if len(counts) > 1 else None,
        sampled=len(chosen) < len(two) or len(kept) < told or _step(len(kept)) > 1,
    )


def _some(sample: SpreadSample, kept: Mapping[Key, _Held]) -> Iterator[tuple[_Held, _Held]]:
    """Return every two runs that are compared, or of too many an even choice."""
    both = ((_key(one), _key(other)) for one, other in sample.two())
    known = ((kept[one], kept[other]) for one, other in both if one in kept and other in kept)
    return islice(known, 0, None, _step(len(kept)) if sample.way == "any two runs" else 1)


def _step(runs: int) -> int:
    return runs * (runs - 1) // 2 // MAX_TWO + 1


def _kept(directory: Path, sample: SpreadSample) -> dict[str, dict[Key, _Held]]:
    """Return the predictions of each evaluation and run, as numbers that stand for the same label in all of them."""
    numbers: dict[str, dict[str, int]] = {}
    vectors: dict[str, dict[Key, _Held]] = {}
    room = MAX_HELD
    for run in sample.runs:
        names = {one.name: one.predictions for one in run.evaluations if one.predictions}
        content = predictions.read(directory, next(iter(names.values()), "")) if room > 0 else {}
        for name, one in content.items():
            if name in names:
                room -= len(one.predicted) + len(one.labels)
                known = numbers.setdefault(name, {})
                common = [known.setdefault(label, len(known)) for label in one.labels]
                labels = array("i", [common[position] for position in one.predicted])
                vectors.setdefault(name, {})[_key(run)] = _Held(labels, one.truth)
    return vectors


# ---- metrics through the run -----------------------------------------------------------------------------------------


def processes(sample: SpreadSample) -> tuple[list[ProcessVariance], int]:
    """Return a row for each metric that any of the runs has, and how many metrics are left out."""
    names = dict.fromkeys((one.name, one.by) for run in sample.runs for one in run.series if one.values)
    rows = [_process(sample, *name) for name in islice(names, MAX_NAMES)]
    return rows, max(0, len(names) - MAX_NAMES)


def _process(sample: SpreadSample, name: str, by: Literal["epoch", "step"]) -> ProcessVariance:
    found = {
        _key(run): one for run in sample.runs for one in run.series if (one.name, one.by) == (name, by) and one.values
    }
    lengths = [len(one.values) for one in found.values()]
    row = ProcessVariance(
        source=sample.source,
        setup=sample.setup,
        metric=wording.short(name),
        by=by,
        way=sample.way,
        runs=len(found),
        missing=len(sample.runs) - len(found),
        lengths=(min(lengths), max(lengths)),
        at=min(lengths),
        spread=_at_the_end(sample, found),
        notes=tuple(_process_notes(sample, found, by)),
        sentence="",
    )
    return msgspec.structs.replace(row, sentence=wording.process(row))


def _at_the_end(sample: SpreadSample, found: Mapping[Key, MetricSeries]) -> Spread:
    """Of the last values that all have; within pairs, that both have."""
    if sample.way == "any two runs":
        last = min(len(one.values) for one in found.values()) - 1
        return _spread(sample, {key: one.values[last] for key, one in found.items()})
    ends: dict[Key, float | None] = {}
    for both in sample.two():
        here = [found[_key(run)].values for run in both if _key(run) in found]
        if len(here) == 2:
            last = min(map(len, here)) - 1
            ends.update({_key(run): found[_key(run)].values[last] for run in both})
    return _spread(sample, ends)


def _process_notes(sample: SpreadSample, found: Mapping[Key, MetricSeries], by: str) -> Iterator[str]:
    missing = len(sample.runs) - len(found)
    if missing:
        yield f"{missing} of {len(sample.runs)} finished runs do not have it"
    lengths = [len(one.values) for one in found.values()]
    if min(lengths) < max(lengths):
        where = "as far as all go" if sample.way == "any two runs" else "as far as both runs of a pair go"
        yield f"runs have from {min(lengths)} to {max(lengths)} {by}s: compared {where}"
    bad = sum(not statistics.usable(one.values[min(lengths) - 1]) for one in found.values())
    if bad:
        yield f"{bad} of {len(found)} runs have no finite number at {by} {min(lengths)}"
