"""Reports more than two runs: each is compared with the first, and what differs in any of them is a row of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from reprokit.core.difference import Verdict
from reprokit.core.errors import UsageError
from reprokit.core.redaction import Secrets
from reprokit.core.version import VERSION
from reprokit.evidence.report.facts import IgnoredDifferences, Item, Judgment, Outcome, ReportVerdict, RunReport
from reprokit.evidence.report.gather import compared, dated
from reprokit.evidence.report.sections.attention import attention
from reprokit.evidence.report.sections.compared import ENVIRONMENT, categories, verdict_of
from reprokit.evidence.report.sections.curves import curves_of
from reprokit.evidence.report.sections.limits import GROUND
from reprokit.evidence.report.sections.machine import environment
from reprokit.evidence.report.sections.trained import run_of
from reprokit.verify.comparison import Comparison
from reprokit.verify.ignores import Ignores
from reprokit.verify.read.scan import of_process
from reprokit.verify.show.summary import RunSummary, summarize
from reprokit.verify.verdict import several_line

FORMAT: Final = 1
MAX_RUNS = 200
MAX_ROWS = 20_000  # things that differ; further ones are only counted
MAX_ITEMS = 1_000_000  # things of all comparisons that are looked up where another run differs
MAX_VALUES = 64  # metrics
MAX_NOTES = 50
WORST_LAST: tuple[Outcome, ...] = ("identical", "tolerated", "failed", "not-compared", "different")
_Key = tuple[str, str]  # category and name
DIFFERING = ("different", "missing", "tolerated", "ignored")


class ComparedRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run of the table, and how it compares with the first."""

    name: str  # of its directory; its path where two are named so
    run: RunReport
    verdict: ReportVerdict | None = None  # None: it is the first


class CategoryRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What came out of one kind of things, for each run but the first."""

    name: str
    verdicts: tuple[Judgment, ...]


class DifferingRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A thing that differs in some run; None stands for a run in which it was not listed."""

    category: str
    name: str
    runs: tuple[Item | None, ...]  # each but the first: "left" is the first run's value


class LastValues(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The last value of a metric in each run; empty where a run has none, or none that is finite."""

    name: str
    values: tuple[str, ...]


class SeveralFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a report on several runs says; `report-several.schema.json` is the schema of it."""

    format: Literal[1] = FORMAT
    reprokit: str
    made: str  # ISO 8601, UTC
    attention: tuple[str, ...]
    outcome: Outcome  # the worst of all
    sentence: str
    runs: tuple[ComparedRun, ...]
    categories: tuple[CategoryRow, ...]
    differing: tuple[DifferingRow, ...]  # causes before effects
    differing_left_out: int
    metrics: tuple[LastValues, ...]
    metrics_left_out: int
    ignored: tuple[IgnoredDifferences, ...]  # what was declared that it may differ
    notes: tuple[str, ...]
    limits: tuple[str, ...]


class _DifferingThings:
    """The things that differ, by category and name, as comparisons come in."""

    def __init__(self, runs: int) -> None:
        self._most_rows, self._most_items = MAX_ROWS // runs, MAX_ITEMS // runs
        self._rows: dict[_Key, None] = {}
        self._left_out: set[_Key] = set()
        self._categories: dict[str, list[Judgment]] = {}
        self._items: list[dict[_Key, Item]] = []
        self._runs = runs

    def add(self, comparison: Comparison | None, first: RunSummary) -> None:
        """Add the comparison of one more run with the first; None if there is none."""
        items = {(category, item.name): item for category, item in self._listed(comparison, first)}
        differing = [key for key, item in items.items() if _counts(item)]
        for key in differing:
            if key in self._rows or len(self._rows) < self._most_rows:
                self._rows[key] = None
            elif len(self._left_out) < MAX_ITEMS:
                self._left_out.add(key)
        kept = {key: items[key] for key in differing if key in self._rows}
        self._items.append(kept | dict(islice(items.items(), self._most_items)))

    def _listed(self, comparison: Comparison | None, first: RunSummary) -> Iterator[tuple[str, Item]]:
        if comparison is None:
            return
        facts = list(environment(comparison, first, is_alone=False))
        are_same = all(item.left == item.right for item in facts)
        self._judge(
            ENVIRONMENT, "different" if any(map(_counts, facts)) else "identical" if are_same else "information"
        )
        yield from ((ENVIRONMENT, item) for item in facts)
        for category in categories(comparison, is_alone=False):
            self._judge(category.name, category.verdict)
            yield from ((category.name, item) for item in category.items)

    def _judge(self, category: str, verdict: Judgment) -> None:
        verdicts = self._categories.setdefault(category, ["not-compared"] * self._runs)
        verdicts[len(self._items)] = verdict

    def rows(self) -> Iterator[DifferingRow]:
        """Yield what differs in some run, causes before effects."""
        order = list(self._categories)
        for category, name in sorted(self._rows, key=lambda key: order.index(key[0])):
            runs = tuple(items.get((category, name)) for items in self._items)
            yield DifferingRow(category=category, name=name, runs=runs)

    def categories(self) -> Iterator[CategoryRow]:
        """Yield what came out of each kind of things."""
        for name, verdicts in self._categories.items():
            if set(verdicts) - {"not-recorded"}:
                yield CategoryRow(name=name, verdicts=tuple(verdicts))

    @property
    def left_out(self) -> int:
        return len(self._left_out)


def _counts(item: Item) -> bool:
    """Return whether an item is a row: it differs, or may be why results do."""
    return item.verdict in DIFFERING or (item.can_change_results and item.left != item.right)


def gather_several(paths: Sequence[Path], ignores: Ignores | None = None) -> SeveralFacts:
    """Compare each further run with the first; raises a RunError for an unreadable directory."""
    if len(paths) > MAX_RUNS:
        raise UsageError(f"a report compares at most {MAX_RUNS} runs; name fewer, or use --index for a directory")
    summaries = [summarize(path) for path in paths]
    first, made = summaries[0], dated()[0]
    table = _DifferingThings(len(paths) - 1)
    verdicts: list[ReportVerdict] = []
    judged: list[Verdict] = []
    notes: dict[str, None] = {}
    ignored: dict[tuple[str, str, str], int] = {}
    for summary in summaries[1:]:
        comparison, problem = compared([first, summary], ignores)
        table.add(comparison, first)
        verdicts.append(verdict_of([first, summary], comparison, problem))
        judged.append(Verdict.NOT_COMPARED if comparison is None else comparison.verdict)
        notes |= dict.fromkeys(comparison.notes if comparison is not None else ())
        for use in comparison.ignores if comparison is not None else ():
            rule = IgnoredDifferences(**use.document())
            key = (rule.option, rule.rule, rule.origin)
            ignored[key] = ignored.get(key, 0) + rule.times
    metrics = list(_metrics(summaries))
    facts: dict[str, Any] = {
        "reprokit": VERSION,
        "made": made,
        "attention": tuple(attention(summaries, made)),
        "outcome": max((verdict.outcome for verdict in verdicts), key=WORST_LAST.index),
        "sentence": _sentence(several_line(paths[0], judged)),
        "runs": tuple(_runs(summaries, verdicts)),
        "categories": tuple(table.categories()),
        "differing": tuple(table.rows()),
        "differing_left_out": table.left_out,
        "metrics": tuple(metrics[:MAX_VALUES]),
        "metrics_left_out": max(0, len(metrics) - MAX_VALUES),
        "ignored": tuple(
            IgnoredDifferences(option=option, rule=rule, origin=origin, times=times)
            for (option, rule, origin), times in ignored.items()
        ),
        "notes": tuple(notes)[:MAX_NOTES],
        "limits": GROUND,
    }
    return msgspec.convert(Secrets().value(msgspec.to_builtins(facts)), SeveralFacts)


def _sentence(line: str) -> str:
    """Return a line of verify's as a sentence, without the verdict before it."""
    text = line.removeprefix("different: ").removeprefix("identical: ")
    return f"{text[:1].upper()}{text[1:]}."


def _runs(summaries: Sequence[RunSummary], verdicts: Sequence[ReportVerdict]) -> Iterator[ComparedRun]:
    names = [summary.directory.path.name for summary in summaries]
    for number, (summary, name) in enumerate(zip(summaries, names, strict=True)):
        yield ComparedRun(
            name=name if names.count(name) == 1 else str(summary.directory.path),
            run=run_of(summary, "right" if number else "left"),
            verdict=verdicts[number - 1] if number else None,
        )


def _metrics(summaries: Sequence[RunSummary]) -> Iterator[LastValues]:
    """Yield the last value of each metric, losses first."""
    of_runs = []
    for summary in summaries:
        points = {name: curve.points() for name, curve in curves_of(summary).items() if curve.count}
        of_runs.append({name: points[name][-1].value for name in points if points[name]})
    names = dict.fromkeys(chain.from_iterable(of_runs))
    for name in sorted(names, key=lambda name: (name[1] != "loss", name[0] == "", name)):
        values = (run.get(name) for run in of_runs)
        process, metric, _ = name
        yield LastValues(
            name=of_process(metric, process),
            values=tuple("" if value is None else repr(value) for value in values),
        )
