"""``reprokit resume``: is a training that was interrupted and resumed the one that was not, bit for bit?"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import click

from reprokit.cli import ignores, options
from reprokit.cli.ignores import IgnoreRequest
from reprokit.cli.output import ending_with, interruptible, present, stdout_kept
from reprokit.core.errors import EXIT_DIFFERENT, EXIT_IDENTICAL, NoCommand, UsageError

SIGNALS = ("INT", "TERM", "KILL")


@options.launching(epilog="Example: reprokit resume --at 500 -- python train.py")
@options.number("--at", "Interrupt the training after N optimizer steps [default: 3/8 of them].")
@click.option(
    "--after-file",
    "pattern",
    metavar="GLOB",
    default="",
    help="Interrupt it after the first step at whose end a new file matches GLOB.",
)
@click.option(
    "--signal",
    "signal_name",
    type=click.Choice(SIGNALS),
    default="INT",
    show_default=True,
    help="Signal that interrupts it.",
)
@click.option("--resume-with", metavar="COMMAND", help="Command that resumes the training [default: COMMAND again].")
@click.option(
    "--data",
    metavar="PATH",
    type=click.Path(),
    multiple=True,
    help="Link this file or directory into the copies of the checkout, instead of copying it. Repeatable.",
)
@options.NO_CALENDAR
@ignores.options
@options.output("DIR", "Keep the runs in DIR [default: removed if the resumed training is exact].")
@options.json_option("Print one JSON document; the trainings print to stderr.")
@click.pass_context
def command(
    context: click.Context,
    at: int | None,
    pattern: str,
    signal_name: str,
    resume_with: str | None,
    data: tuple[str, ...],
    calendar: bool,
    declared: IgnoreRequest,
    output: Path | None,
    as_json: bool,
) -> None:
    """Interrupt COMMAND, resume it, and say whether it then is the training that was not interrupted.

    COMMAND is run whole, interrupted and resumed in fresh copies of the checkout, each time with the same
    entropy. If the resumed training differs, parts of the whole one's state are put into it until it does not:
    the smallest set of parts is what its checkpoint lacks. Exits with 0 if the resumed training is exact, with
    1 if it is not, with 2 if that cannot be told.
    """
    from signal import Signals

    from reprokit.model.resumption import document
    from reprokit.questions.resume import ResumeStudy, ResumeWork, place_for
    from reprokit.questions.resume_text import print_finding
    from reprokit.run.interruption import Interruption

    if not context.obj:
        raise NoCommand("nothing to run; put the command behind --: reprokit resume -- python train.py")
    if at is not None and pattern:
        raise UsageError("--at and --after-file both say when the training is interrupted: choose one")
    work = ResumeWork(
        command=context.obj,
        resume_command=context.obj if resume_with is None else options.words_of("--resume-with", resume_with),
        directory=options.current_directory(),
        place=place_for(output),
        at=at,
        pattern=pattern,
        signal=Signals[f"SIG{signal_name}"],
        data=tuple(map(os.path.abspath, data)),
        calendar=calendar,
        ignores=declared.ignores(),
    )
    with interruptible(f"the runs so far are in {work.place}"), stdout_kept(as_json), Interruption() as interruption:
        finding = ResumeStudy(work, interruption).find()
    if output is None and finding.is_exact:
        shutil.rmtree(work.place, ignore_errors=True)
        finding.runs.clear()
    with ending_with(EXIT_IDENTICAL if finding.is_exact else EXIT_DIFFERENT):
        present(finding, as_json=as_json, document=document, text=print_finding)
