"""The first operator that gave another result in two runs: `reprokit locate --json`, and divergence.json."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from reprokit import rundir
from reprokit.model.question import StepRange
from reprokit.rundir import RunDirectory

FORMAT: Final = 1
TITLE: Final = "The first divergent operator of two runs (reprokit locate --json)"
MAX_LISTED = 64  # processes


class LocatedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of an operator."""

    operator: str
    overload: str
    framework: str
    device: str
    phase: str
    node: str  # of the graph, in a backward pass
    where: list[tuple[str, int, str]]  # file, line and function, the innermost first
    text: str  # of the innermost line
    thread: str
    step: int
    position: int  # of the call in its step and thread, from 0 on
    inputs: list[str]  # "float32 [16]"


class OutputsDiffer(msgspec.Struct, frozen=True, kw_only=True):
    """In what the outputs of the guilty call differ, of one pair in which it was kept."""

    elements: int
    differing: int
    largest_ulp: int | None


class ProcessDivergence(msgspec.Struct, frozen=True, kw_only=True):
    """Where a process of both replays parts first."""

    process: str
    kind: Literal["result", "outside", "path"]
    call: LocatedCall
    before: LocatedCall | None  # the last call that both have alike
    draws: bool  # whether the state of a random generator is one of the inputs
    more: int  # calls that only one of both makes at the place; negative: the left one
    calls: int  # that were compared
    varying: int  # of them, those that gave another result on equal inputs


class LocatedDivergence(msgspec.Struct, frozen=True, kw_only=True):
    """What locate has found."""

    format: int = FORMAT
    verdict: Literal["parted", "same"]
    left: str
    right: str
    run_ids: list[str]  # of both, or of the only run
    steps: StepRange  # that were looked at in the last pair
    pairs: int  # replayed, until they parted
    calls: int  # that the last pair has in common
    proved: bool  # whether both runs have trails, by which replays are compared with them
    processes: list[ProcessDivergence] = msgspec.field(default_factory=list)  # the earliest first
    outputs: OutputsDiffer | None = None
    known: list[str] = msgspec.field(default_factory=list)  # facts about the first call
    cures: list[str] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)


def write(run: RunDirectory, found: LocatedDivergence) -> None:
    """Put it into a run's directory; raises CannotWriteRun."""
    rundir.write_json(run.path / rundir.DIVERGENCE, found)


def read(run: RunDirectory) -> LocatedDivergence | None:
    """Return it; None of a run about which nobody asked."""
    return run.decode(rundir.DIVERGENCE, LocatedDivergence) if run.has(rundir.DIVERGENCE) else None
