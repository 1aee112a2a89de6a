"""``reprokit replay``: run a recorded command again and give it the entropy it had."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import click

from reprokit.cli import options
from reprokit.cli.output import launch
from reprokit.core.errors import ReprokitError
from reprokit.model.plan import POLICIES, ReplayStart
from reprokit.run_files.home import LAST
from reprokit.run_files.rundir import RunDirectory


@click.command(cls=options.RelaunchingCommand, epilog="Example: reprokit replay last")
@click.argument("run", type=options.RECORDING, default=LAST)
@options.new_run("RUN2")
@click.option(
    "--policy",
    type=click.Choice(POLICIES),
    default="derive",
    show_default=True,
    help="What a request gets that the recording does not hold: strict stops the run, derive gives bytes"
    " that are the same in every replay, live gives fresh ones.",
)
@options.flag("--force", "Replay even if the recorded seeds are damaged, without them.")
@options.flag("--pin-versions", "Read the recorded versions of objects, where their store keeps versions.")
@options.NO_SUPERVISOR
@options.capturing
@options.saving_tensors
@options.NO_TRAIL
@options.trail_every(None)
@options.KEEP
@options.flag("--here", "Start among the files that are there now, instead of those that the recording found.")
@click.pass_obj
def command(behind_dashes: tuple[str, ...], /, run: Path, here: bool, **settings: Any) -> None:
    """Run the command recorded in RUN again, in its directory, and give it the entropy it was given.

    RUN is a path or a name [default: last, the newest recording]. Another command behind -- replaces the
    recorded one. First reports what has changed since the recording. Starts from the files that the recording
    found: those that it wrote are set aside, and replaced by the replay's. Exit statuses are those of record.
    """
    from reprokit.run.replay_plan import replay_plan

    start = ReplayStart.HERE if here else ReplayStart.FOUND
    plan = replay_plan(RunDirectory(run), command=behind_dashes, start=start, **settings)
    launch(plan, "reprokit", "verify", ended_well=partial(_tell_of_changes, RunDirectory(run)))


def _tell_of_changes(recording: RunDirectory, path: Path) -> None:
    """Say whether a replay of another command, or of files that had changed, is still the recorded training."""
    from reprokit.core.messages import say
    from reprokit.verify.facts import trail_and_console
    from reprokit.verify.verdict import still_that_training

    replay = RunDirectory(path)
    if not replay.run.changed and replay.run.command == recording.run.command:
        return
    with suppress(ReprokitError):  # a run that cannot be read is told by verify
        words = still_that_training(*trail_and_console(recording, replay))
        if words:
            say(words)
