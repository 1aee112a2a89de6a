"""Replays a recording with a question, and proves that the replay is that run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from reprokit.core.errors import NotReplayable
from reprokit.core.tolerance import Tolerances
from reprokit.model.plan import CapturePlan, ReplayStart
from reprokit.model.question import Question
from reprokit.model.resumption import OtherFact
from reprokit.questions import scratch
from reprokit.questions.proof import ReplayProof, prove, with_end_weights
from reprokit.questions.seek import from_keyframe, require_proof, require_restored, skipped_of
from reprokit.run.early_end import ENOUGH
from reprokit.run.interruption import Interruption
from reprokit.run.launcher_process import LaunchResult, execute
from reprokit.run.replay_plan import replay_plan
from reprokit.run.starting_files import started_from
from reprokit.run_files import trails
from reprokit.run_files.keyframes import Keyframe
from reprokit.run_files.rundir import ANSWERS, RunDirectory
from reprokit.verify.categories import script_variables
from reprokit.verify.categories.match import match
from reprokit.verify.facts import beside_trail
from reprokit.verify.ignores import Ignores


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of the recorded training, from which a replay goes on by another command."""

    path: Path
    command: tuple[str, ...]
    step: int = 0  # of the recording, that the first step of the replay is; 0: not known yet


@dataclass(frozen=True)
class AnsweredReplay:
    """A replay that was asked a question, and the proof that it is its recording."""

    run: RunDirectory
    launch_result: LaunchResult
    proof: ReplayProof
    changes: tuple[str, ...] = ()  # since the recording
    keyframe: Keyframe | None = None  # to which it was fast-forwarded
    checkpoint: Checkpoint | None = None  # which it resumed
    put_in: tuple[str, ...] = ()  # parts of the run's state that the checkpoint lacks
    is_eager: bool = False  # whether it executed compiled code operator by operator

    @property
    def begin(self) -> int | None:
        """The step of the recording from which it went on; None if it is that of the beginning."""
        start = self.keyframe or self.checkpoint
        return None if start is None else start.step

    @property
    def beginning(self) -> Iterator[str]:
        """Yield in words from where it went on."""
        if self.keyframe is not None:
            yield f"from the keyframe of step {self.keyframe.step:,}"
        if self.checkpoint is not None:
            yield f"from {self.checkpoint.path}, the checkpoint of step {self.checkpoint.step:,}"
        if self.put_in:
            yield f"put in from the run, as the checkpoint lacks some of it: {', '.join(self.put_in)}"

    @property
    def is_whole(self) -> bool:
        """Return whether it went on to its end, and was not ended by its question."""
        has_ended = self.launch_result.ended.exit_code == 0 and not self.run.has(f"{ANSWERS}/{ENOUGH}")
        return has_ended and self.begin is None

    def beside_trail(self, recording: RunDirectory, ignores: Ignores) -> list[OtherFact]:
        """Return what else of a whole replay is not as its recording has it: the trail sees nothing of it."""
        return beside_trail(recording, self.run, ignores) if self.is_whole else []


def ask(
    recording: RunDirectory,
    question: Question,
    place: Path,
    interruption: Interruption,
    *,
    is_silent: bool | None = None,
    needs_proof: bool = True,
    keyframe: Keyframe | None = None,
    checkpoint: Checkpoint | None = None,
    capture: CapturePlan | None = None,
) -> AnsweredReplay:
    """Replay a recording into the directory `place` with a question; captures are off but for those asked for.

    A silent replay prints nothing, as by default one from a keyframe, which prints until then what is not the
    recording's, or from a checkpoint.
    Without a trail, nothing can be proved. Outputs stay as they are.
    """
    if keyframe is not None:
        question = from_keyframe(question, recording, keyframe)
    is_silent = (keyframe or checkpoint) is not None if is_silent is None else is_silent
    if needs_proof:
        question = msgspec.structs.replace(question, proved_by=_proved_by(recording, question))
    plan = replay_plan(recording, place, question=question, start=ReplayStart.FOUND_AND_BACK)
    plan = msgspec.structs.replace(plan, is_scratch=place.parent.name.startswith(scratch.KINDS))
    if needs_proof and next(trails.read(recording), None) is None:  # raises RunDamaged for one that was altered
        steps = "no step of PyTorch, TensorFlow, XGBoost or LightGBM was recorded"
        raise NotReplayable(f"{recording.path} has no trail ({steps}), so no replay can prove that it is this run")
    if checkpoint is not None:  # it begins later than the recording, and is in no order or time of its beginning
        plan = msgspec.structs.replace(plan, command=checkpoint.command, calendar=False, orders=False)
    with started_from(plan, place, None if checkpoint is None else checkpoint.path) as start:
        plan = msgspec.structs.replace(plan, capture=capture, start=ReplayStart.HERE, started_from=start)
        result = execute(plan, interruption, silence_output if is_silent else None)
    replay = RunDirectory(place)
    proof = prove(recording, replay, skipped_of(keyframe), 0 if checkpoint is None else checkpoint.step)
    if keyframe is not None:
        require_restored(replay, keyframe, result.ended.exit_code)
        if needs_proof:
            require_proof(proof, keyframe, question.steps.first)
    is_whole = needs_proof and result.ended.exit_code == 0 and not replay.has(f"{ANSWERS}/{ENOUGH}")
    proof = with_end_weights(proof, recording, replay) if is_whole else proof
    is_part = checkpoint is not None or replay.has(f"{ANSWERS}/{ENOUGH}")
    changes = [*replay.run.changed, *_changed_variables(recording, replay, is_part=is_part)]
    return AnsweredReplay(replay, result, proof, tuple(changes), keyframe, checkpoint, is_eager=question.eager)


def _proved_by(recording: RunDirectory, question: Question) -> int | None:
    """Return up to which step a replay goes on that could end before the recording's trail has its next step."""
    series, last = [each for trail in trails.read(recording) for each in trail.series], question.steps.last
    every = max((each.every for each in series), default=1)
    if last is None or every == 1:
        return None
    return series[0].looked_at_from(last) if len(series) == 1 else last + every  # others may number steps otherwise


def _changed_variables(recording: RunDirectory, replay: RunDirectory, *, is_part: bool) -> Iterator[str]:
    """Yield the variables of the environment that the script reads and that are not as they were recorded."""
    for read in script_variables.compare(match(recording, replay, Tolerances()), is_part=is_part):
        if read.can_change_results:
            yield f"{read.name}: {read.left} when recorded, {read.right} now ({read.detail})"


def silence_output() -> None:
    """Redirect the standard output and error of the launcher, and of all that it starts, to /dev/null."""
    for descriptor in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
