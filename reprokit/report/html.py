"""The report as one HTML file: nothing in it is fetched, no script is needed, and every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from reprokit.errors import ExtraMissing
from reprokit.printable import printable
from reprokit.report import svg
from reprokit.report.facts import AuditFacts, Curve, document
from reprokit.report.words import MARKS, OUTCOMES, entropy_rows, run_rows

LONGEST = 2000  # characters of one text


def page(facts: AuditFacts) -> str:
    """The whole file."""
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError:
        raise ExtraMissing(
            "an HTML report needs jinja2; pip install 'reprokit-harness[report]', or --format markdown"
        ) from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("reprokit.report"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"short": _short, "pairs": _pairs, "heading": _heading}
    template = environment.get_template("report.html.jinja")
    style = environment.loader.get_source(environment, "report.css")[0]  # type: ignore[union-attr]
    shown = _printable(document(facts))
    drawn = [{"svg": Markup(svg.drawing(curve, n)), "caption": _caption(curve)} for n, curve in enumerate(facts.curves)]
    return template.render(
        facts=shown, two=len(facts.runs) > 1, style=Markup(style), marks=MARKS, curves=drawn, **_tables(facts, shown)
    )


def _tables(facts: AuditFacts, shown: dict[str, Any]) -> dict[str, Any]:
    """What stands in tables, row by row."""
    runs = shown["runs"]
    return {
        "outcome": OUTCOMES[facts.verdict.outcome],
        "run_heads": ["what", *(["first run", "second run"] if len(runs) > 1 else ["this run"])],
        "runs": [_printable(row) for row in run_rows(facts)],
        "digests": [[run["run_id"], run["digest"]] for run in runs],
        "entropy": [_printable(row) for row in entropy_rows(facts)],
        "askers": [list(asker.values()) for asker in shown["entropy"]["askers"]],
        "findings": [
            [one["subject"], one["verdict"], one["why"], one["where"], "; ".join(one["cures"])]
            for one in shown["findings"]
        ],
        "patches": [[one["name"], one["state"], one["why"], "; ".join(one["warnings"])] for one in shown["patches"]],
        "packages": [[one["name"], one["version"], "yes" if one["imported"] else ""] for one in shown["packages"]],
    }


def _caption(curve: Curve) -> str:
    sides = "First run: wide solid line; second run: thin dashed line. " if curve.right else ""
    return printable(f"{curve.name}. {sides}{svg.description(curve).capitalize()}.", LONGEST)


def _printable(value: Any) -> Any:
    """The same without anything that a reader's screen might act upon."""
    if isinstance(value, str):
        return printable(value, LONGEST)
    if isinstance(value, dict):
        return {key: _printable(inner) for key, inner in value.items()}
    return [_printable(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _short(text: str, limit: int) -> str:
    return printable(text, limit)


def _pairs(stated: Iterable[dict[str, str]]) -> list[tuple[str, str]]:
    return [(one["name"], one["value"]) for one in stated]


def _heading(text: str) -> str:
    return text[:1].upper() + text[1:]
