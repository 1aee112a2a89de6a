"""Makes tables of an analysis: as text for the terminal and the page, and every figure as CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any, Final

import msgspec

from reprokit.core.printable import printable
from reprokit.core.screen import Cells, print_rows
from reprokit.study import wording
from reprokit.study.facts import Analysis, Inconsistent, Overhead, PairFacts, SetupFacts, Spread, Variance
from reprokit.study.wording import number, points, quantity
from reprokit.verify.verdict import NOTHING_VARIES

MAX_ROWS = 200  # rows per table on the screen; the CSV files and the JSON document have all

HEAD: Final = ("table", "setup", "row", "figure", "value")
_TABLES: Final = {  # fields that identify a row, in addition to its setup
    "setups": ("kind", "source"),
    "overhead": ("effect", "base", "measure"),
    "variance": ("evaluation", "way"),
    "process": ("metric", "by", "way"),
    "pairs": ("pair",),
    "runs": ("pair", "part"),
}
_FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")  # first characters of formulas in spreadsheets

Row = tuple[str, ...]


@dataclass(frozen=True)
class TableRows:
    """A table, and a sentence that explains it."""

    title: str
    heads: Row
    rows: Sequence[Row]
    sentence: str = ""


def tables(analysis: Analysis) -> Iterator[TableRows]:
    """Yield the tables in the order in which the terminal shows them."""
    yield pairs(analysis)
    yield variance(analysis)
    if analysis.process:
        yield process(analysis)
    yield costs(analysis)
    yield overhead(analysis)
    failures = failed(analysis)
    if failures.rows:
        yield failures


def print_analysis(analysis: Analysis) -> None:
    """Print all tables."""
    summary = f"{analysis.runs_made} of {analysis.planned} runs, {len(analysis.setups)} setups"
    print_rows(f"Study {analysis.name}: {summary}", [], analysis.attention)
    for table in tables(analysis):
        print()
        _print(table)


def _print(table: TableRows) -> None:
    if not table.rows:
        print_rows(table.title, [], [table.sentence or "nothing"])
        return
    left_out = len(table.rows) - MAX_ROWS
    footer = [f"({left_out} more rows: --csv, --json)"] if left_out > 0 else []
    rows = [Cells(row) for row in (table.heads, *table.rows[:MAX_ROWS])]
    print_rows(table.title, rows, [*footer, *([table.sentence] if table.sentence else [])])


def pairs(analysis: Analysis) -> TableRows:
    """Return the table of pairs by outcome."""
    heads = (
        "setup",
        "identical",
        "different",
        "not compared",
        "metrics equal",
        "evaluation equal",
        "differ of further pairs",
    )
    return TableRows("Pairs", heads, [_pairs(setup) for setup in analysis.setups], analysis.sentences.pairs)


def _pairs(setup: SetupFacts) -> Row:
    pairs = setup.pairs
    process = f"{pairs.process_equal} of {pairs.process_equal + pairs.process_different}"
    evaluation = f"{pairs.evaluation_equal} of {pairs.evaluation_equal + pairs.evaluation_different}"
    counts = (str(pairs.identical), str(pairs.different), str(pairs.not_compared))
    return (setup.name, *counts, process, evaluation, wording.further(pairs.differing))


def variance(analysis: Analysis) -> TableRows:
    """Return the table of variation in evaluations."""
    title = "What varies in evaluations: largest difference and (standard deviation); accuracies in percentage points"
    heads = ("setup", "source", "evaluation", "accuracy", "a class", "inconsistent", "MAE", "between", "notes")
    return TableRows(title, heads, [_variance(row) for row in analysis.variance], analysis.sentences.variance)


def _variance(row: Variance) -> Row:
    accuracy = _both(row.accuracy, points) if row.accuracy is not None else "-"
    classes = f"{points(row.class_largest)} ({points(row.class_deviation)})" if row.class_largest is not None else "-"
    mae = _both(row.mae, number) if row.mae is not None else "-"
    notes = "; ".join(row.notes) or (NOTHING_VARIES if row.zero else "")
    scores = accuracy, classes, _inconsistent(row.inconsistent), mae
    return (row.setup, row.source, row.evaluation, *scores, row.way, notes)


def _inconsistent(predictions: Inconsistent | None) -> str:
    if predictions is None:
        return "-"
    about = "about " if predictions.sampled else ""
    return f"{about}{predictions.largest} of {predictions.predictions} ({number(predictions.deviation)})"


def _both(spread: Spread, shown: Callable[[float | None], str]) -> str:
    return f"{shown(spread.largest)} ({shown(spread.deviation)})"


def process(analysis: Analysis) -> TableRows:
    """Return the table of variation in training metrics."""
    title = "What varies in metrics of the training: largest difference and (standard deviation)"
    heads = ("setup", "source", "metric", "at", "difference", "between", "notes")
    rows = []
    for row in analysis.process:
        names = row.setup, row.source, row.metric, f"{row.by} {row.at}"
        rows.append((*names, _both(row.spread, number), row.way, "; ".join(row.notes)))
    return TableRows(title, heads, rows, analysis.sentences.process)


def costs(analysis: Analysis) -> TableRows:
    """Return the table of times and storage."""
    heads = ("setup", "runs", "time", "from", "to", "processor time", "memory", "stored", "entropy of it")
    return TableRows("Times and storage (medians)", heads, [_costs(setup) for setup in analysis.setups])


def _costs(setup: SetupFacts) -> Row:
    times = setup.seconds
    medians = [quantity(value, "s") for value in (times.median, times.least, times.most, setup.processor.median)]
    stored = [quantity(summary.median, "B") for summary in (setup.memory, setup.stored, setup.profile)]
    return (setup.name, str(setup.finished), *medians, *stored)


def overhead(analysis: Analysis) -> TableRows:
    """Return the table of costs of setups compared with others."""
    heads = ("setup", "against", "effect", "measure", "medians", "change (95 %)", "p, Holm's p", "delta", "finding")
    return TableRows("What it costs", heads, [_overhead(row) for row in analysis.overhead], analysis.sentences.overhead)


def _overhead(row: Overhead) -> Row:
    medians = f"{quantity(row.median, row.unit)} : {quantity(row.base_median, row.unit)}"
    delta = f"{row.delta:+.3f} {row.magnitude}" if row.delta is not None else "-"
    tested = f"{wording.p_value(row.p)}, {wording.p_value(row.p_adjusted)}"
    needed = f" ({row.needed} runs needed)" if row.needed is not None else ""
    names = row.setup, row.base, row.effect, row.measure
    return (*names, medians, _change(row), tested, delta, row.finding + needed)


def _change(row: Overhead) -> str:
    if row.ratio is None:
        return "-" if row.difference is None else f"{'+' * (row.difference >= 0)}{quantity(row.difference, row.unit)}"
    limits = wording.between(row.ratio_interval).removeprefix("between ").replace(" and ", " to ")
    return wording.change(row.ratio) + (f" ({limits})" if limits else "")


def failed(analysis: Analysis) -> TableRows:
    """Return the table of runs that did not finish."""
    heads = ("setup", "pair", "run", "outcome", "how it ended")
    rows = [
        (run.setup, str(run.pair), run.part, run.outcome, run.ended)
        for run in analysis.runs
        if run.outcome != "finished"
    ]
    return TableRows("Runs that failed", heads, rows, "They are in no figure, and none was tried again.")


def every_pair(analysis: Analysis) -> TableRows:
    """Return the table of all pairs, those that are not identical first."""
    heads = ("setup", "pair", "outcome", "metrics", "evaluation", "inconsistent", "accuracy", "MAE", "in words")
    urgency = {"different": 0, "not compared": 1, "identical": 2}
    ordered = sorted(analysis.pairs, key=lambda pair: urgency[pair.outcome])
    title = "Every pair; differences of accuracy in percentage points"
    return TableRows(title, heads, [_every_pair(pair) for pair in ordered])


def _every_pair(pair: PairFacts) -> Row:
    inconsistent = f"{pair.inconsistent} of {pair.predictions}" if pair.inconsistent is not None else "-"
    scores = inconsistent, points(pair.accuracy_difference), number(pair.mae_difference)
    words = "; ".join((pair.words, *pair.notes)) if pair.outcome != "identical" else "; ".join(pair.notes)
    return (pair.setup, str(pair.pair), pair.outcome, pair.process, pair.evaluation, *scores, words)


# ---- CSV -------------------------------------------------------------------------------------------------------------


def csv_text(analysis: Analysis) -> str:
    """Return all tables as CSV: a line for each figure, unrounded."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEAD)
    content = msgspec.to_builtins(analysis)
    for table, names in _TABLES.items():
        for row in content[table]:
            title = " / ".join(str(row[name]) for name in names)
            figures = {key: value for key, value in row.items() if key not in names and key != "setup"}
            setup = figures.pop("name", "") if table == "setups" else row["setup"]
            for figure, value in _figures(figures, ""):
                writer.writerow((table, _safe(setup), _safe(title), figure, _safe(value)))
    return out.getvalue()


def _figures(row: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a row, named by their paths in it."""
    if isinstance(row, dict):
        for key, value in row.items():
            yield from _figures(value, f"{prefix}.{key}" if prefix else key)
    elif isinstance(row, list | tuple) and any(isinstance(value, dict | list) for value in row):
        for number, value in enumerate(row):
            yield from _figures(value, f"{prefix}.{number}")
    elif isinstance(row, list | tuple):
        yield prefix, " ".join(map(str, row))
    else:
        yield prefix, row


def _safe(value: Any) -> Any:
    """Return a cell that no terminal and no spreadsheet interprets; numbers stay as they are."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return value
    shown = printable(value, 4000)
    return f"'{shown}" if shown.startswith(_FORMULAS) else shown
