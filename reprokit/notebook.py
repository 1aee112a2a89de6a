"""Runs, comparisons and studies in a notebook: what the commands of these names say, as small tables.

    from reprokit import notebook
    notebook.show("last")
    notebook.verify("first", "second")

Each is a value to look at (`_repr_html_`, and text where there is no HTML), with the facts as data in `document`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reprokit.core.printable import printable

if TYPE_CHECKING:
    from reprokit.verify.comparison import Comparison

LONGEST = 400  # characters of one text
MAX_ROWS = 100

GREEN, RED, AMBER, PLAIN = "#2e7d32", "#c62828", "#b26a00", "currentColor"
_COLORS = {"identical": GREEN, "different": RED, "tolerated": AMBER, "not-compared": AMBER}
_STRONG = ("different", "missing", "tolerated", "not-compared")
_CELL = "text-align:left;vertical-align:top;padding:1px 10px 1px 0;overflow-wrap:anywhere;white-space:pre-wrap"


@dataclass(frozen=True)
class View:
    """A headline, rows and closing lines to display; texts are not yet escaped."""

    headline: str
    rows: tuple[tuple[str, ...], ...] = ()
    footer: tuple[str, ...] = ()
    color: str = PLAIN  # of the bar beside the headline
    document: dict[str, Any] = field(default_factory=dict, repr=False)
    drawings: tuple[str, ...] = field(default=(), repr=False)  # as SVG, where there is HTML

    def __repr__(self) -> str:
        rows = ("  ".join(_short(cell) for cell in row if cell) for row in self.rows[:MAX_ROWS])
        return "\n".join([_short(self.headline), *rows, *self._more(), *map(_short, self.footer)])

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr>{''.join(_cells(cells))}</tr>" for cells in self.rows[:MAX_ROWS])
        closing = "".join(f'<div style="opacity:.75">{_html(line)}</div>' for line in (*self._more(), *self.footer))
        # Texts have the notebook's own colors, light or dark; ours stands beside the headline.
        head = f"font-weight:bold;border-left:4px solid {self.color};padding-left:6px"
        return (
            f'<div style="font-size:90%"><div style="{head}">{_html(self.headline)}</div>'
            f'<table style="border-collapse:collapse;margin:4px 0">{rows}</table>'
            f"{''.join(self.drawings)}{closing}</div>"
        )

    def _more(self) -> list[str]:
        count = len(self.rows) - MAX_ROWS
        return [f"{count} more rows; document has them all"] if count > 0 else []


def show(run: str | Path = "last") -> View:
    """Return what a run is and what is in it."""
    from reprokit.verify.show import overview
    from reprokit.verify.show.summary import document, summarize

    summary = summarize(_path(run))
    is_well = summary.run.exit_code == 0 and not summary.in_progress
    color = GREEN if is_well else AMBER if summary.in_progress else RED
    return View(overview.headline(summary), tuple(overview.rows(summary)), (), color, document(summary))


def verify(left: str | Path, right: str | Path) -> View:
    """Return whether two runs agree, bit for bit."""
    from reprokit.cli.ignores import IgnoreRequest
    from reprokit.verify.runs import compare, require_whole

    paths = _path(left), _path(right)
    for path in paths:
        require_whole(path)
    return comparison_view(compare(*paths, ignores=IgnoreRequest().ignores()))


def comparison_view(comparison: Comparison) -> View:
    """Return what a comparison of two runs found."""
    from reprokit.verify.show.comparison import causes, document, rows
    from reprokit.verify.verdict import verdict_line

    listed = [("likely cause", "information", text) for text in causes(comparison)]
    listed += [(row.name, row.verdict.value, row.text) for row in rows(comparison, every_leaf=False)]
    notes = [f"left: {comparison.left.path}", f"right: {comparison.right.path}"]
    notes += [f"note: {note}" for note in comparison.notes]
    notes += [f"ignored: {use}" for use in comparison.ignores]
    color = _COLORS[comparison.verdict.value]
    return View(verdict_line(comparison), tuple(listed), tuple(notes), color, document(comparison))


def tensors(run: str | Path = "last") -> View:
    """Return the tensors that a run saved, with histograms of their values over the steps."""
    from reprokit.evidence.report.sections.histograms import histogram_drawing, histograms_of
    from reprokit.run_files.rundir import RunDirectory
    from reprokit.saved_tensors.summary import document, row
    from reprokit.saved_tensors.trial import TensorTrial

    path = _path(run)
    facts = document(TensorTrial(path))
    histograms, left_out = histograms_of(RunDirectory(path))
    footer = (f"{left_out} more tensors are not drawn",) if left_out else ()
    drawn = tuple(histogram_drawing(histogram, number) for number, histogram in enumerate(histograms))
    rows = tuple(map(row, facts["tensors"]))
    return View(f"{path}: {len(rows)} tensors", rows, footer, document=facts, drawings=drawn)


def ls(directory: str | Path | None = None) -> View:
    """Return the runs in a directory, the newest first; by default those of the nearest .reprokit."""
    from reprokit.run_files.home import home_of
    from reprokit.verify.show import run_list

    place = home_of(Path()) if directory is None else Path(directory)
    runs = run_list.runs(place)
    return View(run_list.headline(place, runs), tuple(map(run_list.cells, runs)), document=run_list.document(runs))


def study(directory: str | Path) -> View:
    """Return what came of a study: its sentences, and the pairs of each setup."""
    import msgspec

    from reprokit.core.difference import Verdict
    from reprokit.study.analysis import analyze

    analysis = analyze(Path(directory))
    same, different = Verdict.IDENTICAL.value, Verdict.DIFFERENT.value
    counted = (
        (setup.name, f"{setup.pairs.identical} {same}", f"{setup.pairs.different} {different}", setup.pairs.sentence)
        for setup in analysis.setups
    )
    headline = f"study {analysis.name}: {analysis.runs_made} of {analysis.planned} runs, {len(analysis.setups)} setups"
    return View(
        headline, tuple(counted), (*analysis.attention, *analysis.verdicts), document=msgspec.to_builtins(analysis)
    )


def _path(run: str | Path) -> Path:
    from reprokit.run_files.home import resolve

    return resolve(str(run))


def _short(text: str) -> str:
    return printable(text, LONGEST)


def _html(text: str) -> str:
    return escape(_short(text))


def _cells(cells: Iterable[str]) -> Iterable[str]:
    for number, cell in enumerate(cells):
        weight = "" if number and cell not in _STRONG else ";font-weight:bold;white-space:nowrap"
        yield f'<td style="{_CELL}{weight}">{_html(cell)}</td>'
