"""Asks a replay that resumes one of the training's own checkpoints: a first one finds its step, another answers.

If the checkpoint lacks state, that is put in from a replay that comes to this step from a keyframe.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from reprokit.core.errors import KeyframeRefused, UsageError, reason
from reprokit.core.messages import say
from reprokit.core.printable import printable
from reprokit.model.question import Question, StateQuestion, StepRange, TensorSelection
from reprokit.questions.proof import DivergedSeries
from reprokit.questions.replays import AnsweredReplay, Checkpoint, ask
from reprokit.questions.resumed_run import ResumedRun, WholeRun, compare_runs
from reprokit.questions.seek import ADVICE, end_of, seek
from reprokit.questions.state_answers import DATA, VARIABLES
from reprokit.run.interruption import Interruption
from reprokit.run_files import trails
from reprokit.run_files.names import read as paths_read
from reprokit.run_files.rundir import ANSWERS, RunDirectory

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
    step, begun = _begun(recording, checkpoint, place, interruption)
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
    if _divergence(replay, first) is not None:
        steps = StepRange(first=step, last=last)
        for number, state in enumerate(_missing(recording, begun, steps, place, interruption)):
            say(f"resuming it again, with these of the run put in: {', '.join(state.parts)}")
            complete = replace(question, steps=replace(question.steps, first=0), state=state)
            attempt = ask(recording, complete, place / f"complete-{number}", interruption, checkpoint=found)
            if _divergence(attempt, first) is None and max(attempt.proof.steps.values(), default=0) > first:
                # Batches are put in up to that step.
                proof = attempt.proof if last is None else attempt.proof.until(last + 1)
                replay = dataclasses.replace(attempt, put_in=state.parts, proof=proof)
                break
    diverged = _divergence(replay, first)
    if diverged is not None:
        raise KeyframeRefused(
            f"no answer from {printable(str(checkpoint.path))}: resumed at step {step:,}, the training is not that run"
            f" at step {diverged.step:,}, by its {diverged.quantity}{_why_not_put_in(recording, step)}; {COMPLETE};"
            f" {ADVICE}"
        )
    if not (replay.proof.steps and replay.proof.results):
        raise KeyframeRefused(
            f"no answer from {printable(str(checkpoint.path))}: the trail has no digests of steps behind it; {ADVICE}"
        )
    return replay


def _why_not_put_in(recording: RunDirectory, step: int) -> str:
    """Return why no state of the run was put in; empty if a keyframe leads to it."""
    found = seek(recording, step - 1)
    why = found.why or "it was recorded without --keyframes"
    return "" if found.keyframe else f"; no keyframe of the run has what the checkpoint lacks: {why}"


def _divergence(replay: AnsweredReplay, first: int) -> DivergedSeries | None:
    """Return where a replay is not the run up to the first step that is asked for."""
    return next((series for series in replay.proof.diverged if series.step <= first), None)


def _missing(
    recording: RunDirectory, begun: RunDirectory, steps: StepRange, place: Path, interruption: Interruption
) -> Iterator[StateQuestion]:
    """Yield the state to be put in at the first of these steps, as the resumed training has other one there.

    Without its variables and the batches of these steps first.
    """
    resumed, step = ResumedRun(begun), steps.first
    keyframe = seek(recording, step - 1).keyframe
    if not resumed.states or keyframe is None:
        return
    say(f"the checkpoint lacks state: reading it at step {step:,}, from the keyframe of step {keyframe.step:,}")
    state = StateQuestion(keeps=True, calls=resumed.calls, resumed=resumed.variables)
    question = Question(steps=steps, state=state)
    try:
        asked = ask(recording, question, place / "state", interruption, keyframe=keyframe)
    except KeyframeRefused as refusal:
        say(reason(refusal))
        return
    if asked.proof.diverged:
        return
    outcome = compare_runs(WholeRun(recording, asked.run, step), begun)
    differing = tuple(part.part for part in outcome.parts)
    put = StateQuestion(put=str(asked.run.path / ANSWERS), variables=outcome.variables, fetched=resumed.fetched)
    state_alone = tuple(part for part in differing if part not in (VARIABLES, DATA))
    for parts in dict.fromkeys((state_alone, differing)):
        if parts:
            yield replace(put, parts=parts)


def _begun(
    recording: RunDirectory, checkpoint: Checkpoint, place: Path, interruption: Interruption
) -> tuple[int, RunDirectory]:
    """Make one step of a resumed training; return which one it is, sought in the trail, and the run."""
    start = Question(steps=StepRange(last=0), each_step=True, state=StateQuestion())
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
    return step, run


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
