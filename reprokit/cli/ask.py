"""``reprokit ask``: save tensors of a run that was recorded, as if they had been saved while it trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from reprokit.cli import options
from reprokit.cli.output import ending_with, interruptible, present, stdout_kept
from reprokit.core.errors import EXIT_DIFFERENT, EXIT_IDENTICAL, UsageError
from reprokit.core.messages import say
from reprokit.core.printable import listed, printable
from reprokit.model.added_tensors import FactBesideTrail, PartedSeries, TensorsAnswer
from reprokit.run_files import rundir
from reprokit.verify.verdict import beside_trail_notes, tensors_proof

if TYPE_CHECKING:
    from reprokit.model.question import TensorSelection
    from reprokit.model.resumption import OtherFact
    from reprokit.questions.replays import AnsweredReplay
    from reprokit.questions.tensors import AddedTensors

MAX_NAMED = 5
EAGER = "of an eager replay that the trail finds to be that run"
RESUMED = "not given: eager replays resume no checkpoint; ask without --from"


@click.command(epilog="Example: reprokit ask last weights,gradients --steps 100-200:10")
@click.argument("run", type=options.RECORDING)
@click.argument("tensors", nargs=-1, required=True, shell_complete=options.COMPLETE_TENSORS)
@click.option(
    "--steps",
    default="",
    metavar="STEPS",
    shell_complete=options.COMPLETE_STEPS,
    help="Steps, as in 5, 100-200, 100-200:10 or every=10.",
)
@click.option("--mode", default="", metavar="MODE", help="train, eval, predict or global  [default: train]")
@click.option("--reduce", default="", metavar="NAMES", help="Save reductions such as l2,mean instead of values.")
@options.TENSOR_BUFFER
@options.FROM_START
@options.path_option("--from", "CHECKPOINT", "Resume this checkpoint of RUN (file or directory).", "checkpoint")
@click.option("--resume-with", metavar="COMMAND", help="Command that resumes CHECKPOINT [default: RUN's].")
@options.json_option()
def command(
    run: Path, tensors: tuple[str, ...], steps: str, mode: str, reduce: str, tensor_buffer: int, from_start: bool,
    checkpoint: Path | None, resume_with: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Replay RUN and save TENSORS of it in RUN, where 'record --tensors' would have saved them.

    TENSORS are collections (weights, biases, gradients, losses, metrics, inputs, outputs,
    optimizer_variables, all; of boosters hyperparameters, trees, predictions, labels, feature_importance,
    full_shap, average_shap), regular expressions, or a TOML file. The trail proves that the replay is RUN; from the
    step on where it is not, nothing is saved. What the trail does not see, such as outputs and evaluations, a second
    replay from the first step must give again, or it is saved as not proved. Exit codes: 0 all is proved or was given
    again, 1 not all, 2 failure.
    """
    from reprokit.model.tensor_selection import selection_of_words

    selection = selection_of_words(tensors, steps, mode, reduce, tensor_buffer)
    resume = () if resume_with is None else options.words_of("--resume-with", resume_with)
    if checkpoint is None and resume:
        raise UsageError("--resume-with resumes a checkpoint: name it with --from")
    if checkpoint is not None and from_start:
        raise UsageError("--from-start and --from both say where the replay begins: choose one")
    with interruptible(f"nothing was added to {run}"), stdout_kept(as_json):
        replay, added, others = _asked(rundir.RunDirectory(run), selection, checkpoint, resume, from_start)
    answer = _answer(replay, added, others)

    def print_text(_answer: TensorsAnswer) -> None:
        for line in [*_lines(run, replay, added), *beside_trail_notes("the replay and the run", others)]:
            click.echo(printable(line))

    with ending_with(EXIT_IDENTICAL if answer else EXIT_DIFFERENT):
        present(answer, as_json=as_json, document=msgspec.to_builtins, text=print_text)


def _asked(
    recording: rundir.RunDirectory,
    selection: TensorSelection,
    checkpoint: Path | None,
    resume: tuple[str, ...],
    from_start: bool,
) -> tuple[AnsweredReplay, AddedTensors, list[OtherFact]]:
    """Replay the recording beside it, take what is proved, and look at what the trail does not see."""
    from reprokit.cli.ignores import IgnoreRequest
    from reprokit.model.question import Question
    from reprokit.questions.checkpoints import ask_from_checkpoint, checkpoint_of
    from reprokit.questions.left_keyframes import ask_from, leave
    from reprokit.questions.replays import ask
    from reprokit.questions.scratch import scratch
    from reprokit.questions.tensors import add, has_compiled, has_unseen
    from reprokit.run.interruption import Interruption

    question, ignores = Question(steps=selection.steps, tensors=selection), IgnoreRequest().ignores()
    begin = None if checkpoint is None else checkpoint_of(recording, checkpoint, resume)
    is_anew = from_start or begin is not None
    keyframe = options.chosen_keyframe(recording, selection.steps.first, from_start=is_anew)
    with (
        scratch(".ask-", recording.path.parent, recording) as place,
        Interruption() as interruption,
    ):
        second = None
        if begin is None:
            replay = ask_from(keyframe, recording, question, place / "replay", interruption)
        else:
            replay = ask_from_checkpoint(recording, begin, selection, place, interruption)
        leave(replay, recording)
        eager = None
        if has_compiled(replay) and begin is None:
            say("torch.compile runs the model as one: replaying it eagerly, from the first step")
            eagerly = msgspec.structs.replace(question, eager=True)
            eager = ask(recording, eagerly, place / "eager", interruption, is_silent=True)
            question, replay = (eagerly, eager) if eager.proof.holds else (question, replay)
        if has_unseen(replay, recording):
            # From the first step: a second one from the same keyframe would repeat what that lacks.
            second = ask(recording, question, place / "second", interruption, is_silent=True)
        others = replay.beside_trail(recording, ignores) if replay.proof.holds else []
        added = add(replay, recording, selection, second)
        if eager is not None:
            added.compiled = EAGER if replay is eager else f"not given: eagerly, it {_where_parted(eager)}"
        elif has_compiled(replay):
            added.compiled = RESUMED
        return replay, added, others


def _lines(run: Path, replay: AnsweredReplay, added: AddedTensors) -> list[str]:
    proof, steps = replay.proof, sorted(added.steps)
    lines = [f"tensors: {added.values:,} values added to {run / rundir.TENSORS}, {added.existing:,} were there already"]
    if steps:
        lines.append(f"of {len(added.names):,} tensors in {len(steps):,} steps, {steps[0]:,} to {steps[-1]:,}")
    lines.extend(replay.beginning)
    if added.compiled:
        lines.append(f"layers within torch.compile: {added.compiled}")
    if proof.diverged:
        lines.append(f"the replay {_where_parted(replay)}")
        lines.extend(f"changed since the recording: {change}" for change in replay.changes[:MAX_NAMED])
    if not proof.steps:
        lines.append("the trails of run and replay have no step in common")
    else:
        gaps = {gap.value: names for gap, names in added.gaps.items()}
        counts = _proved_steps(replay, added), added.seen, added.agreed
        lines += tensors_proof(*counts, gaps, is_all=not added.unmatched, first=replay.begin, every=proof.every)
    if added.unproved:
        lines.append(f"{added.unproved:,} values were refused, as nothing proves that they are of that run")
    if added.has_unproved_gradients:
        lines.append("reading gradients in TensorFlow's functions may change last bits; ask for others without them")
    if added.unmatched:
        lines.append(f"nothing was saved for {listed(added.unmatched, MAX_NAMED)}: check names, --steps and --mode")
    for name in added.differing[:MAX_NAMED]:
        lines.append(f"{name}: the run holds another value than its replay, which was left as it is")
    return lines


def _where_parted(replay: AnsweredReplay) -> str:
    first = next(iter(replay.proof.diverged), None)
    if first is None:
        return "has no step in common with that run"
    return f"is not that run from step {first.step:,} on, by its {first.quantity}"


def _answer(replay: AnsweredReplay, added: AddedTensors, others: list[OtherFact]) -> TensorsAnswer:
    diverged = replay.proof.diverged[:1]
    is_open = added.unproved or added.differing or added.gaps or added.unmatched
    is_open = is_open or added.compiled not in ("", EAGER)
    return TensorsAnswer(
        added=added.values,
        known=added.existing,
        refused=added.unproved,
        differing=added.differing,
        seen=added.seen,
        agreed=added.agreed,
        unproved={gap.name.lower(): names for gap, names in added.gaps.items()},
        unmatched=added.unmatched,
        compiled=added.compiled,
        tensors=sorted(added.names),
        steps=sorted(added.steps),
        keyframe=None if replay.keyframe is None else replay.keyframe.step,
        checkpoint=None if replay.checkpoint is None else replay.checkpoint.step,
        put_in=[*replay.put_in],
        proved_steps=_proved_steps(replay, added),
        beside_trail=[FactBesideTrail(fact=other.fact, name=other.name, detail=other.detail) for other in others],
        parted=[PartedSeries(step=first.step, quantity=first.quantity, process=first.process) for first in diverged],
        settled=replay.proof.holds and not is_open,
    )


def _proved_steps(replay: AnsweredReplay, added: AddedTensors) -> int:
    """Return the number of proved steps, as tensors count them; without tensors, as the trail does."""
    return max(0, (added.proved_steps or max(replay.proof.steps.values(), default=0)) - (replay.begin or 0))
