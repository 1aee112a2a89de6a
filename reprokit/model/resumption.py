"""What came out when a training was interrupted, resumed, and held against the whole one: `reprokit resume --json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from reprokit import rundir
from reprokit.rundir import RunDirectory

FORMAT = 1
EXACT: Final = "exact"
NOT_EXACT: Final = "not exact"


class FirstDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The first step of the trail that is another one."""

    process: str
    optimizer: str
    step: int  # of the whole training
    resumed_step: int
    quantity: str  # "loss": as the trail's page names them


class PartSaid(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the state that is another one when the resumed training begins."""

    part: str
    step: int  # of the whole training
    names: list[str]  # of tensors and values
    idle: bool = False  # a generator that no step draws from, which is no difference


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
    files: list[str]  # that the interrupted training wrote
    resumed_at: int  # the step of the whole training that the resumed one begins with
    is_found: bool  # whether that was found by the parameters; else it is where the training was interrupted
    compared: int  # steps
    first: FirstDifference | None = None
    parts: list[PartSaid] = []
    missing: list[str] = []  # the smallest set of parts that makes the resumed training the whole one
    other_files: list[str] = []  # written by both, with other content
    proved: bool = False  # whether it was put in and did so
    window: int = 0  # steps that were compared then
    trials: int = 0  # runs with parts put in
    notes: list[str] = []
    runs: dict[str, str] = {}

    @property
    def is_exact(self) -> bool:
        return self.verdict == EXACT


def write(directory: Path, finding: ResumeFinding) -> None:
    """Put it into the directory of the whole run, without the places of the others."""
    rundir.write_json(directory / rundir.RESUMPTION, msgspec.structs.replace(finding, runs={}))


def read(run: RunDirectory) -> ResumeFinding | None:
    """Return it; None of a run that is no whole training of such a study."""
    return run.decode(rundir.RESUMPTION, ResumeFinding) if run.has(rundir.RESUMPTION) else None


def document(finding: ResumeFinding) -> Any:
    """Return what --json prints."""
    return msgspec.to_builtins(finding)
