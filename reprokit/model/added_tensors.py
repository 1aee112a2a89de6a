"""Declares `reprokit ask --json`: which tensors a replay added to its recording, and which it could not."""

from __future__ import annotations

import msgspec


class FactBesideTrail(msgspec.Struct, frozen=True, kw_only=True):
    """Something beside the steps that the replay did not give again."""

    fact: str  # its name in the table of facts, such as outputs or console
    name: str
    detail: str


class PartedSeries(msgspec.Struct, frozen=True, kw_only=True):
    """The first step from which on the replay is not the run."""

    step: int
    quantity: str
    process: str


class TensorsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The values that were added to a run, and those that were not."""

    added: int
    known: int  # values that the run had already
    refused: int  # not added, as nothing shows that they are of that run
    differing: list[str]  # tensors of which the run holds another value
    seen: int  # values that the trail covers
    agreed: int  # values that it does not cover, and that a second replay gave again
    unproved: dict[str, list[str]]  # the remaining ones, by reason
    unmatched: list[str]  # words for which nothing was saved
    compiled: str = ""  # whence values within torch.compile are, or why they are none; empty if none were asked for
    tensors: list[str]
    steps: list[int]
    keyframe: int | None  # the step whose keyframe the replay began with; None from the start
    checkpoint: int | None = None  # the step at which the training's own checkpoint was resumed, if it was
    put_in: list[str] = []  # parts of the run's state that were put in there, as the checkpoint lacks some of it
    proved_steps: int
    beside_trail: list[FactBesideTrail]
    parted: list[PartedSeries]
    settled: bool  # whether nothing of the above is open: the exit status of the command is then 0

    def __bool__(self) -> bool:
        """Return whether nothing is open."""
        return self.settled
