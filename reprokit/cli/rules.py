"""``reprokit rules``: judge a training by its tensors, while it runs or afterwards; a replay gives missing ones."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reprokit.cli import options
from reprokit.cli.options import flag
from reprokit.cli.output import ending_with, interruptible, print_json
from reprokit.core.errors import (
    EXIT_DIFFERENT,
    EXIT_IDENTICAL,
    CannotWriteRun,
    NothingSaved,
    ReprokitError,
    UsageError,
    reason,
)
from reprokit.run_files.rundir import TENSORS, RunDirectory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reprokit.model.question import TensorSelection
    from reprokit.rules.evaluation import RuleSession
    from reprokit.saved_tensors.trial import TensorTrial


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
@flag("--no-replay", "Judge a run without tensors by its losses and its trail alone.")
@click.option(
    "--steps",
    metavar="STEPS",
    default="",
    shell_complete=options.COMPLETE_STEPS,
    help="Have a replay save these steps only, as in 900-1000; it starts from a keyframe where there is one.",
)
@options.FROM_START
@options.json_option()
@options.REVEAL
def command(
    run: Path, specs: tuple[str, ...], follow: bool, no_replay: bool, steps: str, from_start: bool, as_json: bool
) -> None:  # fmt: skip
    """Judge RUN by its tensors, with rules of SageMaker Debugger.

    A run that saved none is judged by its losses and its trail, and then replayed for the tensors that rules read;
    they are kept in RUN, as 'ask' does. Each finding says what was seen, at which step, in which tensor and module, and
    where that was made. The findings of a run that has ended are also kept in RUN/findings.json. Exits with 1 if a rule
    raised an alarm, 0 if none did.
    """
    from reprokit.rules import report
    from reprokit.saved_tensors.trial import TensorTrial

    if steps and (follow or no_replay):
        raise UsageError("--steps are those that a replay saves: leave out --follow and --no-replay")
    chosen = _selection(steps)
    try:
        if steps and (run / TENSORS).is_dir():
            notes = _replayed(RunDirectory(run), chosen, from_start=from_start)
            session = _judged(TensorTrial(run), specs)
            session.problems += notes
        else:
            session = _judged(TensorTrial(run), specs, follow=follow, is_said=follow and not as_json)
    except NothingSaved:
        if follow:
            raise
        session = _judged_without_tensors(RunDirectory(run), specs, None if no_replay else chosen, from_start)
    if not (as_json or follow):
        for line in report.lines(session):
            click.echo(line)
    with ending_with(EXIT_DIFFERENT if session.findings else EXIT_IDENTICAL):
        if as_json:
            print_json(report.document(session.trial.path, session))
        else:
            report.print_end(session.trial.path, session)


def _judged(trial: TensorTrial, specs: Sequence[str], *, follow: bool = False, is_said: bool = False) -> RuleSession:
    """Have rules judge a trial, and keep their findings."""
    from reprokit.core.messages import warn
    from reprokit.rules import catalogue, evaluation, report

    session = evaluation.RuleSession(trial, catalogue.chosen(specs, trial))
    for raised in session.judge(_wait if follow else None):
        if is_said:
            click.echo(report.sentence(*raised))
    try:
        evaluation.keep(trial, session)
    except CannotWriteRun as error:
        warn(f"the findings are not kept: {error}", error.slug)
    return session


def _selection(steps: str) -> TensorSelection:
    """Return the tensors that rules read, of all steps or of those that are asked for."""
    from reprokit.model.question import BUFFER
    from reprokit.model.tensor_selection import ALL, FOR_RULES, MODES_FOR_RULES, selection, selection_of_words

    return selection_of_words([ALL], steps, MODES_FOR_RULES, "", BUFFER) if steps else selection(FOR_RULES)


def _judged_without_tensors(
    run: RunDirectory, specs: Sequence[str], chosen: TensorSelection | None, from_start: bool
) -> RuleSession:
    """Judge a run by its losses and its trail; then, unless it is not wanted or not possible, by a replay's tensors."""
    from reprokit.core.messages import say, warn
    from reprokit.model.run import RUNNING
    from reprokit.rules import report
    from reprokit.rules.plain_recordings import recorded
    from reprokit.saved_tensors.trial import TensorTrial

    indexes = recorded(run)
    session = _judged(TensorTrial(run.path, indexes=indexes), specs) if indexes else None
    if chosen is not None and (run.run.status != RUNNING or run.orphaned):
        for group in report.grouped(session.findings.values()) if session is not None else ():
            say(f"by its losses and its trail: {report.sentence(*group.findings)}")
        try:
            notes = _replayed(run, chosen, from_start=from_start)
            session = _judged(TensorTrial(run.path), specs)
            session.problems += notes
        except ReprokitError as error:
            if session is None:
                raise
            warn(f"judged by losses and trail alone, as no replay gave tensors: {reason(error)}", error.slug)
    if session is None:
        raise NothingSaved(f"{run.path} holds no tensors, no losses and no trail, so that rules have nothing to judge")
    return session


def _replayed(run: RunDirectory, chosen: TensorSelection, *, from_start: bool) -> list[str]:
    """Replay a run for the tensors that rules read; return what these rest on."""
    from reprokit.core.messages import say
    from reprokit.questions import rule_tensors
    from reprokit.run.interruption import Interruption

    keyframe = options.chosen_keyframe(run, chosen.steps.first, from_start=from_start)
    say(rule_tensors.cost(run, chosen, keyframe))
    with interruptible(f"nothing was added to {run.path}"), Interruption() as interruption:
        return rule_tensors.save(run, chosen, interruption, keyframe)


def _wait() -> bool:
    from reprokit.saved_tensors.trial import POLL

    time.sleep(POLL)
    return True
