"""``reprokit profile``: run a command once, and find out what keeps it from repeating."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from reprokit.cli import options
from reprokit.cli.options import flag
from reprokit.cli.output import end_as, present, say_next, stdout_kept
from reprokit.model.plan import RECORD, Plan
from reprokit.model.run import ProfilingFacts
from reprokit.model.states import WITHOUT_SYSTEM_CALLS, off

if TYPE_CHECKING:
    from reprokit.run_files.findings import FindingsFile

REPEATS = 30
WITHOUT = off("only system calls are watched", "not-asked")


@options.launching(epilog="Example: reprokit profile --steps 50 -- python train.py")
@options.new_run()
@options.number("--steps", "Stop the training after N optimizer steps (exit status 0).")
@click.option(
    "--seconds", metavar="S", type=options.Seconds(), help="Stop S seconds after the first step (exit status 0)."
)
@click.option(
    "--confirm",
    metavar="[K]",
    type=options.Whole(min=2, max=10_000),
    callback=lambda _context, _option, count: count or 0,
    is_flag=False,
    flag_value=REPEATS,
    help=f"Re-execute each distinct operator call K times [{REPEATS}] on its own inputs, and compare the bits.",
)
@flag("--no-functions", "Do not count calls of functions (cProfile).", "functions", negated=True)
@flag("--no-operators", "Do not observe the frameworks' operators.", "operators", negated=True)
@options.switched_off(
    "--no-system-calls",
    "system_calls",
    WITHOUT_SYSTEM_CALLS,
    "Do not observe system calls (strace); use the shim's own log.",
)
@options.NO_CALENDAR
@options.json_option("Print the findings as one JSON document; what COMMAND prints goes to stderr.")
@options.gathered("profiling", ProfilingFacts)
@options.planned(RECORD)
def command(plan: Plan, as_json: bool) -> None:
    """Run COMMAND once, and report what makes its runs differ.

    The run is a recording that also lists the functions, operators, settings and system calls it used.
    The findings come after its end, the most urgent first: what, where in the code, how often, on which
    device, why, and what would cure it. They are kept in RUN/findings.json, and 'reprokit show
    --findings RUN' shows them again.

    COMMAND's exit status is passed on; that of a training stopped by --steps or --seconds is 0.
    """
    from reprokit.run.run import execute

    assert plan.profiling is not None
    if not (plan.profiling.functions or plan.profiling.operators):
        plan = replace(plan, trail=WITHOUT)
    with stdout_kept(as_json):
        executed = execute(plan)
    _print_findings(executed.path, as_json)
    say_next("reprokit", "reproduce", "--", *plan.command)
    end_as(executed.ended)


def _print_findings(path: Path, as_json: bool) -> None:
    """Print the findings; an error is reported, and the training's exit status passed on all the same."""
    from reprokit.core.errors import ReprokitError
    from reprokit.core.messages import warn

    try:
        profiled = _findings(path)
        if not as_json:
            print()  # nobody knows whether the command's last line was ended
        show(path, profiled, as_json=as_json)
        sys.stdout.flush()
    except BrokenPipeError:
        pass  # nobody reads them
    except (ReprokitError, OSError) as error:
        warn(f"the findings could not be shown: {error}", getattr(error, "slug", "system"))


def _findings(path: Path) -> FindingsFile:
    """Diagnose a run that has just ended, and keep what was found in it."""
    from reprokit import profiling
    from reprokit.run_files import findings
    from reprokit.run_files.rundir import RunDirectory

    diagnosed = profiling.analyze(RunDirectory(path))
    findings.write(path, diagnosed)
    return diagnosed


def show(path: Path, profiled: FindingsFile, *, as_json: bool) -> None:
    """Print the findings of the run at this path."""
    from functools import partial

    from reprokit.profiling import report
    from reprokit.run.rundirectory import shown
    from reprokit.run_files.rundir import RunDirectory

    run = RunDirectory(Path(shown(path)))
    present(profiled, as_json=as_json, document=partial(report.document, run), text=partial(report.print_findings, run))
