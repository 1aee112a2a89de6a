"""``reprokit locate``: which operator is the first that gave another result?"""

from __future__ import annotations

from pathlib import Path

import click

from reprokit.cli import options
from reprokit.cli.output import ending_with, interruptible, present
from reprokit.core.errors import EXIT_DIFFERENT, EXIT_IDENTICAL, UsageError
from reprokit.run_files.rundir import RunDirectory


@click.command(epilog="Example: reprokit locate last")
@click.argument("run1", type=options.RUN)
@click.argument("run2", type=options.RUN, required=False)
@options.number("--pairs", "Replay up to N pairs until one parts.", most=1000, default=5, show_default=True)
@options.path_option("--keep", "DIR", "Write the divergent call to DIR: inputs, outputs, call.py to execute it.")
@click.option("--eager", is_flag=True, help="Compile nothing: look into what compilers made, in another computation.")
@options.FROM_START
@options.json_option("Print the answer as one JSON document.")
def command(
    run1: Path, run2: Path | None, pairs: int, keep: Path | None, eager: bool, from_start: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Find the first operator by which RUN1 and RUN2 part.

    Replays both and logs each call of an operator with digests of its inputs and outputs, in the steps
    around the one in which the runs part. Replays are made in pairs until one parts. RUN1 alone is
    replayed twice, or with its recording if it is a replay. Exits with 0 if no pair parts, 1 if one
    does, or if what the trail does not see differs (outputs, console, metrics, ends), 2 if the runs cannot be
    replayed as they were.
    """
    import msgspec

    from reprokit.cli.ignores import IgnoreRequest
    from reprokit.core.messages import say
    from reprokit.questions import divergence_text
    from reprokit.questions.locate import LocateOptions, locate
    from reprokit.run.interruption import Interruption
    from reprokit.run_files.home import recording_of

    if keep is not None and keep.exists():
        raise UsageError(f"{keep} exists already; choose another directory with --keep")
    left, right = RunDirectory(run1), None if run2 is None else RunDirectory(run2)
    if right is None and left.run.replay_of is not None:
        left, right = RunDirectory(recording_of(left)), left
    options_of_search = LocateOptions(pairs, keep, eager, from_start=from_start, ignores=IgnoreRequest().ignores())
    with interruptible("nothing was located"), Interruption() as interruption:
        divergence = locate(left, right, options_of_search, interruption, say)
    with ending_with(EXIT_DIFFERENT if divergence.differs else EXIT_IDENTICAL):
        present(divergence, as_json=as_json, document=msgspec.to_builtins, text=divergence_text.print_lines)
