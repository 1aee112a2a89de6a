"""Asks a recording in a process of its own: the shim does not load beside all that a test's process has loaded."""

from __future__ import annotations

from multiprocessing import get_context
from pathlib import Path

from reprokit.model.question import KeyframesAsked, Question, StepRange
from reprokit.questions.proof import ReplayProof
from reprokit.questions.replays import ask
from reprokit.run.interruption import Interruption
from reprokit.run_files.rundir import RunDirectory


def asked(
    recording: Path, place: Path, keyframes: KeyframesAsked | None = None, *, to_end: bool = False
) -> tuple[int | None, ReplayProof]:
    """How a replay ended that was asked for steps 2 and 3, and what it proves; at which later step it ends is chance.

    With `to_end`, it goes on to its end.
    """
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(_ask, (recording, place, keyframes, to_end))


def _ask(
    recording: Path, place: Path, keyframes: KeyframesAsked | None, to_end: bool
) -> tuple[int | None, ReplayProof]:
    question = Question(steps=StepRange(first=2, last=3), to_end=to_end, keyframes=keyframes)
    with Interruption() as interruption:
        found = ask(RunDirectory(recording), question, place, interruption)
    return found.launch_result.ended.exit_code, found.proof
