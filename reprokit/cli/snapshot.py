"""``reprokit snapshot``: look at a captured step, do it again, make its batch smaller, find what went wrong in it."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import click

from reprokit.cli.arguments import OWN_DIRECTORY, PATCH, CommandBehindDashes
from reprokit.cli.paths import current_directory
from reprokit.cli.profile import Seconds
from reprokit.cli.secrets import print_json, stdout_for_a_document
from reprokit.errors import EXIT_DIFFERENT, EXIT_IDENTICAL, BadSnapshot

SNAPSHOT = click.argument("snapshot", type=OWN_DIRECTORY)
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
RESULT_AS_JSON = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document; what COMMAND prints goes to stderr."
)
SECONDS = click.option(
    "--seconds",
    metavar="S",
    type=Seconds(min=0, min_open=True),
    help="End COMMAND where its first step has not come by then.",
)


@click.group(no_args_is_help=False)
def command() -> None:
    """Look at a captured step, do it again, make its batch smaller, find what went wrong in it.

    SNAPSHOT is a directory that 'reprokit record --on-nan capture' or 'reprokit run --on-nan capture' left
    in RUN/snapshots. What stands behind -- is the training's own command; it is started, and ends after
    its first step.

    Exit status: 0 where the step came to the same again, 1 where it did not, 2 where that cannot be told.
    """


@command.command()
@SNAPSHOT
@JSON
def show(snapshot: Path, as_json: bool) -> None:
    """Show what SNAPSHOT holds, and check its digests."""
    from reprokit.capture import report
    from reprokit.capture.files import SnapshotError, SnapshotFile

    try:
        file = SnapshotFile(str(snapshot))
    except SnapshotError as error:
        raise BadSnapshot(str(error)) from None
    if as_json:
        print_json(report.document(file))
    else:
        report.print_snapshot(file)


def redoing(function: Callable[[], None]) -> Callable[..., None]:
    """Make of a description the command of that name, which has a script do a captured step again."""

    @SNAPSHOT
    @RESULT_AS_JSON
    @SECONDS
    @PATCH
    @click.pass_obj
    @functools.wraps(function)
    def again(behind_dashes: tuple[str, ...], /, **options: Any) -> None:
        _redo(function.__name__, behind_dashes, **options)

    return again


@command.command(cls=CommandBehindDashes, short_help="Do the captured step again, and compare it bit by bit.")
@redoing
def reproduce() -> None:
    """Do the captured step again in the user's own script, and compare it bit by bit.

    State, batch and random states are put in at the script's first step; what it computes is compared with
    what was captured.
    """


@command.command(cls=CommandBehindDashes, short_help="Find a smallest part of the batch that still does it.")
@redoing
def minimise() -> None:
    """Find a smallest part of the captured batch that still does it, from the captured weights each time."""


@command.command(cls=CommandBehindDashes, short_help="Name the first operation that went wrong.")
@redoing
def explain() -> None:
    """Name the first operation that made of finite values what is not, with its inputs and its line."""


def _redo(
    mode: str,
    behind_dashes: tuple[str, ...],
    snapshot: Path,
    as_json: bool,
    seconds: float | None,
    patches: tuple[str, ...],
) -> NoReturn:
    from reprokit.launch.platform_support import require_supported

    require_supported()
    from reprokit.capture import report
    from reprokit.capture.files import SnapshotError, SnapshotFile
    from reprokit.cli.record import chosen_patches
    from reprokit.launch import redo
    from reprokit.launch.messages import say

    place = Path(os.path.realpath(snapshot))
    try:
        SnapshotFile(str(place))
    except SnapshotError as error:
        raise BadSnapshot(str(error)) from None
    asked = redo.RedoRequest(
        mode=mode,
        snapshot=place,
        command=behind_dashes,
        working_directory=current_directory(),
        patches=chosen_patches(patches, behind_dashes) if patches else redo.patches_of(place),
        seconds=seconds,
    )
    document = stdout_for_a_document() if as_json else None
    found = redo.redo(asked, say)
    if document is None:
        report.print_result(found, mode)
    else:
        os.dup2(document, 1)
        print_json(_as_document(found, mode, place))
    sys.stdout.flush()
    sys.exit(EXIT_IDENTICAL if _is_same(found) else EXIT_DIFFERENT)


def _is_same(found: dict[str, Any]) -> bool:
    """Whether the step came again, with the captured gradients bit for bit."""
    gradients = found.get("gradients")
    return bool(found.get("reproduced")) and not (isinstance(gradients, dict) and gradients.get("different"))


def _as_document(found: dict[str, Any], mode: str, place: Path) -> dict[str, Any]:
    return {**found, "mode": mode, "snapshot": str(place)}
