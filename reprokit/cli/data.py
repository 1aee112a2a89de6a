"""``reprokit data``: is a data set what was written?"""

from __future__ import annotations

import click

from reprokit.cli import options
from reprokit.cli.groups import CommandGroup
from reprokit.cli.output import present
from reprokit.errors import EXIT_DIFFERENT, EXIT_IDENTICAL


@click.group(cls=CommandGroup)
def command() -> None:
    """Check data sets."""


@command.command(epilog="Example: reprokit data check s3://bucket/shards")
@click.argument("path")
@options.json_option("Print the result as one JSON document.")
@click.pass_context
def check(context: click.Context, path: str, as_json: bool) -> None:
    """Check every record of a data set.

    PATH is a file, a directory or a URL such as s3://bucket/prefix. Compares each TFRecord with its CRC-32C, and
    reads the headers and the end of each tar archive (WebDataset). Names file, record and byte of each bad one.
    Exits with 0 if none is bad, 1 if any is, 2 if that cannot be told.
    """
    from reprokit.artifacts import record_check

    result = record_check.check(path)
    present(result, as_json=as_json, document=record_check.document, text=record_check.print_check)
    context.exit(EXIT_DIFFERENT if result.bad else EXIT_IDENTICAL)
