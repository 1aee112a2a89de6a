"""``reprokit ask``: save tensors of a run that was recorded, as if they had been saved while it trained."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reprokit.cli import options
from reprokit.cli.output import print_json, stdout_kept
from reprokit.cli.streams import ending_with
from reprokit.core.errors import EXIT_DIFFERENT, EXIT_IDENTICAL
from reprokit.core.printable import listed, printable
from reprokit.run_files import rundir
from reprokit.verify.verdict import tensors_proof

if TYPE_CHECKING:
    from reprokit.model.question import TensorSelection
    from reprokit.questions.replays import AnsweredReplay
    from reprokit.questions.tensors import AddedTensors

MAX_NAMED = 5


@click.command(epilog="Example: reprokit ask last weights,gradients --steps 100-200:10")
@click.argument("run", type=options.RECORDING)
@click.argument("tensors", nargs=-1, required=True)
@click.option("--steps", default="", metavar="STEPS", help="Steps, as in 5, 100-200, 100-200:10 or every=10.")
@click.option("--mode", default="", metavar="MODE", help="train, eval, predict or global  [default: train]")
@click.option("--reduce", default="", metavar="NAMES", help="Save reductions such as l2,mean instead of values.")
@options.TENSOR_BUFFER
@options.json_option()
def command(
    run: Path, tensors: tuple[str, ...], steps: str, mode: str, reduce: str, tensor_buffer: int, as_json: bool
) -> None:
    """Replay RUN and save TENSORS of it in RUN, where 'record --tensors' would have saved them.

    TENSORS are collections (weights, biases, gradients, losses, metrics, inputs, outputs,
    optimizer_variables, all; of boosters hyperparameters, trees, predictions, labels, feature_importance,
    full_shap, average_shap), regular expressions, or a TOML file. The trail proves that the replay is RUN; from the
    step on where it is not, nothing is saved. What the trail does not see, such as outputs and evaluations, a second
    replay must give again, or it is saved as not proved. Exit codes: 0 all is proved or was given again, 1 not all,
    2 failure.
    """
    from reprokit.core.messages import say
    from reprokit.model.tensor_selection import selection_of_words
    from reprokit.run.interruption import Interrupted

    selection = selection_of_words(tensors, steps, mode, reduce, tensor_buffer)
    try:
        with stdout_kept(as_json):
            replay, added = _asked(rundir.RunDirectory(run), selection)
    except Interrupted as interrupted:
        say(f"interrupted; nothing was added to {run}")
        sys.exit(128 + interrupted.number)
    is_open = added.unproved or added.differing or added.gaps or added.unmatched
    with ending_with(EXIT_IDENTICAL if replay.proof.holds and not is_open else EXIT_DIFFERENT):
        if as_json:
            print_json(_document(replay, added))
        else:
            for line in _lines(run, replay, added):
                click.echo(printable(line))


def _asked(recording: rundir.RunDirectory, selection: TensorSelection) -> tuple[AnsweredReplay, AddedTensors]:
    """Replay the recording beside it, and take what is proved."""
    from reprokit.model.question import Question
    from reprokit.questions.replays import ask
    from reprokit.questions.tensors import add, has_unseen
    from reprokit.run.interruption import Interruption

    question = Question(steps=selection.steps, tensors=selection)
    with (
        tempfile.TemporaryDirectory(prefix=".ask-", dir=recording.path.parent, ignore_cleanup_errors=True) as place,
        Interruption() as interruption,
    ):
        replay, second = ask(recording, question, Path(place) / "replay", interruption), None
        if has_unseen(replay, recording):
            second = ask(recording, question, Path(place) / "second", interruption, is_silent=True)
        return replay, add(replay, recording, selection, second)


def _lines(run: Path, replay: AnsweredReplay, added: AddedTensors) -> list[str]:
    proof, steps = replay.proof, sorted(added.steps)
    lines = [f"tensors: {added.values:,} values added to {run / rundir.TENSORS}, {added.existing:,} were there already"]
    if steps:
        lines.append(f"of {len(added.names):,} tensors in {len(steps):,} steps, {steps[0]:,} to {steps[-1]:,}")
    if proof.diverged:
        first = proof.diverged[0]
        lines.append(f"the replay is not that run from step {first.step:,} on, by its {first.quantity}")
        lines.extend(f"changed since the recording: {change}" for change in replay.changes[:MAX_NAMED])
    if not proof.steps:
        lines.append("the trails of run and replay have no step in common")
    else:
        gaps = {gap.value: names for gap, names in added.gaps.items()}
        counts = _proved_steps(replay, added), added.seen, added.agreed
        lines += tensors_proof(*counts, gaps, is_all=not added.unmatched)
    if added.unproved:
        lines.append(f"{added.unproved:,} values were refused, as nothing proves that they are of that run")
    if added.has_unproved_gradients:
        lines.append("reading gradients in TensorFlow's functions may change last bits; ask for others without them")
    if added.unmatched:
        lines.append(f"nothing was saved for {listed(added.unmatched, MAX_NAMED)}: check names, --steps and --mode")
    for name in added.differing[:MAX_NAMED]:
        lines.append(f"{name}: the run holds another value than its replay, which was left as it is")
    return lines


def _document(replay: AnsweredReplay, added: AddedTensors) -> dict[str, object]:
    diverged = replay.proof.diverged[:1]
    return {
        "added": added.values,
        "known": added.existing,
        "refused": added.unproved,
        "differing": added.differing,
        "seen": added.seen,
        "agreed": added.agreed,
        "unproved": {gap.name.lower(): names for gap, names in added.gaps.items()},
        "unmatched": added.unmatched,
        "tensors": sorted(added.names),
        "steps": sorted(added.steps),
        "proved_steps": _proved_steps(replay, added),
        "parted": [{"step": first.step, "quantity": first.quantity, "process": first.process} for first in diverged],
    }


def _proved_steps(replay: AnsweredReplay, added: AddedTensors) -> int:
    """Return the number of proved steps, as tensors count them; without tensors, as the trail does."""
    return added.proved_steps or max(replay.proof.steps.values(), default=0)
