"""Writes the audit facts as files that DVC reads: metrics as JSON, curves as CSV."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from reprokit.core.errors import CannotWriteReport
from reprokit.evidence.report.facts import AuditFacts, MetricCurve

NOT_FINITE = "not finite"  # in place of a number that JSON lacks; DVC also shows texts
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")


def write(facts: AuditFacts, output: Path, plots: Path | None = None) -> list[Path]:
    """Write the metrics, and the curves if there is a directory for them; returns the written files."""
    written = [output]
    try:
        output.write_text(json.dumps(metrics(facts), indent=2) + "\n", encoding="utf-8")
        if plots is not None:
            plots.mkdir(parents=True, exist_ok=True)
            for name, curve in _named(facts.curves):
                written.append(plots / f"{name}.csv")
                written[-1].write_text(_table(curve), encoding="utf-8")
    except OSError as error:
        raise CannotWriteReport(f"{error.filename}: {error.strerror}; choose another with -o") from None
    return written


def metrics(facts: AuditFacts) -> dict[str, Any]:
    """Return the numbers that 'dvc metrics' compares between commits; no times, so that equal runs give equal files."""
    of_comparison: dict[str, Any] = {}
    if facts.verdict.outcome != "not-compared":
        of_comparison["identical"] = int(facts.verdict.outcome == "identical")
        judged = [item for category in facts.categories for item in category.items]
        count = sum(item.verdict in ("different", "missing") for item in judged)
        of_comparison["different"] = max(
            count, int(facts.verdict.outcome == "different")
        )  # also if only the command differs
    if facts.entropy.exactly_answered is not None:
        of_comparison["fidelity"] = facts.entropy.exactly_answered
    last = {name: curve.left[-1].value for name, curve in _named(facts.curves) if curve.left}
    return {
        "reprokit": of_comparison,
        "last": {name: NOT_FINITE if value is None else value for name, value in last.items()},
    }


def _named(curves: tuple[MetricCurve, ...]) -> list[tuple[str, MetricCurve]]:
    """Return the curves with names that are valid file names."""
    curves_by_name: dict[str, MetricCurve] = {}
    for curve in curves:
        name = _UNFIT.sub("_", curve.name).strip("._")[:100] or "curve"
        while name in curves_by_name:
            name += "_"
        curves_by_name[name] = curve
    return list(curves_by_name.items())


def _table(curve: MetricCurve) -> str:
    """Return the steps and values of the first run's curve as CSV."""
    lines = [f"{point.step},{point.value!r}" for point in curve.left if point.value is not None]
    return "\n".join([f"{curve.unit},value", *lines]) + "\n"
