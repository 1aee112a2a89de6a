"""``reprokit rules``: judge a training by its saved tensors, while it runs or afterwards."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reprokit.cli import options
from reprokit.cli.options import flag
from reprokit.cli.output import print_json
from reprokit.cli.streams import ending_with
from reprokit.core.errors import EXIT_DIFFERENT, EXIT_IDENTICAL, CannotWriteRun

if TYPE_CHECKING:
    pass


@click.command(epilog="Example: reprokit rules last --rule VanishingGradient=threshold=1e-6")
@click.argument("run", type=options.RUN)
@click.option(
    "--rule",
    "specs",
    metavar="ID[=PARAM=VALUE,...]|FILE",
    multiple=True,
    help="Judge by this rule only, by those of your own in FILE.py or FILE.py:CLASS, or by those that FILE.toml lists."
    " Repeatable.",
)
@flag("--follow", "Wait for further steps until the training has ended.")
@options.json_option()
@options.REVEAL
def command(run: Path, specs: tuple[str, ...], follow: bool, as_json: bool) -> None:
    """Judge RUN by the tensors that it saved, with rules of SageMaker Debugger.

    Each finding says what is wrong, in which tensor and module, where that was made, and why. The findings of a
    run that has ended are also kept in RUN/findings.json. Exits with 1 if a rule raised an alarm, 0 if none did.
    """
    from reprokit.core.messages import warn
    from reprokit.rules import catalogue, evaluation, report
    from reprokit.saved_tensors.trial import TensorTrial

    trial = TensorTrial(run)
    session = evaluation.RuleSession(trial, catalogue.chosen(specs, trial))
    for raised in session.judge(_wait if follow else None):
        if not as_json:
            click.echo(report.sentence(*raised))
    try:
        evaluation.keep(trial, session)
    except CannotWriteRun as error:
        warn(f"the findings are not kept: {error}")
    with ending_with(EXIT_DIFFERENT if session.findings else EXIT_IDENTICAL):
        if as_json:
            print_json(report.document(trial.path, session))
        else:
            report.print_end(trial.path, session)


def _wait() -> bool:
    from reprokit.saved_tensors.trial import POLL

    time.sleep(POLL)
    return True
