"""Declares `reprokit resume --json`: how an interrupted and resumed training compares with the whole one."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

FORMAT = 2
EXACT: Final = "exact"
NOT_EXACT: Final = "not exact"


class FirstDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The first step of the trail that is another one."""

    process: str
    optimizer: str
    step: int  # of the whole training
    resumed_step: int
    quantity: str  # such as "loss", as in the trail


class PartSaid(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the state that is another one when the resumed training begins."""

    part: str
    step: int  # of the whole training
    names: list[str]  # names of tensors and values; of numbers with both values
    objects: list[str] = []  # the names alone
    idle: bool = False  # a random generator that no step draws from: no difference


class OtherFact(msgspec.Struct, frozen=True, kw_only=True):
    """Something beside the steps that is another one after the resumed training."""

    fact: str  # its name in the table of facts, such as outputs or console
    name: str
    detail: str
    compared: bool = True  # whether it could be compared: else only that it may be another one


class IgnoredAsDeclared(msgspec.Struct, frozen=True, kw_only=True):
    """A rule of the user's, and how many differences after the steps it covers."""

    option: str
    rule: str
    origin: str  # the command line, or a file
    times: int
    words: str


class ResumeFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a resumed training is the whole one, and which state it lacks if not."""

    format: int = FORMAT
    reprokit: str
    command: list[str]
    resume_command: list[str]
    verdict: Literal["exact", "not exact"]
    whole_steps: int
    interrupted_at: int
    signal: str
    files: list[str]  # files that the interrupted training wrote
    resumed_at: int  # step of the whole training at which the resumed one begins
    is_found: bool  # whether `resumed_at` was found by the parameters; else it is the step of the interruption
    compared: int  # number of compared steps
    first: FirstDifference | None = None
    parts: list[PartSaid] = []
    missing: list[str] = []  # smallest set of parts that makes the resumed training equal the whole one
    others: list[OtherFact] = []  # what else differs: files, what was printed, logged values, evaluations
    ignores: list[IgnoredAsDeclared] = []  # what the user declared that it may differ
    proved: bool = False  # whether restoring `missing` was tried and had this effect
    window: int = 0  # number of steps compared in that trial
    trials: int = 0  # number of runs with restored parts
    notes: list[str] = []
    runs: dict[str, str] = {}

    @property
    def is_exact(self) -> bool:
        return self.verdict == EXACT

    def __bool__(self) -> bool:
        """Return whether the resumed training is the one that was not interrupted."""
        return self.is_exact


def document(finding: ResumeFinding) -> Any:
    """Return what --json prints."""
    return msgspec.to_builtins(finding)
