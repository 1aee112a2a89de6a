"""Where a reproduction stands: the settings reached, what each is for, and the last two runs made with them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

from reprokit.findings import Finding
from reprokit.recipe import RecipeSettings
from reprokit.reproduce import diagnosis
from reprokit.reproduce.diagnosis import Candidate
from reprokit.reproduce.journal import DIFFERENT, IDENTICAL, Attempt, Cost, RoundJournal
from reprokit.reproduce.trial import TrialOutcome, Trials


class Standing:
    """What changes from round to round; the journal is kept in step with it."""

    def __init__(self, trials: Trials, journal: RoundJournal, base: RecipeSettings):
        self.trials, self.journal = trials, journal
        self.base = self.settings = base
        self.changes: dict[str, Candidate] = {}  # by option, of the present settings
        self.findings: Sequence[Finding] = ()
        self.tried: dict[RecipeSettings, bool] = {}  # whether replays with them were identical
        self.pair: tuple[Attempt | None, Attempt | None] = (None, None)

    @property
    def runs(self) -> list[Attempt]:
        """The last pair, as far as there is one."""
        return [attempt for attempt in self.pair if attempt is not None]

    @property
    def excluded(self) -> set[str]:
        """Options that were of no use."""
        return {change.option for change in self.journal.excluded}

    @property
    def is_done(self) -> bool:
        """Whether runs were identical."""
        return self.journal.verdict == IDENTICAL

    def take(self, settings: RecipeSettings, tried: TrialOutcome, why: str = "") -> None:
        """Go on from this trial; its runs are the pair now."""
        before, self.pair = self.pair, (tried.recording, tried.replay)
        self.trials.discard(*(attempt for attempt in before if attempt not in self.pair))
        self.settings, self.tried[settings] = settings, tried.identical
        if tried.identical:
            self.succeed(tried.equal, why)

    def exclude(self, candidate: Candidate, why: str) -> None:
        """This option is of no use."""
        self.changes.pop(candidate.option, None)
        self.journal.excluded.append(msgspec.structs.replace(candidate.change, excluded=why))

    def succeed(self, equal: int, why: str = "") -> None:
        """Runs were identical with the present settings."""
        journal = self.journal
        journal.verdict, journal.identical, journal.settings = IDENTICAL, equal, self.settings
        journal.changes = [self.changes[option].change for option in self.settings.words if option in self.changes]
        needed = "".join(f" and {change.option}" for change in journal.changes)
        journal.why = why or f"the training repeats with the recorded entropy{needed}"
        journal.pair = [attempt.directory for attempt in self.runs]

    def give_up(self, why: str) -> None:
        """Nothing is left to try."""
        journal = self.journal
        journal.verdict, journal.settings, journal.why = DIFFERENT, self.settings, why
        journal.pair = [attempt.directory for attempt in self.runs]
        journal.changes = [candidate.change for candidate in self.changes.values()]
        outcomes = [outcome for one in journal.rounds for outcome in one.outcomes]
        journal.remaining = list(dict.fromkeys(diagnosis.remaining(self.findings, self.runs, outcomes)))
        journal.alternatives = list(dict.fromkeys(diagnosis.alternatives(self.findings, self.runs, outcomes)))

    def count_costs(self) -> None:
        """One line a way of running the training, beside what it took as it was first recorded."""
        bare = self.journal.rounds[0].attempts
        before = Cost(
            what=f"recorded as it is ({len(bare)} runs)",
            seconds=median(attempt.seconds or 0.0 for attempt in bare),
            processor=median(attempt.processor or 0.0 for attempt in bare),
        )
        later = [attempt for attempt in self.runs if attempt.directory not in {one.directory for one in bare}]
        self.journal.costs = [before, *(self._cost(attempt, before) for attempt in later)]

    def _cost(self, attempt: Attempt, before: Cost) -> Cost:
        what = "recorded" if attempt.kind == "record" else "replayed"
        seconds, processor = attempt.seconds or 0.0, attempt.processor or 0.0
        return Cost(
            what=f"{what} with {' '.join(self.settings.words)}" if self.settings.words else what,
            seconds=seconds,
            processor=processor,
            ratio=seconds / before.seconds if before.seconds else None,
            processor_ratio=processor / before.processor if before.processor else None,
        )
