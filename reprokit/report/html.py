"""The report as one HTML file: nothing in it is fetched, no script is needed, and every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from reprokit.pages import environment as pages
from reprokit.printable import printable
from reprokit.report import svg
from reprokit.report.facts import AuditFacts, MetricCurve
from reprokit.report.phrases import EXECUTED, JUDGEMENTS, OUTCOMES, counted, entropy_rows, run_rows

URGENCY = {"different": 0, "missing": 0, "tolerated": 1}


def page(facts: AuditFacts) -> str:
    """The whole file."""
    templates = pages.environment("reprokit.report", "or --format markdown")
    templates.filters |= {"pairs": _pairs, "urgent": _urgent}
    template = templates.get_template("report.html.jinja")
    shown = pages.all_printable(msgspec.to_builtins(facts))
    drawn = [
        {"svg": pages.unescaped(_drawing(curve, n)), "caption": _caption(curve)} for n, curve in enumerate(facts.curves)
    ]
    return template.render(
        facts=shown,
        two=len(facts.runs) > 1,
        style=pages.style(templates, "page.css", "report.css"),
        marks=JUDGEMENTS,
        curves=drawn,
        **_tables(facts, shown),
    )


def _tables(facts: AuditFacts, shown: dict[str, Any]) -> dict[str, Any]:
    """What stands in tables, row by row."""
    runs = shown["runs"]
    return {
        "outcome": OUTCOMES[facts.verdict.outcome],
        "executed": EXECUTED[facts.executed_by],
        "counted": counted(facts),
        "run_heads": ["what", *(["first run", "second run"] if len(runs) > 1 else ["this run"])],
        "runs": [pages.all_printable(row) for row in run_rows(facts)],
        "digests": [[run["run_id"], run["digest"], run["original"] or "the same"] for run in runs],
        "entropy": [pages.all_printable(row) for row in entropy_rows(facts)],
        "askers": [list(map(_grouped, asker.values())) for asker in shown["entropy"]["askers"]],
        "findings": [
            [one["subject"], one["verdict"], one["why"], one["where"], "; ".join(one["cures"])]
            for one in shown["findings"]
        ],
        "patches": [[one["name"], one["state"], one["why"], "; ".join(one["warnings"])] for one in shown["patches"]],
        "packages": [[one["name"], one["version"], "yes" if one["imported"] else ""] for one in _imported_first(shown)],
    }


def _drawing(curve: MetricCurve, number: int) -> str:
    return svg.drawing(curve, number) if svg.is_drawn(curve) else ""


def _caption(curve: MetricCurve) -> str:
    both = bool(curve.right) and svg.is_drawn(curve)
    sides = "First run: wide solid line; second run: thin dashed line. " if both else ""
    return printable(f"{curve.name}. {sides}{svg.description(curve).capitalize()}.", pages.LONGEST)


def _pairs(stated: Iterable[dict[str, str]]) -> list[tuple[str, str]]:
    return [(one["name"], one["value"]) for one in stated]


def _grouped(value: Any) -> Any:
    return f"{value:,}" if isinstance(value, int) else value


def _imported_first(shown: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(shown["packages"], key=lambda one: not one["imported"])


def _urgent(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What differs stands first: among ten thousand tensors nobody would find it."""
    return sorted(items, key=lambda item: URGENCY.get(item["verdict"], len(URGENCY)))
