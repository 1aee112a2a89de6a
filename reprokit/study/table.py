"""An analysis on the terminal: its tables, each with a sentence of what it means."""

from __future__ import annotations

from reprokit.screen import Cells, print_rows
from reprokit.study.facts import Analysis
from reprokit.study.tables import TableRows, tables

MAX_ROWS = 200  # of a table on the screen; the CSV files and the JSON document have all


def print_analysis(analysis: Analysis) -> None:
    """All tables on stdout."""
    told = f"{analysis.runs_made} of {analysis.planned} runs, {len(analysis.setups)} setups"
    print_rows(f"Study {analysis.name}: {told}", [], analysis.attention)
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
