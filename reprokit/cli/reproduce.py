"""``reprokit reproduce``: run a training again and again until two runs of it are the same, bit for bit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reprokit.cli.arguments import KEEP, OWN_DIRECTORY, PATCH, CommandBehindDashes
from reprokit.cli.paths import current_directory
from reprokit.cli.secrets import stdout_for_a_document
from reprokit.errors import EXIT_DIFFERENT, EXIT_IDENTICAL, NoCommand

if TYPE_CHECKING:
    from reprokit.reproduce.laboratory import ReproductionWork
    from reprokit.reproduce.reproduction import Wishes


@click.command(cls=CommandBehindDashes, context_settings={"allow_interspersed_args": False})
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    type=OWN_DIRECTORY,
    help="Directory to make, for journal, recipe and runs [default: one of its own under .reprokit].",
)
@click.option(
    "--max-rounds",
    metavar="N",
    type=click.IntRange(2, 1000),
    default=12,
    show_default=True,
    help="Give up after so many rounds, those aside that look for a smaller set of patches.",
)
@click.option(
    "--pairs",
    metavar="N",
    type=click.IntRange(1, 1000),
    default=2,
    show_default=True,
    help="How many comparisons in a row must be identical before runs are called so.",
)
@PATCH
@click.option("--clock", is_flag=True, help="Record the time of day from the first run on; else it is tried late.")
@click.option("--hide-rdrand", is_flag=True, help="Hide RDRAND and RDSEED from the first run on.")
@click.option("--include-crypto", is_flag=True, help="Record what can be secret keys too; never tried unasked.")
@click.option("--steps", type=click.IntRange(1), metavar="N", help="End profile runs after N optimizer steps.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), metavar="S", help="End profile runs after S s.")
@click.option("--no-smallest", is_flag=True, help="Do not try, once runs are identical, what can be left out again.")
@click.option("--keep-runs", is_flag=True, help="Keep the runs of every round, not only the final pair.")
@KEEP
@click.option("--json", "as_json", is_flag=True, help="Print the journal as JSON; the training prints to stderr.")
@click.pass_context
def command(
    context: click.Context,
    output: Path | None,
    max_rounds: int,
    pairs: int,
    patches: tuple[str, ...],
    clock: bool,
    hide_rdrand: bool,
    include_crypto: bool,
    steps: int | None,
    seconds: float | None,
    no_smallest: bool,
    keep_runs: bool,
    keep_outputs: int,
    as_json: bool,
) -> None:
    """Run COMMAND twice; if the runs differ, find out why and what cures it, until they are the same.

    It records and replays, profiles, applies patches, and compares, in rounds. DIR then holds journal.md, the
    last two runs, and recipe.toml for 'reprokit record --recipe'. Exits with 0 if the runs are identical, with
    1 if no known cure is left, with 125 if reprokit or the training failed.
    """
    from reprokit.launch.platform_support import require_supported

    require_supported()
    if not context.obj:
        raise NoCommand("nothing to run; put the command behind --: reprokit reproduce -- python train.py")
    from reprokit.launch.run_patches import wanted
    from reprokit.recipe import RecipeSettings
    from reprokit.reproduce.laboratory import ReproductionWork
    from reprokit.reproduce.reproduction import Wishes, place_for

    directory = current_directory()
    settings = RecipeSettings(
        clock=clock,
        hide_rdrand=hide_rdrand,
        include_crypto=include_crypto,
        patches=wanted(patches, context.obj, directory),
    )
    wishes = Wishes(
        settings=settings, pairs=pairs, max_rounds=max_rounds, keep_runs=keep_runs, smallest=not no_smallest
    )
    work = ReproductionWork(
        command=context.obj,
        working_directory=directory,
        place=place_for(output),
        keep_outputs=keep_outputs,
        steps=steps,
        seconds=seconds,
    )
    context.exit(_reproduce(work, wishes, stdout_for_a_document() if as_json else None))


def _reproduce(work: ReproductionWork, wishes: Wishes, document: int | None) -> int:
    """Search, and print what came of it: the journal as JSON where a descriptor for it is given; the exit status."""
    from reprokit.launch.interruption import Interrupted
    from reprokit.launch.messages import say
    from reprokit.reproduce import report
    from reprokit.reproduce.reproduction import reproduce

    try:
        journal = reproduce(work, wishes)
    except Interrupted as interrupted:
        say(f"interrupted; what was found so far is in {work.place / 'journal.md'}")
        return 128 + interrupted.number
    if document is not None:
        os.dup2(document, 1)
        click.echo(report.document(journal))
    else:
        report.print_journal(journal, work.place)
    return EXIT_IDENTICAL if journal.verdict == "identical" else EXIT_DIFFERENT
