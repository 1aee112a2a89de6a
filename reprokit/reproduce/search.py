"""The loop: two runs, the same entropy, a profile, cures, until two runs are the same or nothing is left to try."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reprokit.errors import ReprokitError, TrainingFailed
from reprokit.recipe import RecipeSettings
from reprokit.reproduce import diagnosis, reduction
from reprokit.reproduce.diagnosis import PATCH, Candidate, Certainty
from reprokit.reproduce.journal import BARE, CURE, ENTROPY, PROFILE, Attempt
from reprokit.reproduce.reached_settings import Standing
from reprokit.reproduce.trial import TrialOutcome


class Reproduction:
    """One reproduction, from the first two runs to a verdict in the journal."""

    def __init__(self, standing: Standing, *, automatic: Sequence[str], wants_smallest: bool = True):
        self._standing, self._trials, self._journal = standing, standing.trials, standing.journal
        self._automatic, self._wants_smallest = automatic, wants_smallest
        self._profiled: RecipeSettings | None = None  # what the findings were made with
        self._one_by_one = False  # as several patches at once made the training fail

    def run(self) -> None:
        """Go on until the journal has a verdict."""
        if not (self._repeats_by_itself() or self._entropy_is_all()):
            self._look_for_cures()
        self._standing.count_costs()

    def _look_for_cures(self) -> None:
        standing = self._standing
        while not standing.is_done and self._may_go_on():
            chosen = self._next()
            if not chosen:
                break
            self._try(chosen)
        if not standing.is_done:
            rounds = f"{self._journal.max_rounds} rounds were not enough; --max-rounds allows more"
            standing.give_up("no known cure is left, and two runs still differ" if self._may_go_on() else rounds)
        elif self._wants_smallest:
            reduction.reduce(standing)
            reduction.cheapen(standing)

    def _may_go_on(self) -> bool:
        return len(self._journal.rounds) < self._journal.max_rounds

    def _repeats_by_itself(self) -> bool:
        """Round 1: recordings, each with entropy of its own."""
        standing, trials = self._standing, self._trials
        new = trials.begin(BARE, "the training as it is, twice", standing.base)
        first = second = _whole(trials.record(new, standing.base, "first"))
        for number in range(1, trials.pairs + 1):
            if second is not first:
                trials.discard(second)
            second = _whole(trials.record(new, standing.base, f"other-{number}"))
            standing.pair = first, second
            if not trials.compare(new, first, second).identical:
                trials.learn(number)
                trials.conclude(new, "the training does not repeat by itself")
                return False
        standing.succeed(trials.pairs, "the training repeats by itself, with entropy of its own in each run")
        trials.conclude(new, self._journal.why)
        return True

    def _entropy_is_all(self) -> bool:
        """Round 2: the first recording, replayed."""
        standing = self._standing
        first = standing.pair[0]
        tried = self._trials.trial(ENTROPY, "the same entropy again, nothing else", standing.base, recording=first)
        standing.take(standing.base, tried, "entropy was all: with the recorded one, the training repeats")
        words = self._journal.why if tried.identical else "entropy is not all that differs"
        self._trials.conclude(tried.round, words)
        return tried.identical

    def _next(self) -> list[Candidate]:
        """What to try now: what is proven; after a fresh look, what is known; then what helps in general."""
        chosen = self._choose(self._cures())
        if chosen and chosen[0].proof <= Certainty.ORDER:
            return chosen
        if self._is_worth_a_profile():
            self._profile()
            if not self._may_go_on():
                return []
            chosen = self._choose(self._cures())
        return chosen or self._choose(diagnosis.general(self._standing.findings, self._automatic))

    def _is_worth_a_profile(self) -> bool:
        """Once; again only with other patches, and where something was blamed."""
        if self._profiled is None:
            return True
        is_blamed = any(finding.blamed for finding in self._standing.findings)
        return is_blamed and self._profiled.patches != self._standing.settings.patches

    def _cures(self) -> Iterable[Candidate]:
        standing = self._standing
        measured = diagnosis.of_findings(standing.findings, self._profiled or RecipeSettings())
        outcomes = [outcome for one in self._journal.rounds for outcome in one.outcomes]
        found = [*diagnosis.of_runs(standing.runs), *diagnosis.of_outcomes(outcomes), *measured]
        return diagnosis.first_cures(found, standing.settings, standing.excluded)

    def _choose(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        chosen = diagnosis.next_candidates(candidates, self._standing.settings, self._standing.excluded)
        return chosen[:1] if self._one_by_one else chosen

    def _profile(self) -> None:
        standing = self._standing
        under = " ".join(standing.settings.words)
        new = self._trials.begin(PROFILE, f"a profile{f' with {under}' if under else ''}", standing.settings)
        self._profiled = standing.settings
        try:
            self._trials.profile(new)
        except ReprokitError as error:
            new.notes.append(str(error))
        standing.findings = new.findings or standing.findings
        blamed = sum(1 for finding in new.findings if finding.blamed)
        words = f"{blamed} findings can be to blame" if blamed != 1 else "one finding can be to blame"
        self._trials.conclude(new, words if blamed else "it blames nothing")

    def _try(self, chosen: list[Candidate]) -> None:
        settings = self._standing.settings
        for one in chosen:
            settings = diagnosis.applied(settings, one.option)
        title = f"with {', '.join(one.option for one in chosen)}"
        tried = self._trials.trial(CURE, title, settings, [one.change for one in chosen])
        if tried.failed:
            self._broke(tried, chosen)
            return
        for one in chosen:
            why = _not_applied(tried.recording, one.option)
            if why:
                settings = diagnosis.without(settings, one.option)
                self._standing.exclude(one, why)
            else:
                self._standing.changes[one.option] = one
        self._standing.take(settings, tried)
        self._trials.conclude(tried.round, "the runs are identical" if tried.identical else "the runs still differ")

    def _broke(self, tried: TrialOutcome, chosen: list[Candidate]) -> None:
        """One of these makes the training fail: which, if they are several, is found one by one."""
        self._trials.discard(tried.recording)
        if len(chosen) > 1:
            self._one_by_one = True
            self._trials.conclude(tried.round, f"{tried.failed}; now one by one")
            return
        self._standing.exclude(chosen[0], tried.failed)
        self._trials.conclude(tried.round, f"{tried.failed}: {chosen[0].option} is of no use")


def _whole(attempt: Attempt) -> Attempt:
    if attempt.failed:
        what = "make it run to its end with status 0, then reproduce it"
        raise TrainingFailed(f"the training ended {attempt.ended}; {what}")
    return attempt


def _not_applied(recording: Attempt | None, option: str) -> str:
    """Why a patch or switch was not applied in a run; "" where it was."""
    if recording is None:
        return ""
    for source in recording.uncovered:
        if source.option == option:
            return source.text
    states = [one for one in recording.patches if PATCH + one.text == option and one.state != "applied"]
    return next((f"{one.state}: {one.why}" if one.why else one.state for one in states), "")
