"""Writes the report as one HTML file without external resources or required scripts; all texts are escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from reprokit.core.pages import environment as pages
from reprokit.core.printable import printable
from reprokit.evidence.report.curve_chart import caption, curve_drawing
from reprokit.evidence.report.facts import AuditFacts, MetricCurve
from reprokit.evidence.report.phrases import (
    EXECUTED,
    JUDGMENTS,
    counted,
    entropy_rows,
    ignored_lines,
    outcome,
    run_rows,
)
from reprokit.evidence.report.sections.histograms import description as description_of_histogram
from reprokit.evidence.report.sections.histograms import histogram_drawing

FILTERS = {"differs": "only what differs", "same": "only what is the same", "other": "only what was not compared"}
SAME = ("identical", "bookkeeping")
URGENCY = {"different": 0, "missing": 0, "failed": 0, "tolerated": 1, "ignored": 1}


def page(facts: AuditFacts, signed: Sequence[tuple[str, str]] = ()) -> str:
    """Return the content of the file; `signed` is the name of the signed statement next to it."""
    templates = pages.environment("reprokit.evidence.report")
    templates.filters |= {"urgent": _urgent, "came": came, "left_out": _left_out}
    template = templates.get_template("report.html.jinja")
    shown = pages.all_printable(msgspec.to_builtins(facts))
    drawn = [
        {"svg": pages.unescaped(curve_drawing(curve, n)), "caption": caption(curve), "came": _course(curve)}
        for n, curve in enumerate(facts.curves)
    ]
    spread = [
        {"svg": pages.unescaped(histogram_drawing(histogram, n)), "caption": description_of_histogram(histogram)}
        for n, histogram in enumerate(facts.histograms)
    ]
    return template.render(
        facts=shown,
        two=len(facts.runs) > 1,
        style=pages.style(templates, "page.css", "report.css"),
        marks=JUDGMENTS,
        filters=FILTERS,
        signed=signed,
        runs_on_paper=_on_paper([run.run_id for run in facts.runs]),
        curves=drawn,
        histograms=spread,
        wrong=facts.wrong_predictions,  # numbers, and base64 from this package
        **_tables(facts, shown),
    )


def _on_paper(run_ids: Sequence[str]) -> str:
    """Return the run ids for the foot of printed pages, as a style sheet can hold them."""
    names = " and ".join(re.sub(r"[^\w.-]", "?", name, flags=re.ASCII)[:64] for name in run_ids)
    return f"run{'s' if len(run_ids) > 1 else ''} {names}"


def _tables(facts: AuditFacts, shown: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of the tables."""
    runs = shown["runs"]
    return {
        "outcome": outcome(facts),
        "ignored": [printable(line, pages.LONGEST) for line in ignored_lines(facts)],
        "executed": EXECUTED[facts.executed_by],
        "counted": counted(facts),
        "run_heads": ["what", *(["first run", "second run"] if len(runs) > 1 else ["this run"])],
        "runs": [pages.all_printable(row) for row in run_rows(facts)],
        "code": [list(row_facts.values()) for row_facts in shown["trained"]["code"]],
        "data": [list(row_facts.values()) for row_facts in shown["trained"]["data"]],
        "digests": [[run["run_id"], run["digest"], run["original"] or "the same"] for run in runs],
        "entropy": [pages.all_printable(row) for row in entropy_rows(facts)],
        "purposes": [
            [f"{value:,}" if isinstance(value, int) else value for value in purpose.values()]
            for purpose in shown["entropy"]["purposes"]
        ],
        "confusion": [
            {
                "title": f"Predictions: {row_facts['title']}",
                "heads": ["true class", "samples", *(f"as {name}" for name in row_facts["classes"])],
                "rows": [
                    [str(name), f"{sum(row):,}", *(f"{count:,}" for count in row)]
                    for name, row in zip(row_facts["classes"], row_facts["counts"], strict=True)
                ],
                "left_out": row_facts["left_out"],
            }
            for row_facts in shown["confusion"]
        ],
        "findings": [
            [
                row_facts["subject"],
                row_facts["verdict"],
                row_facts["why"],
                row_facts["where"],
                "; ".join(row_facts["cures"]),
            ]
            for row_facts in shown["findings"]
        ],
        "patches": [
            [row_facts["name"], row_facts["state"], row_facts["why"], "; ".join(row_facts["warnings"])]
            for row_facts in shown["patches"]
        ],
        "packages": [
            [row_facts["name"], row_facts["version"], "yes" if row_facts["imported"] else ""]
            for row_facts in sorted(shown["packages"], key=lambda row_facts: not row_facts["imported"])
        ],
    }


def came(item: dict[str, Any]) -> str:
    """Return which choice of the page's filter shows something that was compared."""
    if item["verdict"] in URGENCY or (item.get("can_change_results") and item["left"] != item["right"]):
        return "differs"
    return "same" if item["verdict"] in SAME else "other"


def _left_out(items: Sequence[dict[str, Any]]) -> str:
    """Say what the rows are that a page leaves out."""
    differing = sum(came(item) == "differs" for item in items)
    return f"rows ({differing:,} of which differ)" if differing else "rows, none of which differs,"


def _urgent(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items with those that differ first, as nobody finds them among thousands."""
    return sorted(items, key=lambda item: URGENCY.get(item["verdict"], len(URGENCY)))


def _course(curve: MetricCurve) -> str:
    """Return which choice of the page's filter shows a curve."""
    is_same = (curve.left, curve.values[0]) == (curve.right, curve.values[1])
    return "other" if not (curve.left and curve.right) else "same" if is_same else "differs"
