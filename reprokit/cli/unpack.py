"""``reprokit unpack``: a run directory from a bundle."""

from __future__ import annotations

from pathlib import Path

import click

from reprokit.cli import options
from reprokit.cli.output import say_next
from reprokit.core.printable import printable


@click.command(epilog="Example: reprokit unpack run.tar.zst -o unpacked")
@click.argument("bundle", type=options.PATH)
@click.option("-o", "--output", metavar="RUN", required=True, type=options.PATH, help="Run directory to create.")
@options.ADVISING
def command(bundle: Path, output: Path) -> None:
    """Make a run directory of BUNDLE, which can come from anybody.

    Only files that a run directory has are written, in bounds, readable by you alone, each as the bundle's list
    says; else nothing is. Nothing in it is executed.
    """
    from reprokit.evidence.bundle.unpack import unpack

    listed = unpack(bundle, output)
    click.echo(f"{printable(str(output))}: run {printable(listed.run_id)}, {len(listed.files)} files")
    say_next("reprokit", "show", str(output))
    for line in listed.left_out:
        click.echo(f"not in it: {printable(line)}")
