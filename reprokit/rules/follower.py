"""Judges a run beside its training, in a process of its own that the launcher starts, and reports to it by a pipe."""

from __future__ import annotations

import io
import os
import select
import signal
import sys

import msgspec

from reprokit.errors import ReprokitError
from reprokit.findings import RuleReport
from reprokit.rules import catalogue
from reprokit.rules.evaluation import RuleSession
from reprokit.rules.report import sentence
from reprokit.saved_tensors.trial import POLL, TensorTrial

NICE = 10  # the training comes first


def follow() -> None:
    """Judge the run that the command line names by the rules behind it, until standard input is closed."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the launcher blocks what it takes by sigwait
    os.nice(NICE)
    pipe = os.dup(1)
    os.dup2(2, 1)  # what rules print is not a report
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    trial = TensorTrial(sys.argv[2])
    session = RuleSession(trial, {})
    try:
        for spec in sys.argv[3:]:
            session.add(catalogue.chosen([spec], trial))
        for finding in session.judge(_training_goes_on):
            _report(pipe, RuleReport(finding=finding, words=sentence(finding)))
    except ReprokitError as error:
        session.problems.append(str(error))
    raised = list(session.findings.values())
    _report(pipe, RuleReport(findings=raised, problems=session.problems, notes=session.notes()))


def _training_goes_on() -> bool:
    """Wait a moment; return whether the launcher holds standard input open."""
    return not select.select([0], [], [], POLL)[0]


def _report(pipe: int, report: RuleReport) -> None:
    data = msgspec.json.encode(report) + b"\n"
    while data:
        data = data[os.write(pipe, data) :]
