"""Says what a reader must know before the verdict of a report: what failed, what was switched off, what cannot be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from reprokit.core.printable import listed
from reprokit.evidence.report.section import ReportedRuns
from reprokit.model.run import NO_END
from reprokit.model.states import off_in
from reprokit.verify.categories.status import date_problems
from reprokit.verify.show.summary import RunSummary

SHOWN = 3  # runs that a sentence names


def section(runs: ReportedRuns) -> dict[str, Any]:
    """Return the warnings that stand before the verdict."""
    failures = () if runs.execution is None else runs.execution.failures
    return {"attention": (*failures, *attention(runs.summaries, runs.made))}


def attention(summaries: Sequence[RunSummary], made: str) -> Iterator[str]:
    """Yield the warnings to be shown before the verdict of a report that is dated so."""
    yield from _ends(summaries)
    yield from _switched_off(summaries)
    yield from _dates(summaries, made)


def _names(summaries: Sequence[RunSummary]) -> tuple[str, ...]:
    """Return what the runs are called, each at the start of a sentence."""
    if len(summaries) > 2:
        return tuple(f"The run {summary.directory.path.name}" for summary in summaries)
    return ("This run",) if len(summaries) == 1 else ("The first run", "The second run")


def _ends(summaries: Sequence[RunSummary]) -> Iterator[str]:
    """Yield what is lacking of runs: their ends, processes that went on, programs that nobody saw."""
    for summary, name in zip(summaries, _names(summaries), strict=True):
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
        whose = [
            name
            for summary, name in zip(summaries, _names(summaries), strict=True)
            if option in off_in(summary.run.switched_off)
        ]
        all_of_them = "Both runs lack" if len(whose) == 2 else f"All {len(whose)} runs lack"
        runs = all_of_them if 1 < len(whose) == len(summaries) else f"{_joined(whose)} lack{'s' * (len(whose) == 1)}"
        yield f"{runs} {option.lost}: it was switched off by {option.option}."


def _joined(names: Sequence[str]) -> str:
    """Return the names in one phrase, which begins a sentence."""
    return listed([names[0], *(f"{name[:1].lower()}{name[1:]}" for name in names[1:])], SHOWN)


def _dates(summaries: Sequence[RunSummary], made: str) -> Iterator[str]:
    """Yield what cannot be of the dates of the runs and of the report."""
    yield from (f"{text[:1].upper()}{text[1:]}." for text in date_problems(*(summary.run for summary in summaries)))
    for summary in summaries:
        end = summary.run.ended or summary.run.started
        if made < end:
            name = summary.directory.path.name
            yield f"This is dated {made}, before {name} ended at {end}: its date is not when it was made."
            return
