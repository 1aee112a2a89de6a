"""Declares divergence.json and `reprokit locate --json`: the first operator whose results differ in two runs."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from reprokit.model.question import StepRange
from reprokit.model.resumption import OtherFact

FORMAT: Final = 1
TITLE: Final = "The first divergent operator of two runs (reprokit locate --json)"
MAX_LISTED = 64  # number of processes


class LocatedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of an operator."""

    operator: str
    overload: str
    framework: str
    device: str
    phase: str
    node: str  # node of the autograd graph, in a backward pass
    where: list[tuple[str, int, str]]  # file, line and function, the innermost first
    text: str  # source text of the innermost line
    thread: str
    step: int
    position: int  # index of the call in its step and thread, from 0
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
    before: LocatedCall | None  # the last call that is equal in both
    draws: bool  # whether the state of a random generator is among its inputs
    more: int  # calls that only one replay makes at this point; negative if the left one
    calls: int  # number of compared calls
    varying: int  # number of these with different results on equal inputs
    other: LocatedCall | None = None  # what the right replay calls there, where both call something else


class LocatedDivergence(msgspec.Struct, frozen=True, kw_only=True):
    """What locate has found."""

    format: int = FORMAT
    verdict: Literal["parted", "same"]
    left: str
    right: str
    run_ids: list[str]  # of both runs, or of the only one
    steps: StepRange  # steps that were watched in the last pair
    pairs: int  # number of replayed pairs until they diverged
    calls: int  # number of calls that both replays of the last pair made
    proved: bool  # whether the replays were compared with both runs by their trails
    results: list[str] = msgspec.field(default_factory=list)  # of steps, that the trails of the last pair compared
    processes: list[ProcessDivergence] = msgspec.field(default_factory=list)  # the earliest first
    compiled: LocatedCall | None = None  # whose operators these are, of eager replays that are the runs by their trails
    outputs: OutputsDiffer | None = None
    known: list[str] = msgspec.field(default_factory=list)  # ids of known facts about the first divergent call
    cures: list[str] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)
    beside_trail: list[OtherFact] = msgspec.field(default_factory=list)  # where nothing parts, and other facts differ

    @property
    def differs(self) -> bool:
        """Return whether a pair parts, or something beside the trail differs."""
        return bool(self.processes or self.beside_trail)
