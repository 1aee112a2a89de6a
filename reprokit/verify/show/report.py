"""A comparison on the screen: the verdict, the two runs, the categories, the notes."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from reprokit.difference import Verdict
from reprokit.screen import Cells, print_rows
from reprokit.verify.compare.series_leaves import KINDS
from reprokit.verify.compare.verdict_rows import causes, rows, verdict_line

if TYPE_CHECKING:
    from reprokit.rundir import RunDirectory
    from reprokit.verify.compare.runs import Comparison

STYLES = {
    Verdict.IDENTICAL: "green",
    Verdict.TOLERATED: "yellow",
    Verdict.DIFFERENT: "bold red",
    Verdict.MISSING: "bold red",
    Verdict.INFORMATION: "cyan",
    Verdict.NOT_RECORDED: "dim",
}


def print_comparison(comparison: Comparison, *, every_leaf: bool) -> None:
    """Print it, short or with every leaf."""
    cells = [Cells(("likely cause", "information", text), STYLES[Verdict.INFORMATION]) for text in causes(comparison)]
    cells += [
        Cells(("  " * row.depth + row.name, row.verdict.value, row.text), STYLES[row.verdict])
        for row in rows(comparison, every_leaf=every_leaf)
    ]
    footer = [_side("left", comparison.left), _side("right", comparison.right)]
    footer += [f"note: {note}" for note in comparison.notes]
    if comparison.tolerances:
        footer.append(f"tolerance: {comparison.tolerances}")
    if comparison.normalisations:
        footer.append(f"normalised: {'; '.join(comparison.normalisations)}")
    print_rows(verdict_line(comparison), cells, footer, f"bold {STYLES[comparison.verdict]}")


def _side(name: str, run: RunDirectory) -> str:
    return f"{name}: {run.path}, a {KINDS[run.run.kind]} of {shlex.join(run.run.command)}"
