"""One trial: a recording with certain settings, and replays of it until one differs or enough were identical."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from reprokit.errors import LaunchError
from reprokit.recipe import RecipeSettings
from reprokit.reproduce.journal import Attempt, Change, Outcome, Phase, Round, RoundJournal
from reprokit.reproduce.laboratory import Laboratory


class TrialOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came out of a trial."""

    round: Round
    recording: Attempt | None = None
    replay: Attempt | None = None  # the last one
    equal: int = 0  # replays that were identical
    failed: str = ""  # why there was nothing to compare

    @property
    def identical(self) -> bool:
        """Whether every replay was."""
        outcomes = self.round.outcomes
        return not self.failed and bool(outcomes) and all(outcome.identical for outcome in outcomes)


class Trials:
    """Makes trials, writes each into the journal, and removes the runs that are of no more use."""

    def __init__(
        self,
        laboratory: Laboratory,
        journal: RoundJournal,
        *,
        keep_runs: bool,
        save: Callable[[], None],
        say: Callable[[str], None],
    ):
        self._laboratory, self._journal, self._keep_runs = laboratory, journal, keep_runs
        self._save, self._say = save, say
        self.pairs = journal.pairs  # replays that must be identical

    def begin(self, phase: Phase, title: str, settings: RecipeSettings, changes: list[Change] | None = None) -> Round:
        """A new round, said and written down before it starts."""
        new = self._journal.begin(phase, title, settings, changes)
        self._say(f"round {new.number}: {title}")
        self._save()
        return new

    def record(self, into: Round, settings: RecipeSettings, name: str = "recording") -> Attempt:
        """A recording, written into the round."""
        return self._note(into, self._laboratory.record(settings, f"{into.number:02d}-{name}"))

    def profile(self, into: Round) -> Attempt:
        """A profile, written into the round with what it found; only its findings are kept."""
        found = self._laboratory.profile(into.settings, f"{into.number:02d}-profile")
        into.findings, into.notes = list(found.findings), [*into.notes, *found.notes]
        attempt = self._note(into, found.attempt)
        self.discard(attempt)
        return attempt

    def trial(
        self,
        phase: Phase,
        title: str,
        settings: RecipeSettings,
        changes: list[Change] | None = None,
        *,
        recording: Attempt | None = None,
        pairs: int = 0,
    ) -> TrialOutcome:
        """Record, unless there is a recording, then replay and compare."""
        new = self.begin(phase, title, settings, changes)
        try:
            original = recording or self.record(new, settings)
        except LaunchError as error:
            if not changes:
                raise
            return TrialOutcome(round=new, failed=str(error))
        if original.failed:
            return TrialOutcome(round=new, recording=original, failed=f"the training ended {original.ended}")
        return self._replays(new, original, max(pairs, self.pairs))

    def _replays(self, into: Round, recording: Attempt, count: int) -> TrialOutcome:
        replay: Attempt | None = None
        for number in range(1, count + 1):
            if replay is not None:
                self.discard(replay)
            replay = self._note(into, self._laboratory.replay(recording, f"{into.number:02d}-replay-{number}"))
            if not self.compare(into, recording, replay).identical:
                self.learn(number)
                return TrialOutcome(round=into, recording=recording, replay=replay, equal=number - 1)
        return TrialOutcome(round=into, recording=recording, replay=replay, equal=count)

    def learn(self, number: int) -> None:
        """A difference that only the n-th pair showed is a rare one: twice as many pairs are asked for from now on."""
        self.pairs = max(self.pairs, 2 * number) if number > 1 else self.pairs

    def compare(self, into: Round, left: Attempt, right: Attempt) -> Outcome:
        """Two runs compared, written into the round."""
        outcome = self._laboratory.compare(left, right)
        into.outcomes.append(outcome)
        self._say(f"{'replay' if right.kind == 'replay' else 'runs'}: {outcome.words}")
        self._save()
        return outcome

    def conclude(self, of: Round, words: str) -> None:
        """What the round came to."""
        of.conclusion = words
        self._say(words)
        self._save()

    def discard(self, *attempts: Attempt | None) -> None:
        """Remove runs, unless all are to be kept."""
        for attempt in attempts:
            if attempt is None or self._keep_runs:
                continue
            self._laboratory.discard(attempt)
            gone = msgspec.structs.replace(attempt, kept=False)
            for one in self._journal.rounds:
                one.attempts = [gone if other.directory == attempt.directory else other for other in one.attempts]

    def _note(self, into: Round, attempt: Attempt) -> Attempt:
        into.attempts.append(attempt)
        self._save()
        return attempt
