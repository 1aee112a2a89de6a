"""``reprokit run``: run a command and watch its training, without recording anything."""

from __future__ import annotations

from pathlib import Path

import click

from reprokit.cli.arguments import (
    PATCH,
    CommandBehindDashes,
    capturing,
    new_run,
)
from reprokit.cli.ending import end_as
from reprokit.cli.paths import current_directory
from reprokit.cli.record import chosen_patches
from reprokit.plan import RUN, CapturePlan, Plan


@click.command(cls=CommandBehindDashes, context_settings={"allow_interspersed_args": False})
@new_run(default="one of its own under .reprokit, which stays if there is a snapshot")
@capturing
@PATCH
@click.pass_obj
def command(
    behind_dashes: tuple[str, ...],
    output: Path | None,
    overwrite: bool,
    capture: CapturePlan | None,
    patches: tuple[str, ...],
) -> None:
    """Run COMMAND as it is, record nothing, and keep the training's state before a step that fails.

    Its exit status is passed on; a training that was stopped at a captured step ends with 123. reprokit's own
    failures exit with 125, a command that cannot be run with 126, one that is not found with 127.
    """
    if capture is None and not patches:
        raise click.UsageError("say what is to be done beside the training: --on-nan capture, or --patch.")
    from reprokit.launch.platform_support import require_supported

    require_supported()
    from reprokit.launch.run import execute

    plan = Plan(
        mode=RUN,
        command=behind_dashes,
        working_directory=current_directory(),
        output=output,
        overwrite=overwrite,
        patches=chosen_patches(patches, behind_dashes),
        capture=capture,
    )
    end_as(execute(plan).ended)
