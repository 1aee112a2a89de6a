"""Reads the answers of `reprokit resume` and `reprokit locate` as lines for the reports of their runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from reprokit.evidence.report.section import ReportedRuns
from reprokit.questions import divergence_text, resume_text
from reprokit.run_files import answers
from reprokit.verify.show.summary import RunSummary


def section(runs: ReportedRuns) -> dict[str, Any]:
    """Return what was asked of the runs, and answered."""
    resumed, parted = resumption_lines(runs.summaries), divergence_lines(runs.summaries)
    return {"resumption": tuple(resumed), "divergence": tuple(parted)}


def resumption_lines(summaries: Sequence[RunSummary]) -> Iterator[str]:
    """Yield the lines that `reprokit resume` printed about the first run, if that was its whole training."""
    outcomes = (answers.resumption(summary.directory) for summary in summaries)
    content = next((outcome for outcome in outcomes if outcome is not None), None)
    yield from () if content is None else (line.strip() for line in resume_text.lines(content))


def divergence_lines(summaries: Sequence[RunSummary]) -> Iterator[str]:
    """Yield the lines that `reprokit locate` printed about these runs, or about the only run and another one."""
    run_ids = {summary.run.run_id for summary in summaries}
    for content in (answers.divergence(summary.directory) for summary in reversed(summaries)):
        if content is not None and (len(run_ids) == 1 or run_ids.issuperset(content.run_ids)):
            if not run_ids.issuperset(content.run_ids):
                yield f"of {content.left} and {content.right}:"
            yield from (line.strip() for line in divergence_text.lines(content))
            break
