"""Lists what profiles and rules found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reprokit.evidence.report import facts as audit
from reprokit.evidence.report.section import ReportedRuns
from reprokit.run_files import findings as findings_file
from reprokit.verify.show.summary import RunSummary

MAX_FINDINGS = 200


def section(runs: ReportedRuns) -> dict[str, Any]:
    """Return the findings, and a sentence on them."""
    reported, note = _findings(runs.summaries)
    return {"findings": reported, "findings_note": note}


def _findings(summaries: Sequence[RunSummary]) -> tuple[tuple[audit.ReportedFinding, ...], str]:
    """Return the findings of the first run that was profiled or judged by rules."""
    content = next((summary.findings for summary in summaries if summary.findings is not None), None)
    if content is None:
        return (), "No run was profiled: 'reprokit profile' looks for operations that are not deterministic."
    reported = tuple(
        audit.ReportedFinding(
            subject=finding.title,
            verdict=findings_file.WORDS[finding.verdict],
            why=finding.why,
            where=", ".join(f"{place.file}:{place.line}" for place in finding.where[:1]),
            cures=tuple(f"--patch {cure.patch}" if cure.patch else cure.does for cure in finding.cures),
        )
        for finding in content.findings[:MAX_FINDINGS]
    )
    notes = "; ".join((*content.notes, *content.rule_notes))
    return reported, findings_file.in_words(content) + (f". Notes: {notes}" if notes else "")
