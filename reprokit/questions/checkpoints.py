"""Asks a replay that resumes one of the training's own checkpoints: a first one finds its step, another answers."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

from reprokit.core.errors import KeyframeRefused, UsageError
from reprokit.core.printable import printable
from reprokit.model.question import Question, StepRange, TensorSelection
from reprokit.questions.replays import AnsweredReplay, Checkpoint, ask
from reprokit.questions.resumed_run import ResumedRun
from reprokit.questions.seek import ADVICE, end_of
from reprokit.run.interruption import Interruption
from reprokit.run_files import trails
from reprokit.run_files.names import read as paths_read
from reprokit.run_files.rundir import RunDirectory

COMPLETE = "'reprokit resume' finds what a checkpoint lacks"


def checkpoint_of(recording: RunDirectory, path: Path, command: tuple[str, ...]) -> Checkpoint:
    """Return a checkpoint, and the command that resumes it: without one, that of the recording."""
    if not path.exists():
        raise UsageError(f"--from {path}: there is no such file or directory; name the checkpoint that is resumed")
    return Checkpoint(Path(os.path.realpath(path)), command or tuple(recording.run.command))


def ask_from_checkpoint(
    recording: RunDirectory,
    checkpoint: Checkpoint,
    selection: TensorSelection,
    place: Path,
    interruption: Interruption,
) -> AnsweredReplay:
    """Ask a replay for tensors that goes on from a checkpoint; raises KeyframeRefused where it is not that run."""
    step = _step_of(recording, checkpoint, place, interruption)
    first, last = selection.steps.first, selection.steps.last
    if first < step:
        raise KeyframeRefused(
            f"no answer from {printable(str(checkpoint.path))}: step {first:,} comes before it, as it is that of step"
            f" {step:,}; ask from there on (--steps {step}-), or {ADVICE}"
        )
    question = Question(
        steps=StepRange(first=first - step, last=None if last is None else last - step),
        tensors=_counted_from(step, selection),
    )
    found = Checkpoint(checkpoint.path, checkpoint.command, step)
    replay = ask(recording, question, place / "replay", interruption, checkpoint=found)
    diverged = next(iter(replay.proof.diverged), None)
    if diverged is not None and diverged.step <= first:
        raise KeyframeRefused(
            f"no answer from {printable(str(checkpoint.path))}: resumed at step {step:,}, the training is not that run"
            f" at step {diverged.step:,}, by its {diverged.quantity}; {COMPLETE}; {ADVICE}"
        )
    if not (replay.proof.steps and replay.proof.results):
        raise KeyframeRefused(
            f"no answer from {printable(str(checkpoint.path))}: the trail has no digests of steps behind it; {ADVICE}"
        )
    return replay


def _step_of(recording: RunDirectory, checkpoint: Checkpoint, place: Path, interruption: Interruption) -> int:
    """Return the step that a resumed training begins with: one step of it is made, and sought in the trail."""
    start = Question(steps=StepRange(last=0), each_step=True)
    replay = ask(recording, start, place / "begin", interruption, checkpoint=checkpoint, needs_proof=False)
    name, run = printable(str(checkpoint.path)), replay.run
    if not any(series.count for trail in trails.read(run) for series in trail.series):
        status = replay.launch_result.ended.exit_code
        raise KeyframeRefused(
            f"no answer from {name}: the command that resumes it took no step (exit status {status}){end_of(run)};"
            f" give another one (--resume-with), or {ADVICE}"
        )
    read = map(Path, paths_read(run.path))
    if run.run.shim is not None and run.run.shim.is_loaded and not any(_is_in(path, checkpoint.path) for path in read):
        raise KeyframeRefused(
            f"no answer from {name}: the command read nothing of it, and began anew; give the command that resumes it"
            f" (--resume-with), or {ADVICE}"
        )
    end = max(series.count for trail in trails.read(recording) for series in trail.series)
    step, is_shown = ResumedRun(run).offset(recording, end)
    if not is_shown:
        raise KeyframeRefused(
            f"no answer from {name}: no step of {recording.path} begins or ends with the parameters that the resumed"
            f" training has; {COMPLETE}; {ADVICE}"
        )
    return step


def _is_in(path: Path, directory: Path) -> bool:
    return path == directory or directory in path.parents


def _counted_from(step: int, selection: TensorSelection) -> TensorSelection:
    """Return the selection with the steps of a training that begins at this one."""
    rules = [
        replace(
            rule,
            steps=tuple(
                replace(span, first=span.first - step, last=None if span.last is None else span.last - step)
                for span in rule.steps
            ),
        )
        for rule in selection.rules
    ]
    return replace(selection, rules=tuple(rules))
