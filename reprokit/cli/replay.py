"""``reprokit replay``: run a recorded command again and give it the entropy it had."""

from __future__ import annotations

from pathlib import Path

import click

from reprokit.cli.arguments import (
    KEEP,
    NO_SUPERVISOR,
    NO_TRAIL,
    CommandBehindDashes,
    capturing,
    new_run,
)
from reprokit.cli.ending import end_as
from reprokit.cli.paths import LAST, run_path
from reprokit.model.states import ON, WITHOUT_TRAIL
from reprokit.plan import POLICIES, CapturePlan
from reprokit.rundir import RunDirectory


@click.command(cls=CommandBehindDashes)
@click.argument("run")
@new_run("RUN2")
@click.option(
    "--policy",
    type=click.Choice(POLICIES),
    default="derive",
    show_default=True,
    help="What a request gets that the recording does not hold: strict stops the run, derive gives bytes"
    " that are the same in every replay, live gives fresh ones.",
)
@click.option("--force", is_flag=True, help="Replay also where the recorded seeds were damaged, without them.")
@NO_SUPERVISOR
@capturing
@NO_TRAIL
@KEEP
@click.pass_obj
def command(
    behind_dashes: tuple[str, ...],
    run: str,
    output: Path | None,
    overwrite: bool,
    policy: str,
    force: bool,
    no_supervisor: bool,
    capture: CapturePlan | None,
    no_trail: bool,
    keep_outputs: int,
) -> None:
    """Run the command recorded in RUN again, in its directory, and give it the entropy it was given.

    RUN is a run directory, or 'last': the newest recording of the current directory. Another command
    behind -- replaces the recorded one. Says first what is different now. Exit statuses are those of
    record.
    """
    from reprokit.launch.platform_support import require_supported

    require_supported()
    from reprokit.launch.replay_plan import replay_plan
    from reprokit.launch.run import execute

    plan = replay_plan(
        _recording(run),
        behind_dashes,
        output,
        overwrite,
        policy,
        force=force,
        supervisor=not no_supervisor,
        trail=WITHOUT_TRAIL if no_trail else ON,
        keep_outputs=keep_outputs,
        capture=capture,
    )
    end_as(execute(plan).ended)


def _recording(text: str) -> RunDirectory:
    """The run to replay; where the last one is a replay itself, what it replayed."""
    recording = RunDirectory(run_path(text))
    if text == LAST and recording.run.replay_of is not None:
        return RunDirectory(Path(recording.run.replay_of.path))
    return recording
