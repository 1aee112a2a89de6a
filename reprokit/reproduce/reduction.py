"""Once runs are identical: what can be left out again, and whether the same is to be had for less."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from reprokit.recipe import RecipeSettings
from reprokit.reproduce import diagnosis
from reprokit.reproduce.diagnosis import PATCH, SINGLE, Candidate
from reprokit.reproduce.journal import CHEAPER, SMALLEST, Attempt
from reprokit.reproduce.reached_settings import Standing
from reprokit.reproduce.trial import TrialOutcome

MOST_REPLAYS = 8  # that one trial may take to tell whether a guilty operator matters
CHEAPER_BY = 0.9  # of the time, from which another way to the same is taken
OVERRIDE = PATCH + "torch-operator="


def reduce(standing: Standing) -> None:
    """Take out one option after the other, the least proven first, and keep out what is not needed."""
    for option in sorted(standing.changes, key=lambda option: (-standing.changes[option].proof, option)):
        _try_without(standing, option)


def _try_without(standing: Standing, option: str) -> None:
    less = diagnosis.without(standing.settings, option)
    if less in standing.tried:
        return  # it is known to differ
    candidate, trials = standing.changes[option], standing.trials
    pairs = _replays_to_tell(standing, candidate)
    if pairs is None:
        why = f"{option} stays: what it cures is so rare that {MOST_REPLAYS} replays could not tell"
        standing.journal.rounds[-1].notes.append(why)
        return
    out = msgspec.structs.replace(candidate.change, why="is it needed?")
    tried = trials.trial(SMALLEST, f"without {option}", less, [out], pairs=pairs)
    if not tried.identical:
        standing.tried[less] = False
        trials.discard(tried.recording, tried.replay)
        trials.conclude(tried.round, f"{tried.failed or 'the runs differ'}: {option} is needed")
        return
    standing.exclude(candidate, f"not needed: without it replays were identical ({tried.equal})")
    standing.take(less, tried)
    trials.conclude(tried.round, f"the runs are identical: {option} is not needed")


def _replays_to_tell(standing: Standing, candidate: Candidate) -> int | None:
    """How many replays without it must be identical; None if no number that anybody would wait for says enough."""
    counts = [standing.trials.pairs]
    for finding in standing.findings:
        if finding.id in candidate.findings:
            needed = diagnosis.replays_needed(finding, MOST_REPLAYS)
            if needed is None:
                return None
            counts.append(needed)
    return max(counts)


def cheapen(standing: Standing) -> None:
    """Try one switch of the framework in the place of overrides of operators, and take it if it costs less."""
    overrides = [option for option in standing.changes if option.startswith(OVERRIDE)]
    switch = _common_cure(standing, overrides)
    if switch is None or not standing.runs:
        return
    other = diagnosis.applied(_stripped(standing.settings, overrides), switch.option)
    tried = standing.trials.trial(
        CHEAPER, f"{switch.option} in place of {', '.join(overrides)}", other, [switch.change]
    )
    words, is_cheaper = _weighed(tried, standing.runs[0], switch.option)
    if is_cheaper:
        for option in overrides:
            standing.exclude(standing.changes[option], f"{switch.option} does the same for less")
        standing.changes[switch.option] = switch
        standing.take(other, tried)
    else:
        standing.trials.discard(tried.recording, tried.replay)
    standing.trials.conclude(tried.round, words)


def _weighed(tried: TrialOutcome, present: Attempt, switch: str) -> tuple[str, bool]:
    """The weights in words, and whether it is less: by the clock and of processors, as other programs slow either."""
    other = tried.recording
    if not tried.identical or other is None:
        return f"{tried.failed or 'the runs differ'}: the overrides stay", False
    costs = f"{_time(other)} with {switch}, {_time(present)} with the overrides"
    if _is_less(other.seconds, present.seconds) and _is_less(other.processor, present.processor):
        return f"{costs}: the switch is taken", True
    return f"{costs}: the overrides stay, as they touch less", False


def _time(attempt: Attempt) -> str:
    return f"{attempt.seconds or 0.0:.2f} s and {attempt.processor or 0.0:.2f} s of processors"


def _is_less(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and one < CHEAPER_BY * other


def _stripped(settings: RecipeSettings, options: Iterable[str]) -> RecipeSettings:
    for option in options:
        settings = diagnosis.without(settings, option)
    return settings


def _common_cure(standing: Standing, overrides: list[str]) -> Candidate | None:
    """A cure of everything that these override, which is no override itself and does not take threads away."""
    wanted = {finding for option in overrides for finding in standing.changes[option].findings}
    offered: dict[str, set[str]] = {}
    first: dict[str, Candidate] = {}
    for one in diagnosis.of_findings(standing.findings, RecipeSettings()):
        if wanted.intersection(one.findings) and not one.option.startswith((OVERRIDE, PATCH + SINGLE)):
            offered.setdefault(one.option, set()).update(one.findings)
            first.setdefault(one.option, one)
    for option, findings in offered.items():
        if findings >= wanted and option not in standing.excluded:
            return msgspec.structs.replace(first[option], findings=tuple(sorted(wanted)))
    return None
