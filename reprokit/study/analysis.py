"""Computes the facts of a study from its results; presenters only lay them out."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from reprokit.core.version import VERSION
from reprokit.study import facts, overhead, statistics, store, variance, wording
from reprokit.study.description import Setup as SetupDescription
from reprokit.study.description import Study
from reprokit.study.results import MetricSeries, PairResult, RunResult

R = TypeVar("R", RunResult, PairResult)

MAX_NOTES: Final = 20
MAX_CURVES: Final = 12
MAX_LINES: Final = 400  # lines per metric
MAX_POINTS: Final = 200  # points per line
METHODS: Final = tuple((Path(__file__).parent / "templates" / "methods.txt").read_text(encoding="utf-8").splitlines())


def analyze(directory: Path) -> facts.Analysis:
    """Return the analysis of a study's directory, complete or not; its files are untrusted."""
    study = store.read_study(directory)
    return analysis_of(study.study, store.read_results(directory), store.read_pairs(directory), directory, study.host)


def analysis_of(
    study: Study,
    results: Sequence[RunResult],
    compared: Sequence[PairResult],
    directory: Path,
    host: Mapping[str, object] | None = None,
) -> facts.Analysis:
    """Return the analysis of results; the directory holds the predictions that they refer to."""
    names = {setup.name for setup in study.setup}
    results = [run for run in results if run.setup in names and run.pair <= study.pairs]
    compared = [pair for pair in compared if pair.setup in names and pair.pair <= study.pairs]
    runs, pairs = _by_setup(names, results), _by_setup(names, compared)
    finished = {name: [run for run in here if run.outcome == "finished"] for name, here in runs.items()}
    setups = [_setup(study, setup, runs[setup.name], pairs[setup.name]) for setup in study.setup]
    costs = overhead.overhead([_costs(study, setup, finished[setup.name]) for setup in study.setup])
    samples = [
        variance.SpreadSample(setup.name, setup.source, variance.way(setup.source), finished[setup.name])
        for setup in setups
        if setup.kind != "untouched"
    ]
    varying = tuple(row for sample in samples for row in variance.variances(directory, sample))
    processes = [variance.processes(sample) for sample in samples]
    process = tuple(row for rows, _ in processes for row in rows)
    drawn, left_out = _curves(results)
    return facts.Analysis(
        reprokit=VERSION,
        made=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        name=study.name,
        command=study.command or (),
        planned=2 * study.pairs * len(study.setup),
        runs_made=len(results),
        attention=(*_attention(study, setups, results, costs), *_ignored(compared)),
        verdicts=tuple(_verdicts(setups, costs, varying)),
        sentences=facts.Sentences(
            pairs=wording.all_pairs([(setup.name, setup.pairs) for setup in setups]),
            overhead=wording.all_overheads(costs),
            variance=wording.all_variances(varying),
            process=wording.all_processes(process),
        ),
        methods=METHODS,
        setups=tuple(setups),
        overhead=costs,
        variance=varying,
        process=process,
        process_left_out=sum(count for _, count in processes),
        pairs=tuple(_pairs(compared, results)),
        runs=tuple(map(_run, results)),
        curves=drawn,
        curves_left_out=left_out,
        host={wording.short(key): wording.short(str(value)) for key, value in (host or {}).items()},
    )


def kind(setup: SetupDescription) -> facts.Kind:
    """Return in one word what a setup does to the training."""
    patched = any(not patch.startswith("seed=") for patch in setup.patches)
    if not setup.observe:
        return "untouched"
    if setup.entropy == "replayed":
        return "patched and recorded" if patched else "recorded"
    if setup.seeds:
        return "seeded and patched" if patched else "seeded"
    return "patched" if patched else "bare"


def source(study: Study, setup: SetupDescription) -> facts.Source:
    """Return the source of variance that remains between the runs of a setup.

    Seeds do not control all of the software; if another setup replays, the rest that seeds leave can be told apart.
    """
    controls = study.controls_of(setup)
    if kind(setup) == "seeded" and any(kind(other) == "recorded" for other in study.setup):
        return "left by seeds"
    if controls == "both":
        return "ours" if setup.entropy == "replayed" else "left by seeds"
    return {"": "both", "software": "hardware", "hardware": "software"}[controls]  # type: ignore[return-value]


# ---- setups and their runs -------------------------------------------------------------------------------------------

_WORDS: Final[dict[facts.Kind, str]] = {
    "untouched": "the command alone, nothing of reprokit in it",
    "bare": "nothing held; runs are only watched",
    "seeded": "both runs of a pair are seeded alike",
    "patched": "patched",
    "seeded and patched": "patched, and both runs of a pair are seeded alike",
    "recorded": "the second run of a pair replays the first",
    "patched and recorded": "patched, and the second run of a pair replays the first",
}


def _by_setup(names: Iterable[str], results: Iterable[R]) -> dict[str, list[R]]:
    by_setup: dict[str, list[R]] = {name: [] for name in names}
    for result in results:
        by_setup[result.setup].append(result)
    return by_setup


def _setup(
    study: Study, setup: SetupDescription, runs: Sequence[RunResult], pairs: Sequence[PairResult]
) -> facts.SetupFacts:
    finished = [run for run in runs if run.outcome == "finished"]
    replays = setup.entropy == "replayed"
    return facts.SetupFacts(
        name=setup.name,
        kind=kind(setup),
        controls=study.controls_of(setup),
        source=source(study, setup),
        words=_WORDS[kind(setup)],
        command=study.command_of(setup),
        patches=setup.patches,
        seeds=setup.seeds,
        planned=2 * study.pairs,
        finished=len(finished),
        failed=len(runs) - len(finished),
        seconds=statistics.summary([run.seconds for run in finished]),
        processor=statistics.summary([run.processor for run in finished]),
        memory=statistics.summary([run.memory for run in finished]),
        stored=statistics.summary([run.stored for run in finished]),
        profile=statistics.summary([run.profile for run in finished]),
        recording=statistics.summary([run.seconds for run in finished if run.part == "first"]) if replays else None,
        replaying=statistics.summary([run.seconds for run in finished if run.part == "second"]) if replays else None,
        pairs=_counts(study, pairs),
    )


def _counts(study: Study, pairs: Sequence[PairResult]) -> facts.PairCounts:
    identical, different = _yes_and_no(pair.identical for pair in pairs)
    process = _yes_and_no(pair.process_equal for pair in pairs)
    evaluation = _yes_and_no(pair.evaluation_equal for pair in pairs)
    judged = identical + different
    counts = facts.PairCounts(
        planned=study.pairs,
        made=len(pairs),
        identical=identical,
        different=different,
        not_compared=len(pairs) - judged,
        process_equal=process[0],
        process_different=process[1],
        process_not_compared=len(pairs) - sum(process),
        evaluation_equal=evaluation[0],
        evaluation_different=evaluation[1],
        evaluation_not_compared=len(pairs) - sum(evaluation),
        differing=statistics.share(different, judged) if judged else None,
        sentence="",
    )
    return msgspec.structs.replace(counts, sentence=wording.pairs(counts))


def _yes_and_no(answers: Iterable[bool | None]) -> tuple[int, int]:
    listed = list(answers)
    return sum(value is True for value in listed), sum(value is False for value in listed)


def _costs(study: Study, setup: SetupDescription, finished: Sequence[RunResult]) -> overhead.CostSample:
    variables = tuple(sorted({**study.variables, **setup.variables}.items()))
    training = study.command_of(setup), setup.directory or study.directory, variables
    patches = frozenset(patch for patch in setup.patches if not patch.startswith("seed="))
    return overhead.CostSample(setup.name, kind(setup), training, patches, finished)


def _run(run: RunResult) -> facts.AttemptFacts:
    scored = [
        evaluation for evaluation in run.evaluations if evaluation.accuracy is not None or evaluation.mae is not None
    ]
    main = scored[-1] if scored else None  # the last score of the training
    texts = {name: wording.short(getattr(run, name)) for name in ("ended", "started", "host", "worker")}
    return facts.AttemptFacts(
        **{
            **{name: getattr(run, name) for name in facts.AttemptFacts.__struct_fields__ if hasattr(run, name)},
            **texts,
            "seconds": _number(run.seconds),
            "processor": _number(run.processor),
            "accuracy": _number(main.accuracy) if main is not None else None,
            "mae": _number(main.mae) if main is not None else None,
            "notes": tuple(map(wording.short, run.notes[:MAX_NOTES])),
        }
    )


def _number(value: float | None) -> float | None:
    return value if statistics.usable(value) else None


# ---- pairs -----------------------------------------------------------------------------------------------------------


def _pairs(compared: Sequence[PairResult], results: Sequence[RunResult]) -> Iterator[facts.PairFacts]:
    runs: dict[tuple[str, int], list[RunResult]] = {}
    for run in results:
        if run.outcome == "finished":
            runs.setdefault((run.setup, run.pair), []).append(run)
    return (_pair(pair, runs.get((pair.setup, pair.pair), [])) for pair in compared)


def _pair(pair: PairResult, both: Sequence[RunResult]) -> facts.PairFacts:
    lengths, equal_until = _compare_series(*both) if len(both) == 2 else (None, None)
    return facts.PairFacts(
        setup=pair.setup,
        pair=pair.pair,
        outcome="not compared" if pair.identical is None else "identical" if pair.identical else "different",
        process=_equality(pair.process_equal),
        evaluation=_equality(pair.evaluation_equal),
        words=wording.short(pair.words),
        categories=tuple(map(wording.short, pair.categories[:MAX_NOTES])),
        inconsistent=pair.inconsistent,
        predictions=pair.predictions,
        accuracy_difference=_number(pair.accuracy_difference),
        largest_class_difference=_number(pair.largest_class_difference),
        mae_difference=_number(pair.mae_difference),
        lengths=lengths,
        equal_until=equal_until,
        notes=(*map(wording.short, pair.notes[:MAX_NOTES]), *_series_notes(lengths, equal_until)),
    )


def _equality(answer: bool | None) -> Literal["equal", "different", "not compared"]:
    return "not compared" if answer is None else "equal" if answer else "different"


def _compare_series(left: RunResult, right: RunResult) -> tuple[tuple[int, int] | None, int | None]:
    """Return the lengths of the first metric with unequal lengths, and the first index at which a metric differs."""
    right_values = {(series.name, series.by): series.values for series in right.series}
    lengths: tuple[int, int] | None = None
    for series in left.series:
        values = right_values.get((series.name, series.by))
        if values is None:
            continue
        if len(values) != len(series.values) and lengths is None:
            lengths = len(series.values), len(values)
        equal = next((at for at, two in enumerate(zip(series.values, values, strict=False)) if not _same(*two)), None)
        if equal is not None:
            return lengths, equal
    return lengths, None


def _same(left: float | None, right: float | None) -> bool:
    return left == right or (left is not None and right is not None and left != left and right != right)


def _series_notes(lengths: tuple[int, int] | None, equal_until: int | None) -> Iterator[str]:
    if lengths is not None:
        how = "" if equal_until is not None else ", and equal that far"
        yield f"one run has {lengths[0]} values, the other {lengths[1]}: compared as far as both go{how}"


# ---- the metrics of all runs, thinned out to what a drawing can show -------------------------------------------------


def _curves(runs: Sequence[RunResult]) -> tuple[tuple[facts.Curve, ...], int]:
    """Return a curve per metric, those of most runs first, and the number of metrics left out."""
    lines_by_metric: dict[tuple[str, Literal["epoch", "step"]], list[facts.CurveLine]] = {}
    for run in runs:
        for series in run.series:
            if series.values:
                lines_by_metric.setdefault((series.name, series.by), []).append(_curve_line(run, series))
    for lines in lines_by_metric.values():
        lines.sort(key=lambda line: line.pair)  # so that a limit cuts all setups alike
    ordered = sorted(lines_by_metric.items(), key=lambda item: -len(item[1]))
    curves = tuple(
        facts.Curve(
            metric=wording.short(name), by=by, lines=tuple(lines[:MAX_LINES]), left_out=max(0, len(lines) - MAX_LINES)
        )
        for (name, by), lines in ordered[:MAX_CURVES]
    )
    return curves, max(0, len(ordered) - MAX_CURVES)


def _curve_line(run: RunResult, series: MetricSeries) -> facts.CurveLine:
    finite = [(number, value if statistics.usable(value) else None) for number, value in enumerate(series.values, 1)]
    return facts.CurveLine(
        setup=run.setup,
        pair=run.pair,
        part=run.part,
        points=tuple(thinned(finite, MAX_POINTS)),
        values=len(finite),
        not_finite=sum(value is None for _, value in finite),
    )


def thinned(points: Sequence[tuple[int, float | None]], most: int) -> Sequence[tuple[int, float | None]]:
    """Return first and last point, minimum and maximum of each stretch, and its first gap."""
    if len(points) <= most:
        return points
    kept = {points[0], points[-1]}
    size = -(-2 * len(points) // most)
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        numbers = [point for point in stretch if point[1] is not None]
        if numbers:
            kept |= {min(numbers, key=lambda point: point[1] or 0.0), max(numbers, key=lambda point: point[1] or 0.0)}
        if len(numbers) < len(stretch):
            kept.add(next(point for point in stretch if point[1] is None))
    return sorted(kept, key=lambda point: point[0])


# ---- the whole in words ----------------------------------------------------------------------------------------------


def _attention(
    study: Study, setups: Sequence[facts.SetupFacts], results: Sequence[RunResult], costs: Sequence[facts.Overhead]
) -> Iterator[str]:
    planned = 2 * study.pairs * len(study.setup)
    if len(results) < planned:
        yield f"The study lacks runs: {len(results)} of {planned} were made."
    for setup in setups:
        if setup.failed and not setup.finished:
            yield f"No run of {setup.name} finished ({setup.failed} failed): nothing is known about it."
        elif setup.failed:
            yield f"{setup.failed} runs of {setup.name} failed: they are listed, and are in no figure."
    if any(row.finding == "not comparable" for row in costs):
        most = max(run.together for run in results)
        yield f"Up to {most} runs were made at the same time: their times are not comparable, and are not tested."
    hosts = {run.host for run in results if run.host}
    if len(hosts) > 1:
        yield f"Runs were made on {len(hosts)} machines: differences in time may be theirs."


def _ignored(compared: Sequence[PairResult]) -> Iterator[str]:
    """Yield how often each declared rule applied, also one that never did."""
    times: Counter[str] = Counter()
    for pair in compared:
        times.update(pair.ignored)
    for rule, count in times.items():
        pairs = sum(1 for pair in compared if pair.ignored.get(rule))
        yield f"{count:,} differences in {pairs} pairs do not count, as declared by {rule}."


def _verdicts(
    setups: Sequence[facts.SetupFacts], costs: Sequence[facts.Overhead], varying: Sequence[facts.Variance]
) -> Iterator[str]:
    for setup in setups:
        yield f"{setup.name} ({setup.words}): {setup.pairs.sentence}"
        yield from (row.sentence for row in varying if row.setup == setup.name)
        yield from (row.sentence for row in costs if row.setup == setup.name and row.measure == "time")
