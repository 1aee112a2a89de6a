"""Presents comparisons of runs on several hosts as rows of text and as JSON documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reprokit.core.difference import Verdict
from reprokit.core.screen import Cells, print_rows
from reprokit.run_files.rundir import HOSTS
from reprokit.verify.comparison import HostsComparison
from reprokit.verify.show.comparison import FORMAT, STYLES, causes, document, rows
from reprokit.verify.verdict import hosts_line, verdict_line


def print_hosts(result: HostsComparison, *, every_leaf: bool) -> None:
    """Print one row for each host, or with `every_leaf` its categories as well."""
    notes = [f"left: {result.left}", f"right: {result.right}", *(f"note: {note}" for note in result.notes)]
    notes += [f"ignored: {use}" for use in result.ignores]
    differing = [name for name, comparison in result.hosts.items() if comparison.verdict.differs]
    if differing and not every_leaf:
        pair = (f"{side}/{HOSTS}/{differing[0]}" for side in (result.left, result.right))
        notes.append(f"more of this host: reprokit verify {' '.join(pair)}")
    print_rows(hosts_line(result), list(_rows(result, every_leaf)), notes, f"bold {STYLES[result.verdict]}")


def _rows(result: HostsComparison, every_leaf: bool) -> Iterator[Cells]:
    for name, side in result.lacking:
        yield Cells((f"host {name}", Verdict.MISSING.value, f"the {side} run has no part"), STYLES[Verdict.MISSING])
    for name, comparison in result.hosts.items():
        style = STYLES[comparison.verdict]
        yield Cells((f"host {name}", comparison.verdict.value, verdict_line(comparison).partition(": ")[2]), style)
        for text in causes(comparison):
            yield Cells(("  likely cause", Verdict.INFORMATION.value, text), STYLES[Verdict.INFORMATION])
        for row in rows(comparison, every_leaf=True) if every_leaf else ():
            yield Cells(("  " * (row.depth + 1) + row.name, row.verdict.value, row.text), STYLES[row.verdict])
        for note in comparison.notes:
            yield Cells(("  note", "", note), STYLES[Verdict.INFORMATION])


def document_of_hosts(result: HostsComparison) -> dict[str, Any]:
    """Return the comparison as a JSON document; each host has the document of two runs."""
    return {
        "format": FORMAT,
        "verdict": result.verdict.value,
        "left": str(result.left),
        "right": str(result.right),
        "notes": list(result.notes),
        "lacking": [{"host": name, "in": side} for name, side in result.lacking],
        "hosts": {name: document(comparison) for name, comparison in result.hosts.items()},
    }
