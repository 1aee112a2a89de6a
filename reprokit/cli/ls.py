"""``reprokit ls``: the runs in a directory, the newest first."""

from __future__ import annotations

from pathlib import Path

import click

from reprokit.cli.paths import HOME
from reprokit.cli.secrets import print_json


@click.command()
@click.argument("directory", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(directory: Path | None, as_json: bool) -> None:
    """List the runs in DIRECTORY, the newest first [default: those of this directory, in .reprokit].

    A line each: when it was started, whether it is a recording, a replay or a plain run, how it ended, how long it
    took, its name and its command. Directories that hold no run are left out; of a run that cannot be read it
    says why.
    """
    from reprokit.verify.show import run_list

    place = directory if directory is not None else HOME
    found = run_list.runs(place)
    if as_json:
        print_json(run_list.document(found))
    else:
        run_list.print_runs(place, found)
