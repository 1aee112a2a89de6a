"""``reprokit check``: is a run directory what it was when its run ended?"""

from __future__ import annotations

import json

import click

from reprokit.cli.paths import run_path
from reprokit.errors import EXIT_DIFFERENT, EXIT_IDENTICAL


@click.command()
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")
@click.pass_context
def command(context: click.Context, run: str, as_json: bool) -> None:
    """Check every file of the run directory RUN.

    RUN is a run directory, or 'last'. Compares each file with its digest or check, and looks for unknown files,
    links, and files that others may read. Names what is damaged, and files that no digest is over. Exits with 0
    if the run is whole, 1 if anything is damaged, 2 if it cannot be checked.
    """
    from reprokit.verify.read.run_check import check, document, print_check

    result = check(run_path(run))
    if as_json:
        click.echo(json.dumps(document(result), indent=2))
    else:
        print_check(result)
    context.exit(EXIT_DIFFERENT if result.damages else EXIT_IDENTICAL)
