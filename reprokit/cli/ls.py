"""``reprokit ls``: the runs in a directory, the newest first."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from reprokit.cli import options
from reprokit.cli.output import present


@click.command()
@click.argument("directory", default=options.HOME, type=options.PATH)
@options.json_option()
def command(directory: Path, as_json: bool) -> None:
    """List the runs in DIRECTORY, the newest first [default: those of this directory, in .reprokit].

    A line each: when it was started, whether it is a recording, a replay or a plain run, how it ended, how long it
    took, its name and its command. Directories that hold no run are left out; of a run that cannot be read it
    says why.
    """
    from reprokit.verify.show import run_list

    text = partial(run_list.print_runs, directory)
    present(run_list.runs(directory), as_json=as_json, document=run_list.document, text=text)
