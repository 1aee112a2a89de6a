"""Answers the questions of a study: whether trainings repeat, how much they vary, and what reprokit costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from reprokit.core.difference import Verdict
from reprokit.study.facts import Analysis, Overhead, SetupFacts
from reprokit.study.wording import between, change, percent, quantity
from reprokit.verify.verdict import pairs_are

RECORDED: Final = ("recorded", "patched and recorded")
MOST: Final = 6  # limit of sentences per answer; the tables have all


Outcome = Literal["identical", "different", "tolerated", "not-compared"]  # tolerated: some were not compared


@dataclass(frozen=True)
class Answer:
    """A question, and the study's answer."""

    question: str
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Answers:
    """The answers of a study, and a headline."""

    outcome: Outcome
    headline: str
    answers: tuple[Answer, ...]


def answers(analysis: Analysis) -> Answers:
    """Return the answers that follow from an analysis."""
    recorded = [setup for setup in analysis.setups if setup.kind in RECORDED]
    outcome, headline = _headline(recorded)
    sentences_by_question = {
        "Does it repeat with reprokit?": _repeats(recorded),
        "How much does it vary without?": _varies(analysis),
        "What does it cost?": _costs(analysis, recorded),
        "How sure is that?": _sure(analysis),
    }
    answered = [Answer(question, _bounded(list(sentences))) for question, sentences in sentences_by_question.items()]
    return Answers(outcome, headline, tuple(answered))


def _bounded(sentences: list[str]) -> tuple[str, ...]:
    left_out = len(sentences) - MOST
    return (*sentences[:MOST], f"{left_out} more lines are in the tables below.") if left_out > 0 else tuple(sentences)


def _headline(recorded: list[SetupFacts]) -> tuple[Outcome, str]:
    identical, different = (
        sum(getattr(setup.pairs, name) for setup in recorded) for name in ("identical", "different")
    )
    if not recorded:
        return "not-compared", "No setup records and replays"
    if not identical and not different:
        return "not-compared", "Whether it repeats with reprokit is not known"
    missing = sum(setup.pairs.not_compared for setup in recorded)
    if not different:
        left = f", {missing} could not be compared" if missing else ""
        headline = f"With reprokit it repeats: {pairs_are(identical, identical)}{left}"
        return "tolerated" if missing else "identical", headline
    total = identical + different
    return "different", f"With reprokit it does not always repeat: {pairs_are(different, total, Verdict.DIFFERENT)}"


def _repeats(recorded: list[SetupFacts]) -> Iterator[str]:
    if not recorded:
        yield "That was not asked: no setup of this study records and replays."
    yield from (_pairs_of(setup, Verdict.IDENTICAL, ", bit for bit") for setup in recorded)


def _pairs_of(setup: SetupFacts, verdict: Verdict, more: str = "") -> str:
    """Return the share of a setup's pairs with a property, in words."""
    pairs, head = setup.pairs, f"{setup.name} ({setup.words}):"
    compared = pairs.identical + pairs.different
    if not compared:
        return f"{head} no pair could be compared."
    count = pairs.identical if verdict is Verdict.IDENTICAL else pairs.different
    missing = f"; {pairs.not_compared} more could not be compared" if more and pairs.not_compared else ""
    return f"{head} {pairs_are(count, compared, verdict)}{more}{missing}."


def _varies(analysis: Analysis) -> Iterator[str]:
    """Yield answers about setups that hold no source of variance, then about the others by the sources they leave."""
    bare = [setup for setup in analysis.setups if setup.kind == "bare"] or [
        setup for setup in analysis.setups if setup.kind == "untouched"
    ]
    if not bare:
        yield "That was not asked: every setup of this study holds something."
    yield from (_pairs_of(setup, Verdict.DIFFERENT) for setup in bare)
    yield analysis.sentences.variance


def _costs(analysis: Analysis, recorded: list[SetupFacts]) -> Iterator[str]:
    for setup in recorded:
        row = _time_of(analysis, setup)
        costs = [_time(row)] if row is not None else []
        if setup.stored.median is not None:
            entropy = f", {quantity(setup.profile.median, 'B')} of it entropy" if setup.profile.median else ""
            costs.append(f"a run stores {quantity(setup.stored.median, 'B')}{entropy}, as long as it is kept")
        if costs:
            yield f"{setup.name}: {'; '.join(costs)}."
    if not recorded:
        yield analysis.sentences.overhead


def _time(row: Overhead) -> str:
    """Return the row about a setup's time, shorter than its own sentence."""
    limits = between(row.ratio_interval)
    sure = f"{limits} with {percent(row.ratio_interval.confidence, 2)} confidence" if row.ratio_interval else ""
    if row.finding in ("more", "less") and row.ratio is not None:
        return f"time {change(row.ratio)} beside {row.base}{limits and f', {sure}'} ({row.magnitude} effect)"
    if row.finding == "no difference shown":
        return f"no difference in time to {row.base} is shown{limits and f'; if there is one, it lies {sure}'}"
    if row.finding == "too few runs":
        needed = f"; {row.needed} of each are needed" if row.needed is not None else ""
        return f"too few runs to tell its time from that of {row.base}{needed}"
    return "its runs were made at the same time as others, so their times say nothing"


def _time_of(analysis: Analysis, setup: SetupFacts) -> Overhead | None:
    """Return the overhead in time against untouched runs if there are any, else against bare ones."""
    rows = [row for row in analysis.overhead if row.setup == setup.name and row.measure == "time"]
    return min(rows, key=lambda row: row.effect != "all of it", default=None)


def _sure(analysis: Analysis) -> Iterator[str]:
    runs = sorted({setup.finished for setup in analysis.setups})
    each = f"{runs[0]}" if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
    yield f"It rests on {each} finished runs of each of {len(analysis.setups)} setups, in pairs."
    yield analysis.sentences.pairs
    if any(row.p is not None for row in analysis.overhead):
        yield (
            "A difference in time or storage is called one only where chance alone would show any such in fewer than "
            "one of 20 studies, all comparisons of this study taken together."
        )
