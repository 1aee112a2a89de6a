"""Tries settings, each by a recording with replays, and keeps the state of a reproduction between trials."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median

import msgspec

from reprokit.core.errors import LaunchError
from reprokit.core.messages import TrainingCount
from reprokit.reproduce import diagnosis
from reprokit.reproduce import journal as journals
from reprokit.reproduce.diagnosis import PATCH, Candidate
from reprokit.reproduce.journal import Attempt, Change, Cost, Outcome, Phase, Round, RoundJournal
from reprokit.reproduce.laboratory import Laboratory
from reprokit.run_files.findings import ORDER, Finding
from reprokit.run_files.recipe import RecipeSettings

GUESSED_REPLAYS = 2  # at least, of a cure that no evidence points at


class TrialOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a trial."""

    round: Round
    recording: Attempt | None = None
    replay: Attempt | None = None  # the last replay
    equal: int = 0  # number of identical replays
    failed: str = ""  # why there was nothing to compare

    @property
    def identical(self) -> bool:
        """Return whether all replays were identical."""
        return not self.failed and self.equal > 0 and all(outcome.identical for outcome in self.round.outcomes)


class Trials:
    """Makes trials, writes them into the journal, and removes runs that are no longer needed."""

    def __init__(
        self,
        laboratory: Laboratory,
        journal: RoundJournal,
        *,
        keep_runs: bool,
        may_be_one: bool = False,  # whether one pair is enough if the first runs diverged early
        save: Callable[[], None],
        say: Callable[[str], None],
    ):
        self._laboratory, self._journal, self._keep_runs = laboratory, journal, keep_runs
        self._save, self._say = save, say
        self.pairs = journal.pairs  # number of replays that must be identical
        self._may_be_one = may_be_one

    def begin(self, phase: Phase, title: str, settings: RecipeSettings, changes: list[Change] | None = None) -> Round:
        """Begin a round, and write it into the journal before its first run."""
        new = self._journal.begin(phase, title, settings, changes)
        self._say(f"round {new.number}: {title}")
        self._save()
        return new

    def record(self, into: Round, settings: RecipeSettings, name: str = "recording") -> Attempt:
        """Make a recording of the round."""
        return self._note(into, self._laboratory.record(settings, f"{into.number:02d}-{name}"))

    def matters(self, attempt: Attempt, option: str) -> bool:
        """Return whether a patch can affect the training of this run."""
        return self._laboratory.matters(attempt, option)

    def has_operators(self, attempt: Attempt) -> bool:
        """Return whether the training of this run imported a framework; also if that is not known."""
        return self._laboratory.has_operators(attempt)

    def can_locate(self, recording: Attempt, replay: Attempt) -> bool:
        """Return whether the first divergent operator of two runs can be located."""
        return self._laboratory.can_locate(recording, replay)

    def locate(self, into: Round, recording: Attempt, replay: Attempt) -> bool:
        """Locate the first divergent operator; returns whether its replays equal the recording."""
        outcome = self._laboratory.locate(recording, replay)
        into.findings, into.notes = list(outcome.findings), [*into.notes, *outcome.notes]
        return outcome.agree

    def profile(self, into: Round, recording: Attempt | None) -> TrialOutcome:
        """Profile a recording, or its replay with its clock; only findings and comparison are kept."""
        outcome = self._laboratory.profile(into.settings, f"{into.number:02d}-profile", recording)
        into.findings, into.notes = list(outcome.findings), [*into.notes, *outcome.notes]
        attempt = self._note(into, outcome.attempt)
        is_equal = False
        if recording is not None and outcome.is_replay and not attempt.ended:
            is_equal = self.compare(into, recording, attempt).identical
        self.discard(attempt)
        return TrialOutcome(round=into, recording=recording, equal=int(is_equal))

    def trial(
        self,
        phase: Phase,
        title: str,
        settings: RecipeSettings,
        changes: list[Change] | None = None,
        *,
        before: TrialOutcome | None = None,
        pairs: int = 0,
        is_frequent: bool = False,
        is_guess: bool = False,
    ) -> TrialOutcome:
        """Record, replay and compare; or continue with the runs of an earlier trial.

        One pair is enough if what is cured varies so often that it would show, and never for a guess, unless the user
        asked for one. Nothing is replayed if none of the changes was applied.
        """
        new = self.begin(phase, title, settings, changes)
        try:
            recording = (before and before.recording) or self.record(new, settings)
        except LaunchError as error:
            if not changes:
                raise
            return TrialOutcome(round=new, failed=str(error))
        if recording.failed:
            return TrialOutcome(round=new, recording=recording, failed=f"the training ended {recording.ended}")
        if phase == journals.CURE and changes and all(not_applied(recording, change.option) for change in changes):
            return TrialOutcome(round=new, recording=recording, failed="nothing of it was applied")
        needed = 1 if is_frequent and self._may_be_one else self.pairs
        needed = max(needed, GUESSED_REPLAYS) if is_guess and self._may_be_one else needed
        return self.replays(new, recording, max(pairs, needed), before)

    def observed_replay(self, into: Round, recording: Attempt) -> TrialOutcome:
        """Replay and compare once, observing settings and orders; what was observed is kept if the replay differs."""
        name, clock = f"{into.number:02d}-replay-1", into.settings.clock
        replay = self._note(into, self._laboratory.replay(recording, name, clock=clock, observed=True))
        outcome = self.compare(into, recording, replay)
        if not outcome.identical:
            into.findings = list(self._laboratory.findings_of(replay).findings)
            self.learn(1, outcome)
        return TrialOutcome(round=into, recording=recording, replay=replay, equal=int(outcome.identical))

    def replays(self, into: Round, recording: Attempt, count: int, before: TrialOutcome | None = None) -> TrialOutcome:
        """Replay and compare at least once, until a replay differs or `count` are identical, earlier ones included."""
        replay, equal = (before.replay, before.equal) if before is not None else (None, 0)
        count = max(count, equal + 1)
        progress = TrainingCount(count - equal, may_be_fewer=True)
        for number in range(equal + 1, count + 1):
            if replay is not None:
                self.discard(replay)
            name = f"{into.number:02d}-replay-{number}"
            progress.tell(self._say)
            replay = self._note(into, self._laboratory.replay(recording, name, clock=into.settings.clock))
            outcome = self.compare(into, recording, replay)
            if not outcome.identical:
                self.learn(number, outcome)
                return TrialOutcome(round=into, recording=recording, replay=replay, equal=number - 1)
        return TrialOutcome(round=into, recording=recording, replay=replay, equal=count)

    def learn(self, number: int, outcome: Outcome) -> None:
        """Adapt the number of pairs: a difference that only the n-th pair showed is rare and requires twice as many.

        If the first pair differed early in the training, one pair is enough.
        """
        if number > 1:
            self.pairs, self._may_be_one = max(self.pairs, 2 * number), False
        elif self._may_be_one and outcome.parted_early:
            self.pairs = 1
        self._journal.pairs = self.pairs

    def compare(self, into: Round, left: Attempt, right: Attempt) -> Outcome:
        """Compare two runs and write the result into the round."""
        outcome = self._laboratory.compare(left, right)
        into.outcomes.append(outcome)
        self._say(f"{'runs' if right.kind == 'record' else 'replay'}: {outcome.words}")
        self._save()
        return outcome

    def conclude(self, round_: Round, words: str) -> None:
        """Write the result of the round."""
        round_.conclusion = words
        self._say(words)
        self._save()

    def discard(self, *attempts: Attempt | None) -> None:
        """Remove runs, unless --keep-runs was given."""
        for attempt in attempts:
            if attempt is None or self._keep_runs:
                continue
            self._laboratory.discard(attempt)
            gone = msgspec.structs.replace(attempt, kept=False)
            for round_ in self._journal.rounds:
                round_.attempts = [gone if other.directory == attempt.directory else other for other in round_.attempts]

    def _note(self, into: Round, attempt: Attempt) -> Attempt:
        into.attempts.append(attempt)
        self._save()
        return attempt


def not_applied(recording: Attempt | None, option: str) -> str:
    """Return why a patch or switch was not applied in a run; "" if it was."""
    if recording is None:
        return ""
    for source in recording.uncovered:
        if source.option == option:
            return source.text
    states = [patch for patch in recording.patches if PATCH + patch.text == option and patch.state != "applied"]
    return next((f"{patch.state}: {patch.why}" if patch.why else patch.state for patch in states), "")


class SearchState:
    """The state that changes from round to round; the journal is updated with it."""

    def __init__(self, trials: Trials, journal: RoundJournal, base: RecipeSettings):
        self.trials, self.journal = trials, journal
        self.base = self.settings = base
        self.changes: dict[str, Candidate] = {}  # candidates of the current settings, by option
        self.findings: Sequence[Finding] = ()
        self.located: Sequence[str] = ()  # where two short replays diverged first
        self.tried: dict[RecipeSettings, bool] = {}  # whether replays under these settings were identical
        self.pair: tuple[Attempt | None, Attempt | None] = (None, None)

    @property
    def runs(self) -> list[Attempt]:
        """Return the existing runs of the last pair."""
        return [attempt for attempt in self.pair if attempt is not None]

    def races(self, chosen: Iterable[Candidate] = ()) -> list[Finding]:
        """Return the races that no current or chosen cure removes: runs may then be identical by chance."""
        cured = {finding for item in (*self.changes.values(), *chosen) for finding in item.findings}
        return [item for item in self.findings if item.blamed and item.kind == ORDER and item.id not in cured]

    @property
    def excluded(self) -> set[str]:
        """Return the options that did not help."""
        return {change.option for change in self.journal.excluded}

    @property
    def is_done(self) -> bool:
        """Return whether two runs were identical."""
        return self.journal.verdict == journals.IDENTICAL

    def adopt(self, settings: RecipeSettings, tried: TrialOutcome, why: str = "") -> None:
        """Continue from this trial; its runs become the current pair."""
        before, self.pair = self.pair, (tried.recording, tried.replay)
        self.trials.discard(*(attempt for attempt in before if attempt not in self.pair))
        self.settings, self.tried[settings] = settings, tried.identical
        if tried.identical:
            self.succeed(tried.equal, why)

    def exclude(self, candidate: Candidate, why: str) -> None:
        """Exclude an option that did not help."""
        self.changes.pop(candidate.option, None)
        self.journal.excluded.append(msgspec.structs.replace(candidate.change, excluded=why))

    def succeed(self, equal: int, why: str = "") -> None:
        """End the reproduction: runs were identical under the present settings."""
        journal = self.journal
        journal.verdict, journal.identical, journal.settings = journals.IDENTICAL, equal, self.settings
        journal.pairs = min(self.trials.pairs, equal)
        journal.changes = [self.changes[option].change for option in self.settings.words if option in self.changes]
        needed = "".join(f" and {change.option}" for change in journal.changes)
        journal.why = why or f"the training repeats with the recorded entropy{needed}"
        for first in self.races()[:1]:
            journal.why += (
                f" in {equal} replays, which can be luck: {first.subject}{diagnosis.place(first)} depends on timing"
            )
        journal.pair = [attempt.directory for attempt in self.runs]

    def give_up(self, why: str) -> None:
        """End the reproduction: nothing is left to try."""
        journal = self.journal
        journal.verdict, journal.settings, journal.why = journals.DIFFERENT, self.settings, why
        journal.pair = [attempt.directory for attempt in self.runs]
        journal.changes = [candidate.change for candidate in self.changes.values()]
        outcomes = [outcome for round_ in journal.rounds for outcome in round_.outcomes]
        remaining = diagnosis.remaining(self.findings, self.runs, outcomes)
        journal.remaining = list(dict.fromkeys([*remaining, *self.located]))
        journal.alternatives = list(dict.fromkeys(diagnosis.alternatives(self.findings, self.runs, outcomes)))

    def count_costs(self) -> None:
        """Add a line for each set of settings with its duration, next to that of the first recording."""
        bare = [attempt for attempt in self.journal.rounds[0].attempts if attempt.kind == "record"]
        before = Cost(
            what=f"recorded as it is ({len(bare)} runs)",
            seconds=median(attempt.seconds or 0.0 for attempt in bare),
            processor=median(attempt.processor or 0.0 for attempt in bare),
        )
        later = [
            attempt
            for attempt in self.runs
            if attempt.directory not in {bare_attempt.directory for bare_attempt in bare}
        ]
        self.journal.costs = [before, *(self._cost(attempt, before) for attempt in later)]

    def _cost(self, attempt: Attempt, before: Cost) -> Cost:
        run_in_words = "recorded" if attempt.kind == "record" else "replayed"
        seconds, processor = attempt.seconds or 0.0, attempt.processor or 0.0
        return Cost(
            what=f"{run_in_words} with {' '.join(self.settings.words)}" if self.settings.words else run_in_words,
            seconds=seconds,
            processor=processor,
            ratio=seconds / before.seconds if before.seconds else None,
            processor_ratio=processor / before.processor if before.processor else None,
        )
