"""``reprokit profile``: run a command once, and find out what keeps it from repeating."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reprokit.cli.arguments import CommandBehindDashes, new_run
from reprokit.cli.ending import end_as
from reprokit.cli.paths import current_directory
from reprokit.cli.secrets import print_json, stdout_for_a_document
from reprokit.model.states import ON, off
from reprokit.plan import RECORD, Plan, Profiling

if TYPE_CHECKING:
    from reprokit.findings import FindingsFile
    from reprokit.launch.run import CompletedRun

REPEATS = 30


class Seconds(click.FloatRange):
    """A time, which neither NaN nor infinity is."""

    name = "seconds"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        number = float(super().convert(value, param, ctx))  # type: ignore[arg-type]  # click takes texts as well
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return number


WITHOUT = off("only system calls are watched", "not-asked")


@click.command(cls=CommandBehindDashes, context_settings={"allow_interspersed_args": False})
@new_run()
@click.option(
    "--steps",
    metavar="N",
    type=click.IntRange(min=1),
    help="End the training after so many optimizer steps, in good order: exit status 0.",
)
@click.option(
    "--seconds",
    metavar="S",
    type=Seconds(min=0, min_open=True),
    help="Likewise after so many seconds.",
)
@click.option(
    "--confirm",
    metavar="[K]",
    type=click.IntRange(min=2, max=10_000),
    is_flag=False,
    flag_value=REPEATS,
    help=f"Execute each distinct operator call again K times [{REPEATS}] on its own inputs, and compare bits.",
)
@click.option("--no-functions", is_flag=True, help="Count no calls of functions (cProfile).")
@click.option("--no-operators", is_flag=True, help="Watch no operators of the frameworks.")
@click.option("--no-system-calls", is_flag=True, help="Watch no system calls (strace); use the shim's own log.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the findings as one JSON document; what COMMAND prints goes to stderr.",
)
@click.pass_obj
def command(
    behind_dashes: tuple[str, ...],
    output: Path | None,
    overwrite: bool,
    steps: int | None,
    seconds: float | None,
    confirm: int | None,
    no_functions: bool,
    no_operators: bool,
    no_system_calls: bool,
    as_json: bool,
) -> None:
    """Run COMMAND once, and say what in it keeps runs from being the same.

    The run is a recording, with which functions, operators, settings and system calls it used. The
    findings come after its end, the most urgent first: what, where in the code, how often, on which
    device, why, and what would cure it. They are kept in RUN/findings.json, and 'reprokit show
    --findings RUN' shows them again.

    COMMAND's exit status is passed on; a training that was ended by --steps or --seconds has ended well.
    """
    from reprokit.launch.platform_support import require_supported

    require_supported()
    from reprokit.launch.run import execute

    profiling = Profiling(
        functions=not no_functions,
        operators=not no_operators,
        system_calls=not no_system_calls,
        steps=steps,
        seconds=seconds,
        confirm=confirm or 0,
    )
    plan = Plan(
        mode=RECORD,
        command=behind_dashes,
        working_directory=current_directory(),
        output=output,
        overwrite=overwrite,
        profiling=profiling,
        trail=WITHOUT if no_functions and no_operators else ON,
    )
    document = stdout_for_a_document() if as_json else None
    made = execute(plan)
    _print_findings(made, document)
    end_as(made.ended)


def _print_findings(made: CompletedRun, document: int | None) -> None:
    """The findings; what goes wrong is said, and the training's exit status passed on all the same."""
    from reprokit.errors import ReprokitError
    from reprokit.launch.messages import warn

    try:
        found = _findings(made.path)
        if document is not None:
            os.dup2(document, 1)
        else:
            print()  # nobody knows whether the command's last line was ended
        show(made.path, found, as_json=document is not None)
        sys.stdout.flush()
    except (ReprokitError, OSError) as error:
        warn(f"the findings could not be shown: {error}")


def _findings(path: Path) -> FindingsFile:
    """Diagnose a run that has just ended, and keep what was found in it."""
    from reprokit import findings, profiling
    from reprokit.rundir import RunDirectory

    found = profiling.analyse(RunDirectory(path))
    findings.write(path, found)
    return found


def show(path: Path, found: FindingsFile, *, as_json: bool) -> None:
    """Print the findings of the run at this path."""
    from reprokit.launch.rundirectory import shown
    from reprokit.profiling import report
    from reprokit.rundir import RunDirectory

    run = RunDirectory(Path(shown(path)))
    if as_json:
        print_json(report.document(run, found))
    else:
        report.print_findings(run, found)
