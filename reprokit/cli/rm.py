"""``reprokit rm``: removes runs."""

from __future__ import annotations

from pathlib import Path

import click

from reprokit.cli import options


@click.command(epilog="Example: reprokit rm last~1 baseline")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=options.RUN)
def command(runs: tuple[Path, ...]) -> None:
    """Remove run directories, by path or name.

    Nothing is removed unless each of them is a run directory and none is in progress. A replay that is kept
    without its recording is named: it cannot be verified any more. Snapshots outside of RUN stay.
    """
    from reprokit.run import removal

    for line in removal.remove_runs(list(dict.fromkeys(runs))):
        click.echo(line)
