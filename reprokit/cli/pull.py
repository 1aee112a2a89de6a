"""``reprokit pull``: a run directory from an object store."""

from __future__ import annotations

from pathlib import Path

import click

from reprokit.cli import options
from reprokit.cli.output import say_next
from reprokit.core.printable import printable


@click.command(epilog="Example: reprokit pull s3://bucket/runs/first")
@click.argument("url")
@click.argument("directory", required=False, type=options.PATH)
@options.ADVISING
def command(url: str, directory: Path | None) -> None:
    """Make a run directory of what 'reprokit push' wrote below URL.

    DIRECTORY is the URL's last word unless it is given. Each file is compared with its digest; the directory
    gets its name when all are there. After an interruption the same command fetches what is missing.
    """
    from reprokit.evidence.bundle.object_store import pull

    directory = directory or Path(url.rstrip("/").rpartition("/")[2])
    listed, there = pull(url, directory)
    click.echo(
        f"{printable(str(directory))}: run {printable(listed.run_id)}, {len(listed.files)} files,"
        f" {there} of them were there"
    )
    say_next("reprokit", "show", str(directory))
    for line in listed.left_out:
        click.echo(f"not in it: {printable(line)}")
