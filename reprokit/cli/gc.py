"""``reprokit gc``: removes old runs."""

from __future__ import annotations

from datetime import timedelta

import click

from reprokit.cli import options


@click.command(epilog="Example: reprokit gc --keep 10 --older 30d --dry-run")
@options.number("--keep", "Keep the newest N runs.", least=0)
@click.option("--older", metavar="AGE", type=options.Age(), help="Remove only runs that are older: 12h, 7d, 2w.")
@options.flag("--dry-run", "Only say what would be removed.")
def command(keep: int | None, older: timedelta | None, dry_run: bool) -> None:
    """Remove old runs from the nearest .reprokit: those that neither --keep nor --older keeps.

    The recording of a replay that is kept is kept too. So are runs in progress, what cannot be read, and
    everything that is no run directory.
    """
    if keep is None and older is None:
        raise click.UsageError("say which runs to keep: --keep N, --older AGE, or both.")
    from reprokit.run import removal

    for line in removal.collect(keep or 0, older or timedelta(), dry_run=dry_run):
        click.echo(line)
