"""Presents a report on several runs: as an HTML page, as Markdown, and on the screen."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import msgspec

from reprokit.core.difference import Verdict
from reprokit.core.pages import environment as pages
from reprokit.core.pages.markdown import code, escaped
from reprokit.core.screen import Cells, print_rows
from reprokit.evidence.report.html import FILTERS, came
from reprokit.evidence.report.markdown import bulleted, table
from reprokit.evidence.report.phrases import EXECUTED, JUDGMENTS, MARKS, ignored_lines
from reprokit.evidence.report.several import DIFFERING, DifferingRow, SeveralFacts
from reprokit.verify.categories.status import seconds
from reprokit.verify.show.comparison import STYLES
from reprokit.verify.verdict import OUTCOMES

MARKS_OF_RUNS = {**JUDGMENTS, "failed": "equal, but failed"}


def page(facts: SeveralFacts) -> str:
    """Return the report as one HTML file without external resources or scripts; all texts are escaped."""
    templates = pages.environment("reprokit.evidence.report")
    shown = pages.all_printable(msgspec.to_builtins(facts))
    for run in shown["runs"]:
        if run["verdict"] is not None:
            run["came"] = came({"verdict": run["verdict"]["outcome"]})
        run |= {"took": seconds(run["run"]["seconds"]), "command": shlex.join(run["run"]["command"])}
    for row in shown["categories"]:
        row["came"] = " ".join(dict.fromkeys(came({"verdict": verdict}) for verdict in row["verdicts"]))
    for row in shown["metrics"]:
        row["came"] = "differs" if len(set(row["values"])) > 1 else "same"
    rows = shown["differing"][: pages.MOST_ROWS]
    for row in rows:
        row["first"] = _first(row["runs"])
        for item in filter(None, row["runs"]):
            item["differs"] = came(item) == "differs"
    return templates.get_template("several.html.jinja").render(
        facts=shown,
        title=f"{OUTCOMES[facts.outcome]}: {len(facts.runs)} runs",
        style=pages.style(templates, "page.css", "report.css"),
        outcome=OUTCOMES[facts.outcome],
        executed=EXECUTED["unknown"],
        filters=FILTERS,
        marks=MARKS_OF_RUNS,
        differing=DIFFERING,
        rows=rows,
        rows_left_out=len(facts.differing) - len(rows) + facts.differing_left_out,
        ignored=ignored_lines(facts),
        again=again(facts),
        digests=[[run["name"], run["run"]["digest"]] for run in shown["runs"]],
    )


def _first(items: list[Any]) -> str:
    """Return the first run's value, if all comparisons that list it have the same."""
    values = {item["left"] for item in items if item is not None}
    return values.pop() if len(values) == 1 else ""


def again(facts: SeveralFacts) -> str:
    """Return the command that compares these runs again."""
    return shlex.join(["reprokit", "verify", *(run.run.path for run in facts.runs)])


def markdown(facts: SeveralFacts) -> str:
    """Return the report as Markdown text."""
    return "\n".join(_lines(facts)) + "\n"


def _lines(facts: SeveralFacts) -> Iterator[str]:
    yield from (f"**{escaped(line)}**\n" for line in facts.attention)
    yield f"# {OUTCOMES[facts.outcome]}\n"
    yield f"{escaped(facts.sentence, 4000)}\n"
    yield f"{EXECUTED['unknown']}\n"
    yield "## The runs\n"
    yield from table(
        ["run", "compared with the first", "first difference", "how it ended"],
        [[escaped(cell) for cell in row] for row in run_rows(facts)],
    )
    names = [escaped(run.name) for run in facts.runs]
    yield "## What came out, by kind\n"
    kinds = [
        [escaped(row.name), "the first", *(MARKS[verdict] for verdict in row.verdicts)] for row in facts.categories
    ]
    yield from table(["kind", *names], kinds)
    yield "## Last values of losses and metrics\n"
    yield from table(["metric", *names], [[escaped(row.name), *map(escaped, row.values)] for row in facts.metrics])
    yield "## What differs, causes before effects\n"
    yield from table(["what", *names[1:]], [_cells(row) for row in facts.differing])
    yield from bulleted(ignored_lines(facts), "Ignored, as it was declared that they may differ:\n")
    yield from bulleted(facts.notes, "To be kept in mind:\n")
    yield "## Limits\n"
    yield from bulleted(facts.limits)
    yield f"Compare the run directories again: {code(again(facts), 4000)}\n"
    yield f"Made on {facts.made} by reprokit {facts.reprokit}. It is evidence for what it states."


def _cells(row: DifferingRow) -> list[str]:
    """Return a row of values, each pair with the first run's on the left."""
    cells = [f"{escaped(row.category)}: {escaped(row.name)}"]
    for item in row.runs:
        if item is None or came(msgspec.to_builtins(item)) != "differs":
            cells.append("" if item is None else MARKS[item.verdict])
        else:
            cells.append(f"{code(item.left or 'nothing')} / {code(item.right or 'nothing')}")
    return cells


def run_rows(facts: SeveralFacts) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for each run: its name, how it compares, its first difference, and how it ended."""
    for run in facts.runs:
        if run.verdict is None:
            yield run.name, "the first", "", run.run.state
        else:
            first = run.verdict.first_difference
            yield run.name, MARKS_OF_RUNS[run.verdict.outcome], first or run.verdict.sentence, run.run.state


def print_several(facts: SeveralFacts) -> None:
    """Print warnings, the verdict, a line for each run and the last values of metrics."""
    for line in facts.attention:
        print_rows(line, [])
    rows = [
        Cells((name, state, verdict, sentence), _style(verdict)) for name, verdict, sentence, state in run_rows(facts)
    ]
    values = [f"{row.name}: {', '.join(value or '-' for value in row.values)}" for row in facts.metrics]
    notes = [f"note: {note}" for note in facts.notes]
    footer = ["", *values, *notes, "", f"Made on {facts.made}. --format html has all of it."]
    print_rows(f"{OUTCOMES[facts.outcome]}. {facts.sentence}", rows, footer, _style(facts.outcome) or "bold")


def _style(outcome: str) -> str:
    """Return the style of an outcome; none of what is no verdict of a comparison."""
    return next((STYLES[verdict] for verdict in Verdict if verdict.value == outcome), "")
