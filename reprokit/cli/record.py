"""``reprokit record``: run a command and keep the entropy it was given."""

from __future__ import annotations

from pathlib import Path

import click

from reprokit.cli.arguments import OWN_DIRECTORY, CommandBehindDashes
from reprokit.cli.ending import end_as
from reprokit.cli.paths import current_directory
from reprokit.plan import RECORD, Plan


@click.command(cls=CommandBehindDashes, context_settings={"allow_interspersed_args": False})
@click.option(
    "-o",
    "--output",
    metavar="RUN",
    type=OWN_DIRECTORY,
    help="Directory to make [default: one of its own under .reprokit].",
)
@click.option("--overwrite", is_flag=True, help="Replace the run that RUN holds, if it holds one.")
@click.option(
    "--include-crypto",
    is_flag=True,
    help="Record the bytes given to cryptographic libraries too: they can be secret keys.",
)
@click.pass_obj
def command(behind_dashes: tuple[str, ...], output: Path | None, overwrite: bool, include_crypto: bool) -> None:
    """Run COMMAND as it is, and record the entropy it is given and what its training comes to.

    Its exit status is passed on. reprokit's own failures exit with 125, a command that cannot be run
    with 126, one that is not found with 127.
    """
    from reprokit.launch.supported import require_supported

    require_supported()
    from reprokit.launch.run import run

    plan = Plan(
        mode=RECORD,
        command=behind_dashes,
        working_directory=current_directory(),
        output=output,
        overwrite=overwrite,
        record_crypto=include_crypto,
    )
    end_as(run(plan))
