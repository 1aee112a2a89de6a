"""Prints labeled rows: as a table with colors on a terminal, as plain aligned lines in a pipe.

Whatever comes from a run directory passes through ``printable`` here, and reaches rich as Text, so
that neither terminal escapes nor rich's own markup in it mean anything.
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reprokit.core.printable import printable

LONGEST_LINE = 4000
GAP = 2  # spaces between columns


@dataclass(frozen=True)
class Cells:
    """The cells of a row, and a style of rich's for the last but one."""

    cells: tuple[str, ...]
    style: str = ""


@dataclass(frozen=True)
class OneLine:
    """Says how each row is fitted into one line: a column is cut; on a terminal others are left out if need be."""

    cut: int
    least: int  # width to which that column is cut
    left_out: tuple[int, ...]  # columns, the least important first

    def fitted(self, table: list[list[str]], width: int, *, is_whole: bool) -> tuple[list[list[str]], list[int]]:
        """Return the rows as they fit into lines of this width, and which columns are left; is_whole: all are."""
        widths = [max(map(width_of, column)) for column in zip(*table, strict=True)]
        kept = list(range(len(widths)))
        least = widths[self.cut] = min(self.least, widths[self.cut])
        rest = width - sum(widths) - GAP * (len(widths) - 1)
        for column in () if is_whole else self.left_out:
            if rest < 0:
                rest += widths[column] + GAP
                kept.remove(column)
        cut = least + max(rest, 0)
        return [
            [_cut(row[column], cut) if column == self.cut else row[column] for column in kept] for row in table
        ], kept


def print_rows(
    headline: str,
    rows: Sequence[Cells],
    footer: Sequence[str] = (),
    style: str = "bold",
    one_line: OneLine | None = None,
) -> None:
    """Print a headline, rows and closing lines; on a terminal cells are folded where a row is not in one line."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that knows ASCII only is no reason to fail
    width, is_terminal = shutil.get_terminal_size().columns, sys.stdout.isatty()
    table = [[printable(cell, LONGEST_LINE) for cell in row.cells] for row in rows]
    columns = list(range(len(table[0]))) if table else []
    styled = len(columns) - 2
    if one_line is not None and table:
        table, columns = one_line.fitted(table, width, is_whole=not is_terminal)
    lines = [printable(line, LONGEST_LINE) for line in (headline, *footer)]
    if is_terminal:
        styles = [[row.style if column == styled else "" for column in columns] for row in rows]
        _print_table(lines, table, styles, style, width, folds=one_line is None)
    else:
        _print_plain(lines, table)


def labeled(rows: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return labels and texts; a label that several successive rows share is shown once."""
    rows_shown, before = [], ""
    for label, text in rows:
        rows_shown.append(("" if label == before else label, text))
        before = label
    return rows_shown


def width_of(text: str) -> int:
    """Return how many columns of a terminal a text takes: Chinese and Japanese characters take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _cut(text: str, width: int) -> str:
    if width_of(text) <= width:
        return text
    from rich.cells import set_cell_size

    return f"{set_cell_size(text, width - 1).rstrip()}…"


def _print_plain(lines: list[str], table: list[list[str]]) -> None:
    widths = [max(map(width_of, column)) for column in zip(*table, strict=True)] if table else []
    rows = []
    for cells in table:
        padded = (cell + " " * (width - width_of(cell)) for cell, width in zip(cells, widths, strict=True))
        rows.append((" " * GAP).join(padded).rstrip())
    print("\n".join([lines[0], *rows, *lines[1:]]))


def _print_table(
    lines: list[str], table: list[list[str]], styles: list[list[str]], style: str, width: int, *, folds: bool
) -> None:
    from rich.console import Console, OverflowMethod
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False, width=width)
    console.print(Text(lines[0], style=style))
    painted = Table(show_header=False, box=None, padding=(0, GAP, 0, 0), pad_edge=False)
    overflow: OverflowMethod = "fold" if folds else "ellipsis"
    for cells in map(zip, table, styles):
        painted.add_row(*(Text(text, styled, overflow=overflow, no_wrap=not folds) for text, styled in cells))
    console.print(painted)
    for line in lines[1:]:
        console.print(Text(line, style="dim"))
