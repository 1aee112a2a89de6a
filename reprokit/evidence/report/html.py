"""Writes the report as one HTML file without external resources or required scripts; all texts are escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from reprokit.core.pages import drawing as drawings
from reprokit.core.pages import environment as pages
from reprokit.core.pages.drawing import Axis
from reprokit.core.printable import printable
from reprokit.evidence.report.facts import AuditFacts, CurvePoint, MetricCurve
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

WIDTH, HEIGHT = 720, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 30  # margins
URGENCY = {"different": 0, "missing": 0, "tolerated": 1, "ignored": 1}


def page(facts: AuditFacts, signed: Sequence[tuple[str, str]] = ()) -> str:
    """Return the content of the file; `signed` is the name of the signed statement next to it."""
    templates = pages.environment("reprokit.evidence.report", "or --format markdown")
    templates.filters["urgent"] = _urgent
    template = templates.get_template("report.html.jinja")
    shown = pages.all_printable(msgspec.to_builtins(facts))
    drawn = [
        {"svg": pages.unescaped(curve_drawing(curve, n)), "caption": _caption(curve)}
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
        "askers": [
            [f"{value:,}" if isinstance(value, int) else value for value in asker.values()]
            for asker in shown["entropy"]["askers"]
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


def _caption(curve: MetricCurve) -> str:
    both = bool(curve.right) and is_drawn(curve)
    sides = "First run: wide solid line; second run: thin dashed line. " if both else ""
    return printable(f"{curve.name}. {sides}{description(curve).capitalize()}.", pages.LONGEST)


def _urgent(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items with those that differ first, as nobody finds them among thousands."""
    return sorted(items, key=lambda item: URGENCY.get(item["verdict"], len(URGENCY)))


def curve_drawing(curve: MetricCurve, number: int) -> str:
    """Draw one metric of both runs in one plot; empty for single values, which the text states."""
    if not is_drawn(curve):
        return ""
    points = [(point.step, point.value) for point in (*curve.left, *curve.right) if point.value is not None]
    body = [drawings.text((LEFT, HEIGHT // 2), "no finite value")]
    if points:
        across = drawings.axis([step for step, _ in points], LEFT, WIDTH - RIGHT)
        up = drawings.axis([value for _, value in points], HEIGHT - BOTTOM, TOP)
        lines = [_line(curve.left, "first", across, up), _line(curve.right, "second", across, up)]
        body = [*_axes(across, up, curve.unit), *lines]
    return drawings.drawing((WIDTH, HEIGHT), f"curve{number}", curve.name, description(curve), body)


def is_drawn(curve: MetricCurve) -> bool:
    """Return whether there is a line to draw."""
    return max(curve.values) > 1


def description(curve: MetricCurve) -> str:
    """Describe the drawing in words."""
    sides = list(zip((curve.left, curve.right), curve.values, curve.not_finite, strict=True))
    if curve.right and sides[0] == sides[1]:
        return f"both runs: {_side(curve.unit, *sides[0])}"
    named_sides = zip(("first", "second"), sides, strict=True)
    return "; ".join(f"{name} run: {_side(curve.unit, *side)}" for name, side in named_sides if side[1])


def _side(unit: str, points: Sequence[CurvePoint], count: int, bad: int) -> str:
    values = [point.value for point in points if point.value is not None]
    ends = ["no number" if point.value is None else f"{point.value:.6g}" for point in (*points[:1], *points[-1:])]
    span = f", from {ends[0]} to {ends[-1]}, least {min(values):.6g}" if values else ""
    span = f", {values[0]:.6g}" if count == 1 and values else span
    return f"{count:,} {unit}{'' if count == 1 else 's'}{span}" + (f", {bad:,} not finite" if bad else "")


def _line(points: Iterable[CurvePoint], name: str, across: Axis, up: Axis) -> str:
    places = [(across.place(point.step), up.place(point.value)) for point in points if point.value is not None]
    return drawings.line(places, name, 4 if name == "first" else 2)


def _axes(across: Axis, up: Axis, unit: str) -> Iterator[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    yield drawings.path("axis", f"M{LEFT} {TOP}V{bottom}H{right}")
    yield drawings.text((LEFT - 6, TOP + 8), f"{up.high:.4g}", "end")
    yield drawings.text((LEFT - 6, bottom), f"{up.low:.4g}", "end")
    yield drawings.text((LEFT, HEIGHT - 10), f"{unit} {across.low}")
    yield drawings.text((right, HEIGHT - 10), f"{unit} {across.high}", "end")
