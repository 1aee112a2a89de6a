"""Declares the journal: each round of a reproduction with its runs, differences, findings and changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from reprokit.core.redaction import Secrets
from reprokit.model.states import Uncovered
from reprokit.run_files import rundir
from reprokit.run_files.findings import Finding
from reprokit.run_files.recipe import RecipeSettings

FORMAT: Final = 1
NAME = "journal.json"

RUNNING: Final = "running"
IDENTICAL: Final = "identical"
DIFFERENT: Final = "different"
INTERRUPTED: Final = "interrupted"
FAILED: Final = "failed"

BARE: Final = "bare"  # two recordings with different entropy
ENTROPY: Final = "entropy"  # a recording and its replays
LOCATE: Final = "locate"  # the first divergent operator of two runs that differ
PROFILE: Final = "profile"
CURE: Final = "cure"
SMALLEST: Final = "smallest"  # an option is removed
CHEAPER: Final = "cheaper"  # one patch in place of several

Phase = Literal["bare", "entropy", "locate", "profile", "cure", "smallest", "cheaper"]
Kind = Literal["record", "replay", "profile"]
STATES = "^(applied|not-applied|refused)$"

LISTED = 12  # findings of a round that the journal lists


class PatchOutcome(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of one patch in a run."""

    text: str  # "id" or "id=value"
    state: Annotated[str, msgspec.Meta(pattern=STATES)]
    why: str = ""


class Attempt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run of the training."""

    kind: Kind
    directory: str  # below the journal's own
    ended: str = ""  # how, in words, unless with status 0
    seconds: float | None = None
    processor: float | None = None  # seconds of processors, of all its processes
    patches: list[PatchOutcome] = []
    fidelity: str = ""  # of a replay: how requests were answered
    uncovered: list[Uncovered] = []  # sources that nothing recorded
    withheld: int = 0  # requests of cryptographic libraries
    kept: bool = True  # whether its run directory is still there

    @property
    def failed(self) -> bool:
        """Whether the run ended with another status than 0."""
        return bool(self.ended)


class Outcome(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of comparing two runs."""

    left: str
    right: str
    identical: bool
    words: str  # verify's line
    trail: str = ""  # where the steps part first, as verify says it
    parted_early: bool = False  # in the first quarter of the steps
    categories: list[str] = []  # those that differ, causes before effects
    causes: list[str] = []  # of the surroundings, what can be why
    notes: list[str] = []
    workers: int | None = None  # of a DataLoader in the left run, where the right one had another number
    volatile: bool = False  # whether all named differences are texts in which what looks like times or ids varies
    ignored: list[str] = []  # what was declared that it may differ, and how often that applied
    leftovers: list[str] = []  # files of one run by which the other did not start from the same state


class Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change to the settings: an option of record, added or removed, and why."""

    option: str  # "--clock", "--patch threads=1"
    why: str
    findings: list[str] = []  # ids of those that it is to cure
    cost: str = ""
    warning: str = ""
    excluded: str = ""  # why it was dropped again


class Round(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One iteration of the loop, filled while it goes on."""

    number: int
    phase: Phase
    title: str
    settings: RecipeSettings
    changes: list[Change] = msgspec.field(default_factory=list)
    attempts: list[Attempt] = msgspec.field(default_factory=list)
    outcomes: list[Outcome] = msgspec.field(default_factory=list)
    findings: list[Finding] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)
    conclusion: str = ""


class Cost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The duration of the training under one set of settings."""

    what: str
    seconds: float
    processor: float | None = None  # seconds of processors
    ratio: float | None = None  # of seconds, to the training as it was first recorded
    processor_ratio: float | None = None


class RoundJournal(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The contents of journal.json."""

    format: Literal[1] = FORMAT
    reprokit: str  # the version that made the runs
    command: list[str]
    directory: str  # where the command runs
    started: str
    ended: str | None = None
    verdict: Literal["running", "identical", "different", "interrupted", "failed"] = RUNNING
    pairs: int  # comparisons that had to be identical
    max_rounds: int
    why: str = ""  # the verdict in a sentence
    settings: RecipeSettings = RecipeSettings()  # those of the final pair
    changes: list[Change] = msgspec.field(default_factory=list)  # what these settings are for
    pair: list[str] = msgspec.field(default_factory=list)  # the final two run directories
    identical: int = 0  # comparisons of the final settings that were
    remaining: list[str] = msgspec.field(default_factory=list)  # operators and sources that may be why, where it failed
    excluded: list[Change] = msgspec.field(default_factory=list)  # tried and of no use
    alternatives: list[str] = msgspec.field(default_factory=list)  # what a person can still do
    costs: list[Cost] = msgspec.field(default_factory=list)
    rounds: list[Round] = msgspec.field(default_factory=list)

    def begin(self, phase: Phase, title: str, settings: RecipeSettings, changes: list[Change] | None = None) -> Round:
        """Append a new round and return it."""
        new = Round(number=len(self.rounds) + 1, phase=phase, title=title, settings=settings, changes=changes or [])
        self.rounds.append(new)
        return new

    def attempts(self) -> Iterator[Attempt]:
        """Yield all runs, in order."""
        for round_ in self.rounds:
            yield from round_.attempts


def write_text(path: Path, text: str) -> None:
    """Replace a file whole, readable by its owner only."""
    rundir.write_whole(path, text.encode("utf-8", "backslashreplace"))


def document(journal: RoundJournal) -> str:
    """Return the journal as JSON text."""
    return msgspec.json.format(msgspec.json.encode(_encodable(journal)), indent=2).decode() + "\n"


def _encodable(journal: RoundJournal) -> object:
    """Return the journal without secrets, and without the undecodable bytes of file names."""
    return _escaped(Secrets().value(msgspec.to_builtins(journal)))


def _escaped(value: object) -> object:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {key: _escaped(inner) for key, inner in value.items()}
    return [_escaped(inner) for inner in value] if isinstance(value, (list, tuple)) else value
