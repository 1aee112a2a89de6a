"""Searches for settings under which a training repeats: two runs, the same entropy, a profile, then cures.

Once runs are identical, it removes options that are not needed, and tries cheaper ones.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import msgspec

from reprokit.core.errors import ReprokitError, TrainingFailed
from reprokit.reproduce import diagnosis
from reprokit.reproduce.diagnosis import PATCH, SINGLE, Candidate, Certainty
from reprokit.reproduce.journal import BARE, CHEAPER, CURE, ENTROPY, LOCATE, PROFILE, SMALLEST, Attempt, Round
from reprokit.reproduce.trial import SearchState, TrialOutcome, not_applied
from reprokit.run_files.recipe import RecipeSettings
from reprokit.verify.verdict import RUNS_ARE_SAME, RUNS_DIFFER, not_needed, not_needed_in, replays_were_same

RACING_REPLAYS = 4  # if something depends on timing, as two runs may agree by chance
MOST_REPLAYS = 8  # limit for a trial of whether a guilty operator matters
CHEAPER_BY = 0.9  # share of the time below which a cheaper setting is taken
OVERRIDE = PATCH + "torch-operator="


class Reproduction:
    """One reproduction, from the first two runs to a verdict in the journal."""

    def __init__(self, state: SearchState, *, automatic: Sequence[str], wants_smallest: bool = True):
        self._state, self._trials, self._journal = state, state.trials, state.journal
        self._automatic, self._wants_smallest = automatic, wants_smallest
        self._profiled_settings: RecipeSettings | None = None  # settings under which the findings were made
        self._clock_replay: TrialOutcome | None = None  # result of the profile that was a replay with the clock
        self._tries_singly = False  # since several patches at once made the training fail
        self._is_located = False  # whether the first divergent operator was searched for
        self._has_operators = True  # whether a framework was imported whose operators a profile can measure
        self._agrees_with_clock = False  # whether replays with the clock equal the recording
        self._with_clock = msgspec.structs.replace(state.base, clock=True)

    def run(self) -> None:
        """Run rounds until the journal has a verdict."""
        if not self._needs_no_cure():
            self._look_for_cures()
        self._state.count_costs()

    def _look_for_cures(self) -> None:
        state = self._state
        while not state.is_done and self._may_go_on():
            chosen = self._next_candidates()
            if not chosen:
                break
            self._try(chosen)
        if not state.is_done:
            rounds = f"{self._journal.max_rounds} rounds were not enough; --max-rounds allows more"
            state.give_up("no known cure is left, and two runs still differ" if self._may_go_on() else rounds)
        elif self._wants_smallest:
            reduce(state)
            cheapen(state)

    def _may_go_on(self) -> bool:
        return len(self._journal.rounds) < self._journal.max_rounds

    def _needs_no_cure(self) -> bool:
        """Run rounds 1 and 2: a recording, a replay of it, recordings with new entropy, further replays.

        The first replay comes first: if it differs, a second recording would show nothing. The clock is recorded, but
        not replayed.
        """
        state, trials = self._state, self._trials
        new = trials.begin(BARE, "the training as it is, and whether it repeats", state.base)
        first = _require_success(trials.record(new, self._with_clock, "first"))
        self._automatic = [text for text in self._automatic if trials.matters(first, text)]
        self._has_operators = trials.has_operators(first)
        replayed = trials.observed_replay(new, first)
        state.findings = new.findings
        if not replayed.identical:
            state.adopt(state.base, replayed)
            trials.conclude(new, "the training does not repeat, not even with the same entropy")
            return False
        return self._repeats_unaided(new, replayed) or self._repeats_with_entropy(replayed)

    def _repeats_unaided(self, new: Round, replayed: TrialOutcome) -> bool:
        state, trials, first = self._state, self._trials, replayed.recording
        assert first is not None
        other: Attempt | None = None
        for number in range(1, trials.pairs + 1):
            trials.discard(other)
            other = _require_success(trials.record(new, self._with_clock, f"other-{number}"))
            outcome = trials.compare(new, first, other)
            if not outcome.identical:
                trials.learn(number, outcome)
                trials.discard(other)
                trials.conclude(new, "the training does not repeat by itself")
                return False
        trials.discard(replayed.replay)
        state.pair = first, other
        state.succeed(trials.pairs, "the training repeats by itself, with entropy of its own in each run")
        trials.conclude(new, self._journal.why)
        return True

    def _repeats_with_entropy(self, replayed: TrialOutcome) -> bool:
        state = self._state
        tried = self._trials.trial(ENTROPY, "the same entropy again, nothing else", state.base, before=replayed)
        equal = replays_were_same(tried.equal)
        state.adopt(state.base, tried, equal)
        words = self._journal.why if tried.identical else "entropy is not the only difference"
        self._trials.conclude(tried.round, words)
        return tried.identical

    def _next_candidates(self) -> list[Candidate]:
        """Return what to try next: proven cures; after a new profile, known ones; then general settings."""
        chosen = self._choose(self._cures())
        if not self._is_located and not _is_proven(chosen):
            self._locate()
            chosen = self._choose(self._cures())
        is_alone = self._profiled_settings is None and [item.proof for item in chosen] == [Certainty.SUSPECT]
        if _is_proven(chosen) or (is_alone and not self._agrees_with_clock):
            return chosen
        has_operators = self._has_operators and not self._agrees_with_clock  # otherwise a profile would find little
        clock = [] if has_operators or self._profiled_settings else self._choose(diagnosis.clock(self._state.findings))
        if not clock and self._is_worth_a_profile():
            self._profile()
            if not self._may_go_on():
                return []
            clock = self._choose(diagnosis.clock(self._state.findings)) if self._agrees_with_clock else []
            chosen = self._choose(self._cures())
        return clock or chosen or self._choose(diagnosis.general(self._state.findings, self._automatic))

    def _is_worth_a_profile(self) -> bool:
        """Return whether to profile: once, and again only under other patches, if something was blamed.

        Without a framework's operators, a race that the first replay showed is all that a profile would find.
        """
        if self._profiled_settings is None:
            return self._has_operators or not self._state.races()
        is_blamed = any(finding.blamed for finding in self._state.findings)
        return is_blamed and self._profiled_settings.patches != self._state.settings.patches

    def _cures(self) -> Iterable[Candidate]:
        state = self._state
        measured = diagnosis.of_findings(state.findings, self._profiled_settings or RecipeSettings())
        outcomes = [outcome for round_ in self._journal.rounds for outcome in round_.outcomes]
        candidates = [*diagnosis.of_runs(state.runs), *diagnosis.of_outcomes(outcomes), *measured]
        return diagnosis.first_cures(candidates, state.settings, state.excluded)

    def _choose(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        chosen = diagnosis.next_candidates(candidates, self._state.settings, self._state.excluded)
        return chosen[:1] if self._tries_singly else chosen

    def _locate(self) -> None:
        """Locate the first divergent operator by two short replays, as a profile is a whole training."""
        state, self._is_located = self._state, True
        if len(state.runs) < 2 or not self._trials.can_locate(*state.runs):
            return
        new = self._trials.begin(LOCATE, "the first divergent operator", state.settings)
        self._agrees_with_clock = self._trials.locate(new, *state.runs)
        state.findings, state.located = new.findings or state.findings, new.notes[:1]
        named = "; ".join(f"{finding.subject}{diagnosis.place(finding)} is to blame" for finding in new.findings)
        self._trials.conclude(new, named or "no operator with a known cure was named")

    def _profile(self) -> None:
        state = self._state
        under = " ".join(state.settings.words)
        new = self._trials.begin(PROFILE, f"a profile{f' with {under}' if under else ''}", state.settings)
        self._profiled_settings = state.settings
        first = self._journal.rounds[0].attempts[0]
        is_replay = first.kept and diagnosis.applied(state.settings, "--clock") == self._with_clock
        try:
            tried = self._trials.profile(new, first if is_replay else None)
            if is_replay:
                self._clock_replay, self._agrees_with_clock = tried, tried.equal > 0
        except ReprokitError as error:
            new.notes.append(str(error))
        state.findings = new.findings or state.findings
        blamed = sum(1 for finding in new.findings if finding.blamed)
        words = f"{blamed} findings can be to blame" if blamed != 1 else "one finding can be to blame"
        self._trials.conclude(new, words if blamed else "the profile blames nothing")

    def _try(self, chosen: list[Candidate]) -> None:
        settings = self._state.settings
        for candidate in chosen:
            settings = diagnosis.applied(settings, candidate.option)
        title = f"with {', '.join(candidate.option for candidate in chosen)}"
        pairs = RACING_REPLAYS if self._state.races(chosen) else 0
        first = self._journal.rounds[0].attempts[0]
        recorded = self._clock_replay or TrialOutcome(round=self._journal.rounds[0], recording=first)
        before = recorded if settings == self._with_clock and first.kept else None
        changes = [candidate.change for candidate in chosen]
        cured = [item for item in self._state.findings if any(item.id in candidate.findings for candidate in chosen)]
        is_frequent = bool(cured) and all(diagnosis.replays_needed(finding, 1) == 1 for finding in cured)
        is_guess = any(candidate.proof > Certainty.SUSPECT for candidate in chosen)
        tried = self._trials.trial(
            CURE, title, settings, changes, before=before, pairs=pairs, is_frequent=is_frequent, is_guess=is_guess
        )
        reasons = [not_applied(tried.recording, candidate.option) for candidate in chosen]
        if tried.failed and not all(reasons):
            self._exclude_failing(tried, chosen)
            return
        for candidate, why in zip(chosen, reasons, strict=True):
            if why:
                settings = diagnosis.without(settings, candidate.option)
                self._state.exclude(candidate, why)
            else:
                self._state.changes[candidate.option] = candidate
        if tried.failed:
            self._trials.discard(tried.recording)
            self._trials.conclude(tried.round, tried.failed)
            return
        self._state.adopt(settings, tried)
        self._trials.conclude(tried.round, RUNS_ARE_SAME if tried.identical else RUNS_DIFFER)

    def _exclude_failing(self, tried: TrialOutcome, chosen: list[Candidate]) -> None:
        """Exclude the option that makes the training fail; of several options, each is tried alone next."""
        self._trials.discard(tried.recording)
        if len(chosen) > 1:
            self._tries_singly = True
            self._trials.conclude(tried.round, f"{tried.failed}; now one by one")
            return
        self._state.exclude(chosen[0], tried.failed)
        self._trials.conclude(tried.round, f"{tried.failed}: {chosen[0].option} does not help")


def _is_proven(chosen: Sequence[Candidate]) -> bool:
    return bool(chosen) and chosen[0].proof <= Certainty.ORDER


def _require_success(attempt: Attempt) -> Attempt:
    if attempt.failed:
        advice = "make it run to its end with status 0, then reproduce it"
        raise TrainingFailed(f"the training ended {attempt.ended}; {advice}")
    return attempt


def reduce(state: SearchState) -> None:
    """Remove each option that is not needed, beginning with the least proven."""
    for option in sorted(state.changes, key=lambda option: (-state.changes[option].proof, option)):
        _try_without(state, option)


def _try_without(state: SearchState, option: str) -> None:
    less = diagnosis.without(state.settings, option)
    if less in state.tried:
        return  # these settings have been tried and differ
    candidate, trials = state.changes[option], state.trials
    pairs = _replays_to_tell(state, candidate)
    if pairs is None:
        why = f"{option} stays: what it cures is so rare that {MOST_REPLAYS} replays could not tell"
        state.journal.rounds[-1].notes.append(why)
        return
    out = msgspec.structs.replace(candidate.change, why="is it needed?")
    tried = trials.trial(SMALLEST, f"without {option}", less, [out], pairs=pairs)
    if not tried.identical:
        state.tried[less] = False
        trials.discard(tried.recording, tried.replay)
        trials.conclude(tried.round, f"{tried.failed or 'the runs differ'}: {option} is needed")
        return
    state.exclude(candidate, not_needed_in(tried.equal))
    state.adopt(less, tried)
    trials.conclude(tried.round, not_needed(option))


def _replays_to_tell(state: SearchState, candidate: Candidate) -> int | None:
    """Return how many replays must be identical without the option; None if no practical number is enough."""
    counts = [state.trials.pairs, RACING_REPLAYS if state.races() else 0]
    for finding in state.findings:
        if finding.id in candidate.findings:
            needed = diagnosis.replays_needed(finding, MOST_REPLAYS)
            if needed is None:
                return None
            counts.append(needed)
    return max(counts)


def cheapen(state: SearchState) -> None:
    """Try a framework's switch in place of slow overrides, and keep it if it costs less."""
    overrides = [option for option in state.changes if option.startswith(OVERRIDE)]
    switch = _common_cure(state, overrides)
    if switch is None or not state.runs or not _is_slower(state):
        return
    stripped = functools.reduce(diagnosis.without, overrides, state.settings)
    other = diagnosis.applied(stripped, switch.option)
    tried = state.trials.trial(CHEAPER, f"{switch.option} in place of {', '.join(overrides)}", other, [switch.change])
    words, is_cheaper = _compare_costs(tried, state.runs[0], switch.option)
    if is_cheaper:
        for option in overrides:
            state.exclude(state.changes[option], f"{switch.option} has the same effect at a lower cost")
        state.changes[switch.option] = switch
        state.adopt(other, tried)
    else:
        state.trials.discard(tried.recording, tried.replay)
    state.trials.conclude(tried.round, words)


def _is_slower(state: SearchState) -> bool:
    """Return whether the training is slower than without any patch."""
    bare, present = state.journal.rounds[0].attempts[0], state.runs[0]
    return _is_less(bare.seconds, present.seconds) or _is_less(bare.processor, present.processor)


def _compare_costs(tried: TrialOutcome, present: Attempt, switch: str) -> tuple[str, bool]:
    """Describe both costs; returns whether the trial costs less in wall and in processor time."""
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


def _common_cure(state: SearchState, overrides: list[str]) -> Candidate | None:
    """Return a cure for everything that these overrides cure, other than an override or a single thread."""
    overridden = {finding for option in overrides for finding in state.changes[option].findings}
    offered: dict[str, set[str]] = {}
    first: dict[str, Candidate] = {}
    for candidate in diagnosis.of_findings(state.findings, RecipeSettings()):
        if overridden.intersection(candidate.findings) and not candidate.option.startswith((OVERRIDE, PATCH + SINGLE)):
            offered.setdefault(candidate.option, set()).update(candidate.findings)
            first.setdefault(candidate.option, candidate)
    for option, findings in offered.items():
        if findings >= overridden and option not in state.excluded:
            return msgspec.structs.replace(first[option], findings=tuple(sorted(overridden)))
    return None
