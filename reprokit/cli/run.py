"""``reprokit run``: run a command and watch its training, without recording anything."""

from __future__ import annotations

import click
from msgspec.structs import replace

from reprokit.cli import options
from reprokit.cli.output import launch
from reprokit.model.plan import RUN, Plan


@options.launching(epilog="Example: reprokit run --on-nan capture -- python train.py")
@options.new_run(default="one of its own under .reprokit, which stays if there is a snapshot")
@options.capturing
@options.saving_tensors
@options.PATCH
@options.planned(RUN)
@click.pass_context
def command(context: click.Context, plan: Plan) -> None:
    """Run COMMAND unchanged, record nothing, and save the training's state before a step that fails.

    Its exit status is passed on; a training that was stopped at a captured step ends with 123. reprokit's own
    failures exit with 125, a command that cannot be run with 126, one that is not found with 127.
    """
    if plan.capture is not None and not plan.captures:
        raise click.UsageError("--on-nan note reads what is recorded: use reprokit record.")
    if plan.capture is None and plan.question is None and not context.params["patches"]:
        advice = "add --on-nan capture, --tensors, --rules or --patch, or use reprokit record."
        raise click.UsageError(f"nothing to watch or to patch: {advice}")
    launch(plan if plan.question is None else replace(plan, observed=True))
