"""Replays a recording with a question, and proves that the replay is that run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from reprokit.core.errors import NotReplayable
from reprokit.core.tolerance import Tolerances
from reprokit.model.plan import ReplayStart
from reprokit.model.question import Question
from reprokit.questions.proof import ReplayProof, prove, with_end_weights
from reprokit.run.early_end import ENOUGH
from reprokit.run.interruption import Interruption
from reprokit.run.launcher_process import LaunchResult, execute
from reprokit.run.replay_plan import replay_plan
from reprokit.run.starting_files import started_from
from reprokit.run_files import trails
from reprokit.run_files.rundir import ANSWERS, RunDirectory
from reprokit.verify.categories import script_variables
from reprokit.verify.categories.match import match


@dataclass(frozen=True)
class AnsweredReplay:
    """A replay that was asked a question, and the proof that it is its recording."""

    run: RunDirectory
    launch_result: LaunchResult
    proof: ReplayProof
    changes: tuple[str, ...] = ()  # since the recording


def ask(
    recording: RunDirectory,
    question: Question,
    place: Path,
    interruption: Interruption,
    *,
    is_silent: bool = False,
    needs_proof: bool = True,
) -> AnsweredReplay:
    """Replay a recording into the directory `place` with a question; captures are off.

    A silent replay prints nothing. Without a trail, nothing can be proved. Outputs stay as they are.
    """
    plan = replay_plan(recording, place, question=question, start=ReplayStart.FOUND_AND_BACK)
    if needs_proof and next(trails.read(recording), None) is None:  # raises RunDamaged for one that was altered
        steps = "no step of PyTorch, TensorFlow, XGBoost or LightGBM was recorded"
        raise NotReplayable(f"{recording.path} has no trail ({steps}), so no replay can prove that it is this run")
    with started_from(plan, place) as start:
        plan = msgspec.structs.replace(plan, capture=None, start=ReplayStart.HERE, started_from=start)
        result = execute(plan, interruption, silence_output if is_silent else None)
    replay = RunDirectory(place)
    proof = prove(recording, replay)
    is_whole = needs_proof and result.ended.exit_code == 0 and not replay.has(f"{ANSWERS}/{ENOUGH}")
    proof = with_end_weights(proof, recording, replay) if is_whole else proof
    changes = [*replay.run.changed, *_changed_variables(recording, replay)]
    return AnsweredReplay(replay, result, proof, tuple(changes))


def _changed_variables(recording: RunDirectory, replay: RunDirectory) -> Iterator[str]:
    """Yield the variables of the environment that the script reads and that are not as they were recorded."""
    for read in script_variables.compare(match(recording, replay, Tolerances())):
        if read.can_change_results:
            yield f"{read.name}: {read.left} when recorded, {read.right} now ({read.detail})"


def silence_output() -> None:
    """Redirect the standard output and error of the launcher, and of all that it starts, to /dev/null."""
    for descriptor in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
