"""Writes a study as one HTML file without external resources or required scripts; all texts are escaped."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from reprokit.core.errors import CannotWriteReport, refused_as
from reprokit.core.pages import environment as pages
from reprokit.core.printable import bounded, listed, printable
from reprokit.run_files import rundir
from reprokit.study import plots, tables
from reprokit.study.conclusions import RECORDED, answers
from reprokit.study.facts import SOURCES, Analysis, SetupFacts
from reprokit.study.tables import Row, TableRows
from reprokit.study.wording import size
from reprokit.verify.verdict import EQUAL_PAIRS

BEFORE_UNIT: Final = re.compile(r"(?<=[0-9]) (?=(?:%|s|B|[KMGT]iB)(?![A-Za-z]))")
PAGE_LIBRARIES: Final = ("scipy",)
NAME: Final = "study.html"  # in the directory of a study
MAX_ROWS: Final = 1000  # rows per table; the CSV files and the JSON document have all
MAX_NOTES: Final = 60
MAX_CELL: Final = 240  # characters
OUTCOMES: Final = {"identical": "identical", "different": "different", "not compared": "not-compared"}
SETUPS: Final = (
    *("setup", "what is done", "left to vary", "seeds", "patches", "runs finished", "failed", EQUAL_PAIRS),
)
HOST: Final = {
    "name": "name",
    "os": "operating system",
    "kernel": "kernel",
    "machine": "instruction set",
    "libc": "C library",
    "distribution": "distribution",
    "processor": "processor",
    "processors": "processors that runs may use",
    "memory": "memory",
    "gpus": "GPUs",
}


def missing() -> list[str]:
    """Return the packages that a page needs and that are not installed."""
    return [name for name in PAGE_LIBRARIES if find_spec(name) is None]


def write(analysis: Analysis, path: Path, mode: int = 0o644) -> None:
    """Write the page, completely or not at all; raises CannotWriteReport."""
    text = page(analysis)
    with refused_as(CannotWriteReport, path, "choose another file"):
        rundir.write_whole(path, text.encode("utf-8", "backslashreplace"), mode=mode)


def page(analysis: Analysis) -> str:
    """Return the content of the file."""
    templates = pages.environment("reprokit.study")
    bars, left_out = plots.variances(analysis)
    drawn, answered = plots.times(analysis), answers(analysis)
    return templates.get_template("study.html.jinja").render(
        study=pages.all_printable(_shown(analysis)),
        answers=answered,
        told=[
            (item.question, [_unbroken(line, pages.LONGEST) for line in item.sentences]) for item in answered.answers
        ],
        style=pages.style(templates, "page.css", "study.css"),
        setups=_table(TableRows("Setups", SETUPS, [_setup(item) for item in analysis.setups])),
        commands=_commands(analysis),
        times=_plot(drawn) if drawn is not None else None,
        costs=_table(tables.costs(analysis)),
        bars=list(map(_plot, bars)),
        bars_left_out=left_out,
        variance=_table(tables.variance(analysis)),
        courses=[_panels(item) for item in plots.courses(analysis)],
        process=_table(tables.process(analysis)),
        pairs=_table(tables.pairs(analysis)),
        every_pair=_table(tables.every_pair(analysis), marked=2),
        overhead=_table(tables.overhead(analysis)),
        not_compared=_table(_not_compared(analysis)),
        failed=_table(tables.failed(analysis)),
        notes=[printable(note, MAX_CELL) for note in _notes(analysis)],
        host=_table(_host(analysis)),
        steps=list(_steps(analysis)),
    )


def _shown(analysis: Analysis) -> dict[str, Any]:
    """Return the parts of the analysis that the page shows as they are."""
    names = ("name", "planned", "runs_made", "reprokit", "made", "attention", "methods", "process_left_out")
    sentences = {name: getattr(analysis.sentences, name) for name in analysis.sentences.__struct_fields__}
    courses = len(analysis.curves) - min(len(analysis.curves), plots.MAX_METRICS) + analysis.curves_left_out
    return {name: getattr(analysis, name) for name in names} | {"sentences": sentences, "courses_left_out": courses}


def _table(table: TableRows, marked: int | None = None) -> dict[str, Any]:
    """Return a table for the template; the cells of one column may be colored by outcome."""
    cells = [[_unbroken(cell, MAX_CELL) for cell in row] for row in table.rows[:MAX_ROWS]]
    if marked is not None:
        for row in cells:
            row[marked] = pages.unescaped(f'<span class="mark {OUTCOMES[row[marked]]}">{row[marked]}</span>')
    return {"title": table.title, "heads": table.heads, "rows": cells, "left_out": len(table.rows) - len(cells)}


def _unbroken(text: str, limit: int) -> str:
    """Return the text with each number and its unit kept together."""
    return BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", printable(text, limit))


def _plot(plot: plots.Plot) -> dict[str, Any]:
    return {"title": plot.title, "svg": pages.unescaped(plot.svg), "caption": plot.caption}


def _panels(panels: plots.Panels) -> dict[str, Any]:
    title = printable(panels.title, MAX_CELL)
    table = TableRows(f"{title}: ends of the curves", panels.heads, panels.rows)
    return {
        "title": title,
        "plots": list(map(_plot, panels.plots)),
        "caption": panels.caption,
        "table": _table(table),
    }


def _setup(setup: SetupFacts) -> Row:
    pairs = setup.pairs
    seeds, patches = (", ".join(map(str, values)) or "-" for values in (setup.seeds, setup.patches))
    finished = f"{setup.finished} of {setup.planned}"
    compared = pairs.identical + pairs.different
    identical = f"{pairs.identical} of {compared}" if compared else "-"
    return (setup.name, setup.words, SOURCES[setup.source], seeds, patches, finished, str(setup.failed), identical)


def _commands(analysis: Analysis) -> list[tuple[str, str]]:
    """Return each command with the setups that run it."""
    setups_by_command: dict[tuple[str, ...], list[str]] = {}
    for setup in analysis.setups:
        setups_by_command.setdefault(setup.command, []).append(setup.name)
    every = "all setups" if len(setups_by_command) == 1 else ""
    rows = [(every or ", ".join(names), shlex.join(command)) for command, names in setups_by_command.items()]
    return [(printable(names, MAX_CELL), printable(command, pages.LONGEST)) for names, command in rows]


def _not_compared(analysis: Analysis) -> TableRows:
    """Return the pairs that could not be compared, except untouched ones, which never can."""
    untouched = {setup.name for setup in analysis.setups if setup.kind == "untouched"}
    pairs = [pair for pair in analysis.pairs if pair.outcome == "not compared" and pair.setup not in untouched]
    rows: list[Row] = [(pair.setup, str(pair.pair), "; ".join((pair.words, *pair.notes))) for pair in pairs]
    return TableRows("Pairs that could not be compared", ("setup", "pair", "why"), rows)


def _notes(analysis: Analysis) -> list[str]:
    """Return the notes on evaluations, metrics and runs, each once per setup."""
    notes: dict[str, None] = {}
    for row in analysis.variance:
        notes |= dict.fromkeys(f"{row.setup}, {row.evaluation}: {note}" for note in row.notes)
    for metric in analysis.process:
        notes |= dict.fromkeys(f"{metric.setup}, {metric.metric}: {note}" for note in metric.notes)
    for run in analysis.runs:
        notes |= dict.fromkeys(f"{run.setup}: {note}" for note in run.notes)
    return list(bounded(notes, MAX_NOTES, " notes, which are in the JSON document"))


def _host(analysis: Analysis) -> TableRows:
    known = [(HOST.get(name, name), _host_value(name, value)) for name, value in analysis.host.items()]
    hosts = list(dict.fromkeys(run.host for run in analysis.runs if run.host))
    workers = list(dict.fromkeys(run.worker for run in analysis.runs if run.worker))
    lists = ("runs were made on", listed(hosts, 8)), ("by workers", listed(workers, 8))
    together = max((run.together for run in analysis.runs), default=1)
    known += [(name, values) for name, values in lists if values]
    rows: list[Row] = [*known, ("runs at the same time", str(together))]
    return TableRows("The machine that began the study", ("what", "value"), rows)


def _host_value(name: str, value: str) -> str:
    if name == "memory" and value.isdecimal():
        return size(int(value))
    return {"[]": "none", "": "unknown"}.get(value, value)


def _steps(analysis: Analysis) -> Iterator[tuple[str, str]]:
    yield "Install what pages and statistics need beside reprokit", f"pip install {' '.join(PAGE_LIBRARIES)}"
    yield (
        "Make the study again; study.json in its directory has all the keys of STUDY.toml",
        ("reprokit study run STUDY.toml -o again"),
    )
    yield "See what came of it, or every figure unrounded", "reprokit study show again\nreprokit study show again --csv"
    recorded = next((item for item in analysis.setups if item.kind in RECORDED and item.command), None)
    if recorded is not None:
        patches = "".join(f"--patch {shlex.quote(item)} " for item in recorded.patches)
        command = printable(shlex.join(recorded.command), pages.LONGEST)
        lines = f"reprokit record -o first {patches}-- {command}", "reprokit replay first -o second"
        yield f"Make one pair of {recorded.name} by hand", "\n".join([*lines, "reprokit verify first second"])
