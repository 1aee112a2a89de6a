"""Reads the answers of `reprokit resume` and `reprokit locate` as lines for the reports of their runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reprokit.model import divergence, resumption
from reprokit.questions import divergence_text, resume_text
from reprokit.verify.show.summary import RunSummary


def resumption_lines(summaries: Sequence[RunSummary]) -> Iterator[str]:
    """Yield the lines that `reprokit resume` printed about the first run, if that was its whole training."""
    outcomes = (resumption.read(summary.directory) for summary in summaries)
    content = next((outcome for outcome in outcomes if outcome is not None), None)
    yield from () if content is None else (line.strip() for line in resume_text.lines(content))


def divergence_lines(summaries: Sequence[RunSummary]) -> Iterator[str]:
    """Yield the lines that `reprokit locate` printed about these runs, or about the only run and another one."""
    run_ids = {summary.run.run_id for summary in summaries}
    for content in (divergence.read(summary.directory) for summary in reversed(summaries)):
        if content is not None and (len(run_ids) == 1 or run_ids.issuperset(content.run_ids)):
            if not run_ids.issuperset(content.run_ids):
                yield f"of {content.left} and {content.right}:"
            yield from (line.strip() for line in divergence_text.lines(content))
            break
