"""``reprokit check``: is a run directory what it was when its run ended?"""

from __future__ import annotations

from pathlib import Path

import click

from reprokit.cli import options
from reprokit.cli.output import ending_with, present
from reprokit.core.errors import EXIT_DIFFERENT, EXIT_IDENTICAL


@click.command(epilog="Example: reprokit check last")
@click.argument("run", type=options.RUN)
@options.json_option("Print the result as one JSON document.")
def command(run: Path, as_json: bool) -> None:
    """Check every file of the run directory RUN.

    RUN is a path or a name, such as 'last'. Compares each file with its digest or check, and looks for unknown files,
    links, and files that others may read. Names what is damaged, and files that no digest is over. Exits with 0
    if the run is whole, 1 if anything is damaged, 2 if it cannot be checked.
    """
    from reprokit.verify.read.run_check import check, document, print_check

    result = check(run)
    with ending_with(EXIT_DIFFERENT if result.damages else EXIT_IDENTICAL):
        present(result, as_json=as_json, document=document, text=print_check)
