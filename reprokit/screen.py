"""Prints labeled rows: as a table with colors on a terminal, as plain aligned lines in a pipe.

Whatever comes from a run directory passes through ``printable`` here, and reaches rich as Text, so
that neither terminal escapes nor rich's own markup in it mean anything.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reprokit.printable import printable

LONGEST_LINE = 4000


@dataclass(frozen=True)
class Cells:
    """The cells of a row, and a style of rich's for the last but one."""

    cells: tuple[str, ...]
    style: str = ""


def print_rows(headline: str, rows: Sequence[Cells], footer: Sequence[str] = (), style: str = "bold") -> None:
    """Print a headline, rows and closing lines."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that knows ASCII only is no reason to fail
    if sys.stdout.isatty():
        _print_table(headline, rows, footer, style)
    else:
        _print_plain(headline, rows, footer)


def labeled(rows: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return labels and texts; a label that several successive rows share is shown once."""
    rows_shown, before = [], ""
    for label, text in rows:
        rows_shown.append(("" if label == before else label, text))
        before = label
    return rows_shown


def _print_plain(headline: str, rows: Sequence[Cells], footer: Sequence[str]) -> None:
    safe = [[printable(cell, LONGEST_LINE) for cell in row.cells] for row in rows]
    widths = [max(map(len, column)) for column in zip(*safe, strict=True)] if safe else []
    lines = [printable(headline, LONGEST_LINE)]
    for cells in safe:
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
    lines += [printable(line, LONGEST_LINE) for line in footer]
    print("\n".join(lines))


def _print_table(headline: str, rows: Sequence[Cells], footer: Sequence[str], style: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    console.print(Text(printable(headline, LONGEST_LINE), style=style))
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for row in rows:
        texts = [Text(printable(cell, LONGEST_LINE), overflow="fold") for cell in row.cells]
        texts[0].no_wrap = True
        if row.style:
            texts[-2].stylize(row.style)
        table.add_row(*texts)
    console.print(table)
    for line in footer:
        console.print(Text(printable(line, LONGEST_LINE), style="dim"))
