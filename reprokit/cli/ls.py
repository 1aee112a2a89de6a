"""``reprokit ls``: the runs in a directory, the newest first."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from reprokit.cli import options
from reprokit.cli.output import present
from reprokit.run.rundirectory import shown
from reprokit.run_files.home import home_of


@click.command(epilog="Example: reprokit ls --limit 5")
@click.argument("directory", required=False, type=options.PATH)
@options.number("--limit", "List only the newest N.")
@options.json_option()
def command(directory: Path | None, limit: int | None, as_json: bool) -> None:
    """List the runs in DIRECTORY, the newest first [default: the nearest .reprokit].

    A line each: the name by which commands find the run, when it was started, its command, how it ended,
    which recording it replayed, what 'reprokit verify' last said of the two, and the size of its files. A
    plain run of 'reprokit run' says so. Directories that hold no run are left out; of a run that cannot be
    read it says why.
    """
    from reprokit.verify.show import run_list

    place = Path(shown(home_of(Path()))) if directory is None else directory
    text = partial(run_list.print_runs, place)
    present(run_list.runs(place)[:limit], as_json=as_json, document=run_list.document, text=text)
