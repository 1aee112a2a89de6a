"""The loop: two runs, the same entropy, a profile, cures, until two runs are the same or nothing is left to try.

Once runs are identical it tries what can be left out again, and whether the same is to be had for less.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import msgspec

from reprokit.errors import ReprokitError, TrainingFailed
from reprokit.recipe import RecipeSettings
from reprokit.reproduce import diagnosis
from reprokit.reproduce.diagnosis import PATCH, SINGLE, Candidate, Certainty
from reprokit.reproduce.journal import BARE, CHEAPER, CURE, ENTROPY, LOCATE, PROFILE, SMALLEST, Attempt, Round
from reprokit.reproduce.trial import Standing, TrialOutcome

RACING_REPLAYS = 4  # where something depends on timing, and two agree too easily
MOST_REPLAYS = 8  # that one trial may take to tell whether a guilty operator matters
CHEAPER_BY = 0.9  # of the time, from which another way to the same is taken
OVERRIDE = PATCH + "torch-operator="


class Reproduction:
    """One reproduction, from the first two runs to a verdict in the journal."""

    def __init__(self, standing: Standing, *, automatic: Sequence[str], wants_smallest: bool = True):
        self._standing, self._trials, self._journal = standing, standing.trials, standing.journal
        self._automatic, self._wants_smallest = automatic, wants_smallest
        self._profiled: RecipeSettings | None = None  # what the findings were made with
        self._clock_tried: TrialOutcome | None = None  # the profile that was a replay with the clock
        self._one_by_one = False  # as several patches at once made the training fail
        self._is_located = False  # the first divergent operator was looked for
        self._has_operators = True  # of a framework, which a profile could measure
        self._clocked = msgspec.structs.replace(standing.base, clock=True)

    def run(self) -> None:
        """Run rounds until the journal has a verdict."""
        if not self._needs_no_cure():
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
            reduce(standing)
            cheapen(standing)

    def _may_go_on(self) -> bool:
        return len(self._journal.rounds) < self._journal.max_rounds

    def _needs_no_cure(self) -> bool:
        """Rounds 1 and 2: a recording, a replay of it, recordings with entropy of their own, further replays.

        The first replay comes first: where it differs, a second recording would tell nothing. The clock is recorded,
        but not given again.
        """
        standing, trials = self._standing, self._trials
        new = trials.begin(BARE, "the training as it is, and whether it repeats", standing.base)
        first = _whole(trials.record(new, self._clocked, "first"))
        self._automatic = [text for text in self._automatic if trials.matters(first, text)]
        self._has_operators = trials.has_operators(first)
        replayed = trials.replays(new, first, 1)
        if not replayed.identical:
            standing.take(standing.base, replayed)
            trials.conclude(new, "the training does not repeat, not even with the same entropy")
            return False
        return self._repeats_by_itself(new, replayed) or self._entropy_is_all(replayed)

    def _repeats_by_itself(self, new: Round, replayed: TrialOutcome) -> bool:
        standing, trials, first = self._standing, self._trials, replayed.recording
        assert first is not None
        other: Attempt | None = None
        for number in range(1, trials.pairs + 1):
            trials.discard(other)
            other = _whole(trials.record(new, self._clocked, f"other-{number}"))
            outcome = trials.compare(new, first, other)
            if not outcome.identical:
                trials.learn(number, outcome)
                trials.discard(other)
                trials.conclude(new, "the training does not repeat by itself")
                return False
        trials.discard(replayed.replay)
        standing.pair = first, other
        standing.succeed(trials.pairs, "the training repeats by itself, with entropy of its own in each run")
        trials.conclude(new, self._journal.why)
        return True

    def _entropy_is_all(self, replayed: TrialOutcome) -> bool:
        standing = self._standing
        tried = self._trials.trial(ENTROPY, "the same entropy again, nothing else", standing.base, before=replayed)
        equal = f"with the recorded entropy, {tried.equal} of {tried.equal} replays were identical"
        standing.take(standing.base, tried, equal)
        words = self._journal.why if tried.identical else "entropy is not the only difference"
        self._trials.conclude(tried.round, words)
        return tried.identical

    def _next(self) -> list[Candidate]:
        """Return what to try next: what is proven; after a new profile, what is known; then general settings."""
        chosen = self._choose(self._cures())
        if not self._is_located and not (chosen and chosen[0].proof <= Certainty.ORDER):
            self._locate()
            chosen = self._choose(self._cures())
        if chosen and chosen[0].proof <= Certainty.ORDER:
            return chosen
        if self._profiled is None and not self._has_operators:  # a profile would name little else, and is a training
            clock = self._choose(diagnosis.clock())
            if clock:
                return clock
        if self._is_worth_a_profile():
            self._profile()
            if not self._may_go_on():
                return []
            clock = self._choose(diagnosis.clock()) if self._clock_tried is not None and self._clock_tried.equal else []
            chosen = clock or self._choose(self._cures())
        return chosen or self._choose(diagnosis.general(self._standing.findings, self._automatic))

    def _is_worth_a_profile(self) -> bool:
        """Return whether to profile: once, and again only under other patches, if something was blamed."""
        if self._profiled is None:
            return True
        is_blamed = any(finding.blamed for finding in self._standing.findings)
        return is_blamed and self._profiled.patches != self._standing.settings.patches

    def _cures(self) -> Iterable[Candidate]:
        standing = self._standing
        measured = diagnosis.of_findings(standing.findings, self._profiled or RecipeSettings())
        outcomes = [outcome for round_ in self._journal.rounds for outcome in round_.outcomes]
        candidates = [*diagnosis.of_runs(standing.runs), *diagnosis.of_outcomes(outcomes), *measured]
        return diagnosis.first_cures(candidates, standing.settings, standing.excluded)

    def _choose(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        chosen = diagnosis.next_candidates(candidates, self._standing.settings, self._standing.excluded)
        return chosen[:1] if self._one_by_one else chosen

    def _locate(self) -> None:
        """Locate the operator by which the runs part; two short replays, where a profile is a whole training."""
        standing, self._is_located = self._standing, True
        if len(standing.runs) < 2 or not self._trials.can_locate(*standing.runs):
            return
        new = self._trials.begin(LOCATE, "the first divergent operator", standing.settings)
        if self._trials.locate(new, *standing.runs):
            self._has_operators = False  # none that a profile need measure
        standing.findings = new.findings or standing.findings
        named = "; ".join(f"{finding.subject}{diagnosis.place(finding)} is to blame" for finding in new.findings)
        self._trials.conclude(new, named or "no operator with a known cure was named")

    def _profile(self) -> None:
        standing = self._standing
        under = " ".join(standing.settings.words)
        new = self._trials.begin(PROFILE, f"a profile{f' with {under}' if under else ''}", standing.settings)
        self._profiled = standing.settings
        first = self._journal.rounds[0].attempts[0]
        is_replay = first.kept and diagnosis.applied(standing.settings, "--clock") == self._clocked
        try:
            tried = self._trials.profile(new, first if is_replay else None)
            self._clock_tried = tried if is_replay else self._clock_tried
        except ReprokitError as error:
            new.notes.append(str(error))
        standing.findings = new.findings or standing.findings
        blamed = sum(1 for finding in new.findings if finding.blamed)
        words = f"{blamed} findings can be to blame" if blamed != 1 else "one finding can be to blame"
        self._trials.conclude(new, words if blamed else "the profile blames nothing")

    def _try(self, chosen: list[Candidate]) -> None:
        settings = self._standing.settings
        for candidate in chosen:
            settings = diagnosis.applied(settings, candidate.option)
        title = f"with {', '.join(candidate.option for candidate in chosen)}"
        pairs = RACING_REPLAYS if self._standing.races(chosen) else 0
        first = self._journal.rounds[0].attempts[0]
        recorded = self._clock_tried or TrialOutcome(round=self._journal.rounds[0], recording=first)
        before = recorded if settings == self._clocked and first.kept else None
        changes = [candidate.change for candidate in chosen]
        tried = self._trials.trial(CURE, title, settings, changes, before=before, pairs=pairs)
        if tried.failed:
            self._broke(tried, chosen)
            return
        for candidate in chosen:
            why = _not_applied(tried.recording, candidate.option)
            if why:
                settings = diagnosis.without(settings, candidate.option)
                self._standing.exclude(candidate, why)
            else:
                self._standing.changes[candidate.option] = candidate
        self._standing.take(settings, tried)
        self._trials.conclude(tried.round, "the runs are identical" if tried.identical else "the runs still differ")

    def _broke(self, tried: TrialOutcome, chosen: list[Candidate]) -> None:
        """Exclude the option that makes the training fail; of several it is found by trying each."""
        self._trials.discard(tried.recording)
        if len(chosen) > 1:
            self._one_by_one = True
            self._trials.conclude(tried.round, f"{tried.failed}; now one by one")
            return
        self._standing.exclude(chosen[0], tried.failed)
        self._trials.conclude(tried.round, f"{tried.failed}: {chosen[0].option} does not help")


def _whole(attempt: Attempt) -> Attempt:
    if attempt.failed:
        advice = "make it run to its end with status 0, then reproduce it"
        raise TrainingFailed(f"the training ended {attempt.ended}; {advice}")
    return attempt


def _not_applied(recording: Attempt | None, option: str) -> str:
    """Return why a patch or switch was not applied in a run; "" if it was."""
    if recording is None:
        return ""
    for source in recording.uncovered:
        if source.option == option:
            return source.text
    states = [patch for patch in recording.patches if PATCH + patch.text == option and patch.state != "applied"]
    return next((f"{patch.state}: {patch.why}" if patch.why else patch.state for patch in states), "")


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
    """Return how many replays must be identical without the option; None if no practical number is enough."""
    counts = [standing.trials.pairs, RACING_REPLAYS if standing.races() else 0]
    for finding in standing.findings:
        if finding.id in candidate.findings:
            needed = diagnosis.replays_needed(finding, MOST_REPLAYS)
            if needed is None:
                return None
            counts.append(needed)
    return max(counts)


def cheapen(standing: Standing) -> None:
    """Try a framework's switch in place of slow overrides, and keep it if it costs less."""
    overrides = [option for option in standing.changes if option.startswith(OVERRIDE)]
    switch = _common_cure(standing, overrides)
    if switch is None or not standing.runs or not _cost_time(standing):
        return
    stripped = functools.reduce(diagnosis.without, overrides, standing.settings)
    other = diagnosis.applied(stripped, switch.option)
    tried = standing.trials.trial(
        CHEAPER, f"{switch.option} in place of {', '.join(overrides)}", other, [switch.change]
    )
    words, is_cheaper = _weighed(tried, standing.runs[0], switch.option)
    if is_cheaper:
        for option in overrides:
            standing.exclude(standing.changes[option], f"{switch.option} has the same effect at a lower cost")
        standing.changes[switch.option] = switch
        standing.take(other, tried)
    else:
        standing.trials.discard(tried.recording, tried.replay)
    standing.trials.conclude(tried.round, words)


def _cost_time(standing: Standing) -> bool:
    """Return whether the training takes longer than without any patch."""
    bare, present = standing.journal.rounds[0].attempts[0], standing.runs[0]
    return _is_less(bare.seconds, present.seconds) or _is_less(bare.processor, present.processor)


def _weighed(tried: TrialOutcome, present: Attempt, switch: str) -> tuple[str, bool]:
    """Describe both costs and whether the first is lower, in wall and processor time: other load slows either."""
    other = tried.recording
    if not tried.identical or other is None:
        return f"{tried.failed or 'the runs differ'}: the overrides stay", False
    costs = f"{_time(other)} with {switch}, {_time(present)} with the overrides"
    if _is_less(other.seconds, present.seconds) and _is_less(other.processor, present.processor):
        return f"{costs}: the switch is taken", True
    return f"{costs}: the overrides stay, as they touch less", False


def _time(attempt: Attempt) -> str:
    return f"{attempt.seconds or 0.0:.2f} s and {attempt.processor or 0.0:.2f} s of processors"


def _is_less(cost: float | None, other_cost: float | None) -> bool:
    return cost is not None and other_cost is not None and cost < CHEAPER_BY * other_cost


def _common_cure(standing: Standing, overrides: list[str]) -> Candidate | None:
    """Return a cure of everything that these override, which is no override itself and does not take threads away."""
    overridden = {finding for option in overrides for finding in standing.changes[option].findings}
    offered: dict[str, set[str]] = {}
    first: dict[str, Candidate] = {}
    for candidate in diagnosis.of_findings(standing.findings, RecipeSettings()):
        if overridden.intersection(candidate.findings) and not candidate.option.startswith((OVERRIDE, PATCH + SINGLE)):
            offered.setdefault(candidate.option, set()).update(candidate.findings)
            first.setdefault(candidate.option, candidate)
    for option, findings in offered.items():
        if findings >= overridden and option not in standing.excluded:
            return msgspec.structs.replace(first[option], findings=tuple(sorted(overridden)))
    return None
