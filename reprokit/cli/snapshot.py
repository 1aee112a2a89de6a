"""``reprokit snapshot``: look at a captured step, take one of a past run, do it again, find what went wrong in it."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reprokit.cli import options
from reprokit.cli.groups import CommandGroup
from reprokit.cli.output import ending_with, interruptible, present, print_json, stdout_kept
from reprokit.core.errors import EXIT_DIFFERENT, EXIT_IDENTICAL, BadSnapshot, NotRedone
from reprokit.core.printable import printable
from reprokit.core.untrusted_json import object_in

if TYPE_CHECKING:
    from reprokit.capture.files import SnapshotFile
    from reprokit.questions.take import TakenSnapshot
    from reprokit.run_files.rundir import RunDirectory

SNAPSHOT = click.argument("snapshot", type=options.PATH)


@click.group(cls=CommandGroup)
def command() -> None:
    """Show a captured step, re-execute it, minimize its batch, or explain what went wrong in it.

    SNAPSHOT is a directory that 'reprokit record --on-nan capture' or 'reprokit run --on-nan capture' left
    in RUN/snapshots, or that 'reprokit snapshot take' saved. Behind -- stands the training's own command, which
    is started and stopped after its first step.

    Exit status: 0 if the step gave the same result again, 1 if it did not, 2 if that cannot be told.
    """


@command.command(epilog="Example: reprokit snapshot show run/snapshots/step-7")
@SNAPSHOT
@options.json_option()
def show(snapshot: Path, as_json: bool) -> None:
    """Show what SNAPSHOT holds, and check its digests."""
    from reprokit.capture import report

    present(_opened(snapshot), as_json=as_json, document=report.document, text=report.print_snapshot)


def _opened(snapshot: Path) -> SnapshotFile:
    from reprokit.capture.files import SnapshotError, SnapshotFile

    try:
        return SnapshotFile(str(snapshot))
    except SnapshotError as error:
        raise BadSnapshot(str(error)) from None


@command.command(epilog="Example: reprokit snapshot take last --step 800 -o step-800")
@click.argument("run", type=options.RECORDING)
@options.number("--step", "Take the state before step N, which N updates precede.", least=0, most=10**12, required=True)
@click.option(
    "-o",
    "--output",
    "target",
    type=click.Path(path_type=Path),
    metavar="DIR",
    required=True,
    help="Save the snapshot as DIR.",
)
@options.FROM_START
def take(run: Path, step: int, target: Path, from_start: bool) -> None:
    """Take the snapshot of any step of a past RUN, by a replay.

    The replay starts at the last keyframe before the step, where RUN has one. The trail proves that it is that
    run, or there is no snapshot. RUN and the files of the training stay as they are. Not of JAX.
    """
    from reprokit.core.messages import say
    from reprokit.questions.take import steps_to_replay
    from reprokit.questions.take import take as take_snapshot
    from reprokit.run.interruption import Interruption
    from reprokit.run_files.rundir import RunDirectory

    recording = RunDirectory(run)
    steps = steps_to_replay(recording, step)
    keyframe = options.chosen_keyframe(recording, max(0, step - 1), from_start=from_start)
    if keyframe is not None:
        say(f"from the keyframe of step {keyframe.step:,}")
    with interruptible("no snapshot was taken"), Interruption() as interruption:
        taken = take_snapshot(recording, steps, Path(os.path.abspath(target)), interruption, keyframe)
    with ending_with(EXIT_IDENTICAL):
        for line in _taken_lines(recording, step, taken, 0 if keyframe is None else keyframe.step):
            click.echo(printable(line))


def _taken_lines(recording: RunDirectory, step: int, taken: TakenSnapshot, first: int) -> Iterator[str]:
    from reprokit.capture.files import ASKED, in_words
    from reprokit.verify.verdict import taken_snapshot

    trigger = taken.file.facts.trigger
    for path in taken.paths:
        yield f"snapshot {path}: step {taken.file.facts.step:,}: {in_words(trigger)}"
    yield taken_snapshot(step, taken.compared, first, taken.every)
    if trigger.was_before and step:
        words = ["reprokit", "snapshot", "take", str(recording.path), "--step", str(step - 1), "-o", "DIR"]
        yield f"an earlier step began it: {shlex.join(words)}"
        return
    verb = "reproduce" if trigger.condition == ASKED else "explain"
    patches = [word for patch in recording.run.patches for word in ("--patch", patch.text)]
    words = ["reprokit", "snapshot", verb, str(taken.paths[0]), *patches, "--", *recording.run.command]
    yield f"to execute this step again: {shlex.join(words)}"


def redoing(function: Callable[[], None]) -> Any:
    """Make of a description the command of that name, which has a script do a captured step again."""

    @SNAPSHOT
    @options.json_option("Print one JSON document; what COMMAND prints goes to stderr.")
    @click.option(
        "--timeout",
        metavar="S",
        type=options.Seconds(),
        help="Give up if the first training step has not started after S seconds.",
    )
    @click.option("--seconds", "timeout", type=options.Seconds(), hidden=True)  # its first name
    @options.PATCH
    @click.pass_obj
    @functools.wraps(function)
    def again(behind_dashes: tuple[str, ...], /, **asked: Any) -> None:
        _redo(function.__name__, behind_dashes, **asked)

    return again


def redone(short: str, *more: Any) -> Callable[[Callable[[], None]], Any]:
    """Declare the command of a function's name, which has a script do a captured step again."""

    def declared(function: Callable[[], None]) -> Any:
        example = f"Example: reprokit snapshot {function.__name__} run/snapshots/step-7 -- python train.py"
        options_of = command.command(cls=options.LaunchingCommand, short_help=short, epilog=example)
        return options_of(functools.reduce(lambda made, option: option(made), more, redoing(function)))

    return declared


@redone("Re-execute the captured step, and compare it bit by bit.")
def reproduce() -> None:
    """Re-execute the captured step in the user's own script, and compare it bit by bit.

    State, batch and random states are restored at the script's first step, and its results are compared with
    the captured ones.
    """


@redone("Find a minimal part of the batch that still fails.")
def minimize() -> None:
    """Find a minimal part of the captured batch that still fails, from the captured weights each time."""


@redone(
    "Name the first operation that went wrong.",
    click.option("--snapshot-only", is_flag=True, help="Explain from SNAPSHOT alone: replay no recording."),
)
def explain() -> None:
    """Name the first operation that turned finite inputs into a result that is not, with inputs and source line.

    Where the run was recorded, it is replayed up to the captured step, with its operators watched; COMMAND can
    then be left out. Else the step is executed as by 'reprokit snapshot reproduce'.
    """


def _redo(
    mode: str,
    behind_dashes: tuple[str, ...],
    snapshot: Path,
    as_json: bool,
    timeout: float | None,
    patches: tuple[str, ...],
    snapshot_only: bool = False,
) -> None:
    from reprokit.capture import report
    from reprokit.capture.files import ASKED
    from reprokit.core.messages import say
    from reprokit.questions import explanation
    from reprokit.run import redo
    from reprokit.run.interruption import Interruption

    place = Path(os.path.realpath(snapshot))
    if _opened(place).facts.trigger.condition == ASKED and mode != "reproduce":
        raise NotRedone(f"nothing was found wrong in this step when its snapshot was taken: there is nothing to {mode}")
    in_place = mode == "explain" and not (snapshot_only or patches)
    recording = explanation.recording_with(place) if in_place else None
    is_recorded = recording is not None and not behind_dashes
    asked = redo.RedoRequest(
        mode=mode,
        snapshot=place,
        command=tuple(recording.run.command) if recording is not None and is_recorded else behind_dashes,
        working_directory=Path(recording.run.working_directory)
        if recording is not None and is_recorded
        else options.current_directory(),
        patches=options.chosen_patches(patches, behind_dashes) if patches else redo.patches_of(place),
        seconds=timeout,
    )
    with stdout_kept(as_json):
        if recording is None:
            result = redo.redo(asked, say)
        else:
            with interruptible("nothing was explained"), Interruption() as interruption:
                result = explanation.explain(asked, recording, interruption, say)
    with ending_with(EXIT_IDENTICAL if _is_same(result) else EXIT_DIFFERENT):
        if as_json:
            print_json({**result, "mode": mode, "snapshot": str(place)})
        else:
            report.print_result(result, mode)


def _is_same(result: dict[str, Any]) -> bool:
    """Return whether the step came again, with the captured gradients and loss bit for bit."""
    gradients, loss = object_in(result, "gradients"), object_in(result, "loss")
    return bool(result.get("reproduced")) and not gradients.get("different") and loss.get("equal") is not False
