"""A made-up training for the loop: what varies in it, what cures that, and what a profile would say."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from reprokit.core.errors import LaunchError, TrainingFailed
from reprokit.model.states import Uncovered
from reprokit.reproduce.journal import Attempt, Kind, Outcome, PatchOutcome, RoundJournal
from reprokit.reproduce.laboratory import Laboratory, LocateOutcome, ProfileOutcome
from reprokit.reproduce.reproduction import PAIRS
from reprokit.reproduce.search import Reproduction
from reprokit.reproduce.trial import SearchState, Trials
from reprokit.run_files.findings import GUILTY, OPERATOR, SUSPECT, CodePlace, Confirmed, Cure, Finding
from reprokit.run_files.recipe import RecipeSettings

ENTROPY = "entropy"  # as a cure: a replay


@dataclass(frozen=True)
class Varying:
    """One thing that differs from run to run until one of its cures is there."""

    name: str
    cures: frozenset[str]  # options of record, or ENTROPY
    rate: float = 1.0  # how often it differs
    finding: Finding | None = None  # what a profile says of it


@dataclass
class World(Laboratory):
    """A laboratory whose runs take no time."""

    varying: Sequence[Varying]
    findings: Sequence[Finding] = ()  # of what does not vary
    breaks: frozenset[str] = frozenset()  # options with which the training fails
    refuses: frozenset[str] = frozenset()  # options that stop the launch
    not_applied: Mapping[str, str] = field(default_factory=dict)  # patch to why
    uncovered: tuple[Uncovered, ...] = ()
    lacks: str = ""  # what is said where RDRAND cannot be hidden
    withheld: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)  # that a patch adds
    fails: bool = False
    imports: bool = True  # a framework
    locates: bool = False  # whether operators can be logged
    observes: bool = False  # whether the first replay shows operators
    parts_early: bool = False
    dice: random.Random = field(default_factory=lambda: random.Random(5))
    results: dict[str, tuple[object, ...]] = field(default_factory=dict)
    settings: dict[str, RecipeSettings] = field(default_factory=dict)
    there: set[str] = field(default_factory=set)
    idle: set[str] = field(default_factory=set)  # patches that cannot matter

    def record(self, settings: RecipeSettings, name: str) -> Attempt:
        """Record the training."""
        if self.refuses.intersection(settings.words):
            raise LaunchError("refused before the start")
        return self._run("record", settings, name, replayed=None)

    def replay(self, recording: Attempt, name: str, *, clock: bool, observed: bool = False) -> Attempt:
        """Replay it."""
        recorded = self.settings[recording.directory]
        settings = msgspec.structs.replace(recorded, clock=clock and recorded.clock)
        return self._run("replay", settings, name, replayed=recording)

    def profile(self, settings: RecipeSettings, name: str, recording: Attempt | None = None) -> ProfileOutcome:
        """What is not cured is found; a replay is given the clock."""
        own = [one.finding for one in self.varying if one.finding and not one.cures.intersection(settings.words)]
        if recording is not None:
            settings = self.settings[recording.directory]
        attempt = self._run("profile", settings, name, replayed=recording)
        return ProfileOutcome(attempt, (*own, *self.findings), is_replay=recording is not None)

    def findings_of(self, attempt: Attempt) -> ProfileOutcome:
        """What is not cured is suspected, where the replay observes operators."""
        if not self.observes:
            return ProfileOutcome(attempt)
        settings = self.settings[attempt.directory]
        own = [one.finding for one in self.varying if one.finding and not one.cures.intersection(settings.words)]
        found = [msgspec.structs.replace(one, verdict=SUSPECT, confirmed=None) for one in own]
        return ProfileOutcome(attempt, (*found, *self.findings))

    def can_locate(self, recording: Attempt, replay: Attempt) -> bool:
        """By what the test says of it, of runs that are there."""
        assert {recording.directory, replay.directory} <= self.there
        return self.locates

    def locate(self, recording: Attempt, replay: Attempt) -> LocateOutcome:
        """The first operator that is not cured is found; what a replay gives again with its clock agrees."""
        words = self.settings[recording.directory].words
        varying = [one for one in self.varying if not one.cures.intersection((ENTROPY, "--clock", *words))]
        found = [one.finding for one in varying if one.finding and one.finding.cures]
        return LocateOutcome(tuple(found[:1]), agree=not varying)

    def compare(self, left: Attempt, right: Attempt) -> Outcome:
        """Whether the results are the same."""
        assert {left.directory, right.directory} <= self.there
        same = self.results[left.directory] == self.results[right.directory]
        words = "identical: all of it" if same else "different: weights"
        return Outcome(
            left=left.directory, right=right.directory, identical=same, words=words, parted_early=self.parts_early
        )

    def matters(self, attempt: Attempt, option: str) -> bool:
        """By what the test says of it."""
        return option not in self.idle

    def has_operators(self, attempt: Attempt) -> bool:
        """By what the test says of it."""
        return self.imports

    def discard(self, attempt: Attempt) -> None:
        """Forget it."""
        self.there.discard(attempt.directory)

    def _run(self, kind: Kind, settings: RecipeSettings, name: str, replayed: Attempt | None) -> Attempt:
        assert name not in self.settings
        self.settings[name] = settings
        self.there.add(name)
        self.results[name] = tuple(
            self._result(one, settings, None if replayed is None else self.results[replayed.directory][number])
            for number, one in enumerate(self.varying)
        )
        is_broken = self.fails or bool(self.breaks.intersection(settings.words))
        return Attempt(
            kind=kind,
            directory=name,
            ended="with exit status 3" if is_broken else "",
            seconds=10.0 + sum(self.seconds.get(patch, 0.0) for patch in settings.patches),
            processor=10.0 + sum(self.seconds.get(patch, 0.0) for patch in settings.patches),
            patches=[
                PatchOutcome(text=patch, state="not-applied" if patch in self.not_applied else "applied")
                for patch in settings.patches
            ],
            uncovered=self._lacking() if settings.hide_rdrand else list(self.uncovered),
            withheld=self.withheld,
        )

    def _lacking(self) -> list[Uncovered]:
        return [Uncovered(source="cpuid", option="--hide-rdrand", text=self.lacks)] if self.lacks else []

    def _result(self, one: Varying, settings: RecipeSettings, recorded: object) -> object:
        words = {*settings.words} - {f"--patch {patch}" for patch in self.not_applied}
        if recorded is not None and one.cures.intersection((ENTROPY, *words.intersection({"--clock"}))):
            return recorded
        is_cured = one.cures.intersection(words - {"--clock"})
        return "same" if is_cured or self.dice.random() >= one.rate else self.dice.random()


def entropy() -> Varying:
    """What most trainings differ by."""
    return Varying("entropy", frozenset({ENTROPY}))


def guilty(name: str, *patches: str, results: int = 9, calls: int = 100) -> Finding:
    """An operator that a profile measured to vary, with its cures in order."""
    return Finding(
        id=f"operator:{name}",
        kind=OPERATOR,
        subject=name,
        framework="pytorch",
        where=[CodePlace("train.py", 12, "step")],
        calls=calls,
        confirmed=Confirmed(repeats=30, results=results),
        cures=[Cure(patch=patch) for patch in patches],
        verdict=GUILTY,
    )


def operator(name: str, *patches: str, cured_by: Sequence[str] | None = None, rate: float = 1.0) -> Varying:
    """An operator that varies, is measured to, and is cured by all of its patches, or by some of them."""
    found = guilty(name, *patches)
    texts = [f"{patch}={name}" if patch == "torch-operator" else patch for patch in cured_by or patches]
    return Varying(name, frozenset(f"--patch {text}" for text in texts), rate, found)


def reproduced(
    world: World,
    *,
    pairs: int | None = None,
    max_rounds: int = 12,
    base: RecipeSettings | None = None,
    automatic: Sequence[str] = (),
) -> RoundJournal:
    """The journal of a whole search; one that fails is left as it was."""
    journal = RoundJournal(
        reprokit="1", command=["train"], directory="/", started="now", pairs=pairs or PAIRS, max_rounds=max_rounds
    )
    trials = Trials(world, journal, keep_runs=False, may_be_one=pairs is None, save=lambda: None, say=lambda _: None)
    search = Reproduction(SearchState(trials, journal, base or RecipeSettings()), automatic=automatic)
    try:
        search.run()
    except TrainingFailed as error:
        journal.why = str(error)
        raise
    return journal
