"""Says what a reader must know before the verdict of a report: what failed, what was switched off, what cannot be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from reprokit.evidence.report.section import ReportedRuns
from reprokit.model.run import NO_END
from reprokit.model.states import off_in
from reprokit.verify.categories.status import date_problems
from reprokit.verify.show.summary import RunSummary


def section(runs: ReportedRuns) -> dict[str, Any]:
    """Return the warnings that stand before the verdict."""
    failures = () if runs.execution is None else runs.execution.failures
    return {"attention": (*failures, *attention(runs.summaries, runs.made))}


def attention(summaries: Sequence[RunSummary], made: str) -> Iterator[str]:
    """Yield the warnings to be shown before the verdict of a report that is dated so."""
    yield from _ends(summaries)
    yield from _switched_off(summaries)
    yield from _dates(summaries, made)


def _ends(summaries: Sequence[RunSummary]) -> Iterator[str]:
    """Yield what is lacking of runs: their ends, processes that went on, programs that nobody saw."""
    for summary, side in zip(summaries, ("first", "second"), strict=False):
        name = "This run" if len(summaries) == 1 else f"The {side} run"
        if summary.in_progress:
            yield f"{name} is still in progress: what is said here can change."
        elif summary.directory.unfinished:
            yield f"{name} {NO_END}. What it had recorded until then is shown."
        elif not summary.succeeded:
            yield f"{name} failed: {summary.state}."
        if summary.run.outliving:
            yield f"{name} was closed too early: {summary.run.outliving_in_words}."
        if summary.run.out_of_reach:
            yield f"{name} is not recorded whole: {summary.run.out_of_reach_in_words}."


def _switched_off(summaries: Sequence[RunSummary]) -> Iterator[str]:
    """Yield what is not known of the runs as the user switched it off."""
    for option in off_in(part for summary in summaries for part in summary.run.switched_off):
        whose = [option in off_in(summary.run.switched_off) for summary in summaries]
        runs = "Both runs lack" if all(whose) else f"The {'first' if whose[0] else 'second'} run lacks"
        runs = "This run lacks" if len(whose) == 1 else runs
        yield f"{runs} {option.lost}: it was switched off by {option.option}."


def _dates(summaries: Sequence[RunSummary], made: str) -> Iterator[str]:
    """Yield what cannot be of the dates of the runs and of the report."""
    yield from (f"{text[:1].upper()}{text[1:]}." for text in date_problems(*(summary.run for summary in summaries)))
    for summary in summaries:
        end = summary.run.ended or summary.run.started
        if made < end:
            name = summary.directory.path.name
            yield f"This is dated {made}, before {name} ended at {end}: its date is not when it was made."
            return
