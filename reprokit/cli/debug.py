"""``reprokit debug``: stop a replay of a recorded run in a debugger, at any step."""

from __future__ import annotations

import re
from pathlib import Path

import click

from reprokit.cli import options
from reprokit.cli.output import ending_with, interruptible
from reprokit.core.errors import EXIT_DIFFERENT, EXIT_IDENTICAL, EXIT_TROUBLE, UsageError
from reprokit.core.printable import printable


@click.command(epilog="Example: reprokit debug last --step 800")
@click.argument("run", type=options.RECORDING)
@options.number("--step", "Stop when step N begins, after N updates.", least=1, most=10**12, required=True)
@click.option("--at", default="", metavar="FILE:LINE", help="Stop at this line, from that step on.")
@click.option("--when", default="", metavar="EXPRESSION", help="Stop only where this holds, as in 'loss > 10'.")
@options.FROM_START
def command(run: Path, step: int, at: str, when: str, from_start: bool) -> None:
    """Replay RUN, and stop in pdb in the script's frame at a step.

    The replay starts at the last keyframe before the step, where RUN has one. RUN and the files of the
    training stay as they are. Exit codes: 0 it was that run when it stopped, 1 it was not, 2 it did not stop.
    """
    from reprokit.core.messages import say
    from reprokit.model.question import DebugAsked, Question, StepRange
    from reprokit.questions.replays import ask
    from reprokit.questions.scratch import scratch
    from reprokit.run.interruption import Interruption
    from reprokit.run_files.rundir import ANSWERS, RunDirectory
    from reprokit.verify.verdict import debugged_replay

    if at and not re.fullmatch("[^:]+:[1-9][0-9]{0,8}", at):
        raise UsageError(f"--at {at}: name a file and a line, as in train.py:12")
    recording = RunDirectory(run)
    keyframe = options.chosen_keyframe(recording, step, from_start=from_start)
    if keyframe is not None:
        say(f"from the keyframe of step {keyframe.step:,}; what is printed until then is not the recording's")
        say("what no keyframe holds, as objects of libraries, may have other values; --from-start has the run's")
    question = Question(steps=StepRange(first=step), debug=DebugAsked(at=at, when=when))
    place = scratch(".debug-", recording.path.parent, recording)
    with interruptible(), place as directory, Interruption() as interruption:
        path = directory / "replay"
        replay = ask(recording, question, path, interruption, is_silent=False, needs_proof=False, keyframe=keyframe)
        has_stopped = replay.run.has(f"{ANSWERS}/stopped")
    if not has_stopped:
        with ending_with(EXIT_TROUBLE):
            click.echo(f"the replay did not stop: it ended before step {step:,}, or nothing there held")
            return
    diverged = next(iter(replay.proof.diverged), None)
    was_run = bool(replay.proof.steps) and (diverged is None or diverged.step >= step)
    with ending_with(EXIT_IDENTICAL if was_run else EXIT_DIFFERENT):
        point = None if diverged is None else (diverged.step, diverged.quantity)
        compared = max(replay.proof.steps.values(), default=0)
        first = 0 if keyframe is None else keyframe.step
        click.echo(printable(debugged_replay(first, compared, step, point, replay.proof.every)))
