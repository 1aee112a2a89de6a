"""Lists the patches that a run applied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reprokit.evidence.report import facts as audit
from reprokit.evidence.report.section import ReportedRuns
from reprokit.verify.show.summary import RunSummary


def section(runs: ReportedRuns) -> dict[str, Any]:
    """Return the patches of the first run."""
    return {"patches": tuple(_patches(runs.first))}


def _patches(summary: RunSummary) -> Iterator[audit.AppliedPatch]:
    for patch in summary.run.patches:
        yield audit.AppliedPatch(
            name=patch.text,
            state=patch.state.replace("-", " "),
            why=patch.why,
            warnings=tuple(patch.warnings),
        )
