"""``reprokit reproduce``: run a training again and again until two runs of it are the same, bit for bit."""

from __future__ import annotations

from pathlib import Path

import click
from msgspec.structs import replace

from reprokit.cli import ignores, options
from reprokit.cli.ignores import IgnoreRequest
from reprokit.cli.options import flag
from reprokit.cli.output import ending_with, interruptible, say_next, stdout_kept
from reprokit.core.errors import EXIT_DIFFERENT, EXIT_IDENTICAL, NoCommand
from reprokit.run_files.recipe import RecipeSettings


@options.launching(epilog="Example: reprokit reproduce -- python train.py")
@options.output("DIR", "Directory to create for journal, recipe and runs [default: one of its own under .reprokit].")
@options.number(
    "--max-rounds",
    "Give up after N rounds, not counting those that look for a smaller set of patches.",
    least=2,
    most=1000,
    default=12,
    show_default=True,
)
@options.number(
    "--pairs",
    "Call runs identical only after N identical comparisons in a row [default: 2, or 1 where runs parted early].",
    most=1000,
)
@options.PATCH
@options.NO_CALENDAR
@flag("--clock", "Replace process ids from the first replay on, as record's --clock; by default this is tried late.")
@flag("--hide-rdrand", "Hide RDRAND and RDSEED from the first run on.")
@flag("--include-crypto", "Also record bytes that can be secret keys; never tried by default.")
@options.number("--steps", "Stop profile runs after N optimizer steps.")
@click.option(
    "--seconds", type=options.Seconds(), metavar="S", help="Stop profile runs S seconds after the first step."
)
@flag("--no-smallest", "Once runs are identical, do not try which settings can be left out.", "smallest", negated=True)
@flag("--keep-runs", "Keep the runs of every round, not only the final pair.")
@options.KEEP
@ignores.options
@options.ADVISING
@options.json_option("Print the journal as JSON; the training prints to stderr.")
@options.gathered("settings", RecipeSettings)
@click.pass_context
def command(
    context: click.Context,
    settings: RecipeSettings,
    output: Path | None,
    max_rounds: int,
    pairs: int | None,
    steps: int | None,
    seconds: float | None,
    smallest: bool,
    keep_runs: bool,
    keep_outputs: int,
    calendar: bool,
    declared: IgnoreRequest,
    as_json: bool,
) -> None:
    """Run COMMAND twice; if the runs differ, find out why and apply cures until they are identical.

    It records and replays, profiles, applies patches, and compares, in rounds. DIR then holds journal.md, the
    last two runs, and recipe.toml for 'reprokit record --recipe'. Exits with 0 if the runs are identical, with
    1 if no known cure is left, with 125 if reprokit or the training failed.
    """
    if not context.obj:
        raise NoCommand("nothing to run; put the command behind --: reprokit reproduce -- python train.py")
    from reprokit.reproduce import journal as journals
    from reprokit.reproduce import narrative
    from reprokit.reproduce.laboratory import ReproductionWork
    from reprokit.reproduce.reproduction import RECIPE, ReproductionOptions, place_for, reproduce
    from reprokit.run.rundirectory import shown

    settings = replace(settings, patches=options.chosen_patches(settings.patches, context.obj))
    wishes = ReproductionOptions(
        settings=settings, pairs=pairs, max_rounds=max_rounds, keep_runs=keep_runs, smallest=smallest
    )
    work = ReproductionWork(
        command=context.obj,
        working_directory=options.current_directory(),
        place=place_for(output),
        keep_outputs=keep_outputs,
        calendar=calendar,
        steps=steps,
        seconds=seconds,
        ignores=declared.ignores(),
    )
    with interruptible(f"what was found so far is in {work.place / 'journal.md'}"), stdout_kept(as_json):
        journal = reproduce(work, wishes)
    is_identical = journal.verdict == "identical"
    with ending_with(EXIT_IDENTICAL if is_identical else EXIT_DIFFERENT):
        if as_json:
            click.echo(journals.document(journal), nl=False)
        else:
            narrative.print_journal(journal, work.place)
        if is_identical:
            say_next("reprokit", "record", "--recipe", shown(work.place / RECIPE), "--", *context.obj)
