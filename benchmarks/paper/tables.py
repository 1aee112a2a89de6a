"""The tables of results.md: what the analyses of the studies say, beside the paper's own figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.paper import figures
from reprokit.study.facts import (
    Analysis,
    AttemptFacts,
    Effect,
    Interval,
    Measure,
    Overhead,
    SetupFacts,
    ValueSummary,
    Variance,
)

BEGIN = "<!-- measured, by python -m benchmarks paper -->"
END = "<!-- end of what was measured -->"
EVALUATION = "evaluate"
NONE = "—"
TIMES: tuple[Measure, Measure] = ("time", "processor time")


@dataclass(frozen=True)
class Side:
    """The setups of one model on one version of TensorFlow."""

    model: str
    version: str  # here
    paper: str  # the paper's
    analysis: Analysis
    untouched: SetupFacts
    bare: SetupFacts
    seeded: SetupFacts
    recorded: SetupFacts

    def varied(self, setup: SetupFacts) -> Variance | None:
        """How far its runs lie apart in what the script evaluates."""
        rows = self.analysis.variance
        return next((row for row in rows if (row.setup, row.evaluation) == (setup.name, EVALUATION)), None)

    def cost(self, setup: SetupFacts, effect: Effect, measure: Measure) -> Overhead | None:
        """What it costs in time."""
        wanted, rows = (setup.name, effect, measure), self.analysis.overhead
        return next((row for row in rows if (row.setup, row.effect, row.measure) == wanted), None)

    def runs(self, setup: SetupFacts) -> list[AttemptFacts]:
        """Its runs that finished."""
        return [run for run in self.analysis.runs if run.setup == setup.name and run.outcome == "finished"]

    def values(self, setup: SetupFacts, name: str) -> list[float]:
        """One number of each finished run that has it."""
        return [value for value in (getattr(run, name) for run in self.runs(setup)) if value is not None]


VERSIONS = (("1.14", "1.14", 0), ("2.21", "2.1", 4))


def sides(model: str, analysis: Analysis) -> list[Side]:
    """Both versions of a study; its setups come in the order untouched, bare, seeded, recorded of each."""
    return [
        Side(model, version, paper, analysis, *analysis.setups[first : first + 4]) for version, paper, first in VERSIONS
    ]


def tables(analyses: dict[str, Analysis]) -> str:
    """All tables, of the models in this order; what no study tells is left out."""
    found = [side for model, analysis in analyses.items() for side in sides(model, analysis)]
    classified = [side for side in found if side.model in figures.RECORDING_P]
    others = [side for side in found if side.model not in figures.RECORDING_P]
    parts = [*_attention(analyses), *_varied(classified), *_regression(others), *_pairs(found), *_times(found)]
    return "\n".join([*parts, *_storage(found), *_words(analyses)])


def fill(page: Path, text: str) -> None:
    """Put the tables between the marks of a page."""
    whole = page.read_text(encoding="utf-8")
    before, begin, rest = whole.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} has no lines {BEGIN!r} and {END!r} after it")
    page.write_text(f"{before}{BEGIN}\n\n{text.strip()}\n\n{END}{after}", encoding="utf-8")


# ---- tables ----------------------------------------------------------------------------------------------------------


def _attention(analyses: dict[str, Analysis]) -> Iterator[str]:
    """What must be read before the tables."""
    lines = [f"- {model}: {text}" for model, analysis in analyses.items() for text in analysis.attention]
    if lines:
        yield "\n".join([*lines, ""])


def _varied(found: Sequence[Side]) -> Iterator[str]:
    if not found:
        return
    yield "### Bare runs: what varies when nothing is held\n"
    yield _row(
        "model", "TensorFlow", "mean accuracy", "largest difference (SD)", "of one class: largest difference (SD)",
        "inconsistent predictions of two runs: most (mean)",
    )  # fmt: skip
    yield _rule(6)
    for side in found:
        yield _paper_varied(side)
        yield _here_varied(side)
    yield ""


def _paper_varied(side: Side) -> str:
    one = figures.VARIED[side.model, side.paper]
    return _row(
        side.model,
        f"{side.paper}, paper",
        f"{one.mean:.2f} %",
        f"{_number(one.largest, 2)} ({_number(one.deviation, 2)})",
        f"{_number(one.class_largest, 2)} ({_number(one.class_deviation, 2)})",
        _inconsistent(one.inconsistent_largest, one.inconsistent_mean, figures.PREDICTIONS),
    )


def _here_varied(side: Side) -> str:
    row, accuracies = side.varied(side.bare), side.values(side.bare, "accuracy")
    if row is None or row.accuracy is None or not accuracies:
        return _row(side.model, f"{side.version}, here", *[NONE] * 4)
    differ = row.inconsistent
    return _row(
        side.model,
        f"{side.version}, here",
        f"{100 * sum(accuracies) / len(accuracies):.2f} %",
        f"{_percent(row.accuracy.largest)} ({_percent(row.accuracy.deviation)})",
        f"{_percent(row.class_largest)} ({_percent(row.class_deviation)})",
        _inconsistent(differ.largest, differ.mean, differ.predictions) if differ is not None else NONE,
    )


def _regression(found: Sequence[Side]) -> Iterator[str]:
    if not found:
        return
    yield "### The LSTM: what varies in a regression that stops early\n"
    yield _row("TensorFlow", "setup", "epochs", "mean absolute error", "largest difference (SD)", "compared")
    yield _rule(6)
    for side in found:
        for name, setup in (("bare", side.bare), ("seeded", side.seeded), ("record-and-replay", side.recorded)):
            yield _regressed(side, name, setup)
    yield ""


def _regressed(side: Side, name: str, setup: SetupFacts) -> str:
    row, errors, epochs = side.varied(setup), side.values(setup, "mae"), side.values(setup, "epochs")
    spread = row.mae if row is not None else None
    return _row(
        side.version,
        name,
        _range(epochs),
        f"{sum(errors) / len(errors):.4f}" if errors else NONE,
        f"{_number(spread.largest, 4)} ({_number(spread.deviation, 4)})" if spread is not None else NONE,
        row.way if row is not None else NONE,
    )


def _pairs(found: Sequence[Side]) -> Iterator[str]:
    if not found:
        return
    yield "### Pairs of runs that are the same, bit for bit\n"
    yield _row(
        "model", "TensorFlow", "bare", "seeded", "seeded, paper", "recorded and replayed", "the same, paper",
        "largest difference that record-and-replay leaves",
    )  # fmt: skip
    yield _rule(8)
    for side in found:
        known = side.model in figures.RECORDING_P
        paper = ["{} of {}".format(*figures.EQUAL_PAIRS) if known else NONE] * 2
        seeded, replayed = _identical(side.seeded), _identical(side.recorded)
        model = f"{side.model} | {side.version}"
        yield _row(model, _identical(side.bare), seeded, paper[0], replayed, paper[1], _left(side))
    yield ""


def _identical(setup: SetupFacts) -> str:
    counts = setup.pairs
    text = f"{counts.identical} of {counts.identical + counts.different}"
    return f"{text}, {counts.not_compared} not compared" if counts.not_compared else text


def _left(side: Side) -> str:
    row = side.varied(side.recorded)
    if row is None:
        return NONE
    if row.task == "regression":
        return f"{_number(row.mae.largest, 4)} of the error" if row.mae is not None else NONE
    predictions = f"{row.inconsistent.largest} predictions" if row.inconsistent is not None else "no predictions known"
    largest = row.accuracy.largest if row.accuracy is not None else None
    return f"accuracy {_percent(largest)}, of a class {_percent(row.class_largest)}, {predictions}"


def _times(found: Sequence[Side]) -> Iterator[str]:
    if not found:
        return
    yield "### Time\n"
    yield "Seconds of a run: medians, and quartiles in brackets.\n"
    yield _row("model", "TensorFlow", "untouched", "bare, watched", "seeded", "recorded", "replayed")
    yield _rule(7)
    for side in found:
        halves = side.recorded.recording, side.recorded.replaying
        summaries = side.untouched.seconds, side.bare.seconds, side.seeded.seconds, *halves
        yield _row(side.model, side.version, *map(_seconds, summaries))
    yield "\nRecord-and-replay (recordings and replays together) against untouched runs, and against bare ones.\n"
    yield _row(
        "model", "TensorFlow", "against", "longer by", "ratio", "p (Wilcoxon rank-sum)", "p (Holm)", "Cliff's delta",
        "p, paper", "ratio of processor times",
    )  # fmt: skip
    yield _rule(10)
    for side in found:
        yield _cost(side, "untouched", "all of it")
        yield _cost(side, "bare", "record-and-replay alone")
    yield ""


def _cost(side: Side, base: str, effect: Effect) -> str:
    row, processor = (side.cost(side.recorded, effect, measure) for measure in TIMES)
    paper = figures.RECORDING_P.get(side.model)
    return _row(side.model, side.version, base, *_shift(row), _number(paper, 2), _ratio(processor))


def _shift(row: Overhead | None) -> list[str]:
    if row is None:
        return [NONE] * 5
    seconds = "" if row.difference is None else f" s{_interval(row.difference_interval, 2)}"
    delta = f"{row.delta:+.2f} ({row.magnitude})" if row.delta is not None else NONE
    return [_number(row.difference, 2) + seconds, _ratio(row), _p(row.p), _p(row.p_adjusted), delta]


def _storage(found: Sequence[Side]) -> Iterator[str]:
    if not found:
        return
    yield "### Storage\n"
    yield _row("model", "TensorFlow", "random profile of a recording", "the whole recording", "bare, watched")
    yield _rule(5)
    for side in found:
        recordings = [run for run in side.runs(side.recorded) if run.mode == "recorded"]
        recorded: list[Sequence[float]] = [[run.profile for run in recordings], [run.stored for run in recordings]]
        kept = [*recorded, side.values(side.bare, "stored")]
        yield _row(side.model, side.version, *map(_kibibytes, kept))
    yield ""


def _words(analyses: dict[str, Analysis]) -> Iterator[str]:
    """What the studies themselves say of their tables."""
    yield "### In words\n"
    for model, analysis in analyses.items():
        told = analysis.sentences
        yield from (f"- **{model}**: {text}" for text in (told.pairs, told.variance, told.overhead) if text)
    yield ""


# ---- cells -----------------------------------------------------------------------------------------------------------


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _rule(columns: int) -> str:
    return "|" + "---|" * columns


def _number(value: float | None, digits: int) -> str:
    """Of so many digits; 0 alone is exactly that."""
    if value is None:
        return NONE
    return f"{value:.{digits}f}" if value else "0"


def _percent(value: float | None) -> str:
    return _number(100 * value if value is not None else None, 2)


def _inconsistent(most: int, mean: float, of: int) -> str:
    return f"{most} ({mean:.1f}) of {of}: {100 * most / of:.1f} % ({100 * mean / of:.1f} %)"


def _range(values: Iterable[float]) -> str:
    found = sorted(values)
    if not found:
        return NONE
    return f"{found[0]:g}" if found[0] == found[-1] else f"{found[0]:g} to {found[-1]:g}"


def _seconds(one: ValueSummary | None) -> str:
    if one is None or one.median is None:
        return NONE
    return f"{one.median:.2f} ({_number(one.low_quartile, 2)} to {_number(one.high_quartile, 2)})"


def _interval(one: Interval | None, digits: int) -> str:
    if one is None:
        return ""
    return f" ({_number(one.low, digits)} to {_number(one.high, digits)})"


def _p(value: float | None) -> str:
    if value is None:
        return NONE
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _ratio(row: Overhead | None) -> str:
    return f"{_number(row.ratio, 3)}{_interval(row.ratio_interval, 3)}" if row is not None else NONE


def _kibibytes(values: Sequence[float]) -> str:
    return f"{median(values) / 1024:.0f} KiB" if values else NONE
