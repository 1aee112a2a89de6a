"""Replays a recording with a question, and proves that the replay is that run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from reprokit.errors import NotReplayable
from reprokit.launch.interruption import Interruption
from reprokit.launch.launcher_process import LaunchResult, execute
from reprokit.launch.replay_plan import replay_plan
from reprokit.model.question import Question
from reprokit.questions.proof import ReplayProof, prove
from reprokit.rundir import TRAIL, RunDirectory


@dataclass(frozen=True)
class AskedReplay:
    """A replay that was asked something, and what it proved."""

    run: RunDirectory
    executed: LaunchResult
    proof: ReplayProof


def ask(
    recording: RunDirectory,
    question: Question,
    place: Path,
    interruption: Interruption,
    *,
    hushed: bool = False,
    needs_proof: bool = True,
) -> AskedReplay:
    """Replay a recording into the directory `place`, with a question; its captures are not taken again.

    A hushed one prints nothing. Without a trail nothing can be proved.
    """
    if needs_proof and not recording.has(TRAIL):
        raise NotReplayable(
            f"{recording.path} has no trail, so no replay can prove that it is this run; record it again"
        )
    plan = replay_plan(recording, place, question=question)
    executed = execute(msgspec.structs.replace(plan, capture=None), interruption, hush if hushed else None)
    replay = RunDirectory(place)
    return AskedReplay(replay, executed, prove(recording, replay))


def hush() -> None:
    """Let the launcher, and all that it starts, print nothing."""
    for descriptor in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
