"""``reprokit diff``: in what do two files or directories differ, tensor by tensor?"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from reprokit.cli import options, tolerances
from reprokit.cli.output import ending_with, say_next
from reprokit.core.errors import EXIT_DIFFERENT, EXIT_IDENTICAL
from reprokit.core.tolerance import Tolerances
from reprokit.run_files.rundir import RUN

QUANTITIES = ("tensors", "values")  # values: numbers in JSON, CSV and the like


@click.command(epilog="Example: reprokit diff first/model.pt second/model.pt")
@click.argument("left", metavar="A", type=options.PATH)
@click.argument("right", metavar="B", type=options.PATH)
@options.flag("--all", "Show every difference, with its figures.", "every_leaf")
@options.json_option("Print the comparison as one JSON document.")
@tolerances.options(QUANTITIES)
def command(left: Path, right: Path, every_leaf: bool, as_json: bool, accepted: Tolerances) -> None:
    """Compare the files or directories A and B by what they hold.

    Knows the formats that trainings write, and says which tensors differ, in how many elements, where
    first and by how much. Time stamps, the order of members and the like of a container are never a
    difference. Nothing is unpickled or executed. Exits with 0 if the contents are identical, 1 if they
    differ, 2 if they cannot be compared; with a tolerance also with 0 if they are within it, and says so.
    A QUANTITY is tensors or values (single numbers in JSON and CSV).
    """
    from reprokit.diff.elements import CompareOptions
    from reprokit.diff.files import diff
    from reprokit.verify.show.comparison import document_of_files, print_tree

    tree = diff(left, right, CompareOptions(accepted.of.get("tensors"), accepted.of.get("values")))
    with ending_with(EXIT_DIFFERENT if tree.verdict.differs else EXIT_IDENTICAL):
        if as_json:  # bit by bit, as the document can be larger than memory
            sys.stdout.writelines(json.JSONEncoder(indent=2).iterencode(document_of_files(tree, left, right)))
            click.echo()
        else:
            print_tree(tree, left, right, every_leaf=every_leaf)
            if all((path / RUN).is_file() for path in (left, right)):
                say_next("reprokit", "verify", *map(str, (left, right)))  # files of runs differ by times and ids
