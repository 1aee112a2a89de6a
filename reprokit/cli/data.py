"""``reprokit data``: is a data set what was written, and how fast is it read?"""

from __future__ import annotations

from pathlib import Path

import click

from reprokit.cli import options
from reprokit.cli.groups import CommandGroup
from reprokit.cli.output import ending_with, present, write_whole
from reprokit.core.errors import EXIT_DIFFERENT, EXIT_IDENTICAL


@click.group(cls=CommandGroup)
def command() -> None:
    """Check data sets, and measure how fast they are read."""


@command.command(epilog="Example: reprokit data check s3://bucket/shards")
@click.argument("path")
@options.json_option("Print the result as one JSON document.")
def check(path: str, as_json: bool) -> None:
    """Check every record of a data set.

    PATH is a file, a directory or a URL such as s3://bucket/prefix. Compares each TFRecord with its CRC-32C, reads each
    page of a Parquet file (by pyarrow, with its CRC-32 if it has one), and reads the headers and the end of each tar
    archive (WebDataset), also where these are compressed. Names file, record and byte of each bad one.
    Exits with 0 if none is bad, 1 if any is, 2 if that cannot be told.
    """
    from reprokit.diff import record_check

    result = record_check.check(path)
    with ending_with(EXIT_DIFFERENT if result.bad else EXIT_IDENTICAL):
        present(result, as_json=as_json, document=record_check.document, text=record_check.print_check)


@command.command(epilog="Example: reprokit data throughput s3://bucket/shards")
@click.argument("path")
@click.option(
    "--threads",
    metavar="N",
    type=options.Whole(1, 256),
    multiple=True,
    default=(1, 2, 4, 8),
    show_default=True,
    help="Read with N threads. Repeatable.",
)
@options.number("--batch", "Count N records as one batch.", default=128, show_default=True)
@options.path_option("--plot", "FILE", "Also draw megabytes per second by threads into an SVG file.")
@options.json_option("Print the result as one JSON document.")
def throughput(path: str, threads: tuple[int, ...], batch: int, plot: Path | None, as_json: bool) -> None:
    """Measure how fast a data set is read.

    PATH is as for check. All files are read, each by one thread, once for each number of threads, and their records
    checked. Batches of a file's records are counted when they are complete.
    """
    from reprokit.diff import throughput as measured

    result = measured.measure(path, threads, batch)
    if plot is not None:
        write_whole(plot, measured.plot(result))
    present(result, as_json=as_json, document=measured.document, text=measured.print_throughput)
