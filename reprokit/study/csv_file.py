"""An analysis as CSV: one line for each figure, so that one file holds all tables and any program can read it."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from io import StringIO
from typing import Any, Final

import msgspec

from reprokit.printable import printable
from reprokit.study.facts import Analysis

HEAD: Final = ("table", "setup", "row", "figure", "value")
_TABLES: Final = {  # what names a row beside its setup
    "setups": ("kind", "source"),
    "overhead": ("effect", "base", "measure"),
    "variance": ("evaluation", "way"),
    "process": ("metric", "by", "way"),
    "pairs": ("pair",),
    "runs": ("pair", "part"),
}
_FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")  # with which a spreadsheet begins to compute


def text(analysis: Analysis) -> str:
    """All tables; numbers as Python writes them, so that none is rounded."""
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
    """The leaves of a row, named by the way to them."""
    if isinstance(row, dict):
        for key, value in row.items():
            yield from _figures(value, f"{prefix}.{key}" if prefix else key)
    elif isinstance(row, list | tuple) and any(isinstance(one, dict | list) for one in row):
        for number, value in enumerate(row):
            yield from _figures(value, f"{prefix}.{number}")
    elif isinstance(row, list | tuple):
        yield prefix, " ".join(map(str, row))
    else:
        yield prefix, row


def _safe(value: Any) -> Any:
    """A cell that no terminal and no spreadsheet acts upon; numbers as they are."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return value
    shown = printable(value, 4000)
    return f"'{shown}" if shown.startswith(_FORMULAS) else shown
