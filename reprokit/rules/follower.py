"""Judges a run while it trains, in a process that the launcher starts and that reports to it through a pipe."""

from __future__ import annotations

import io
import os
import select
import signal
import sys

import msgspec

from reprokit.core.errors import ReprokitError
from reprokit.rules import catalogue
from reprokit.rules.evaluation import RuleSession
from reprokit.rules.report import sentence
from reprokit.run_files.findings import RuleReport
from reprokit.saved_tensors.trial import POLL, TensorTrial

NICE = 10  # yield to the training


def follow() -> None:
    """Judge the run in argv[2] by the rules in argv[3:] until standard input is closed."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the launcher blocks the signals that it awaits by sigwait
    os.nice(NICE)
    pipe = os.dup(1)
    os.dup2(2, 1)  # rules may print: keep their output out of the pipe of reports
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    trial = TensorTrial(sys.argv[2])
    session = RuleSession(trial, {})
    try:
        for spec in sys.argv[3:]:
            session.add(catalogue.chosen([spec], trial))
        for raised in session.judge(_training_goes_on):
            _report(pipe, RuleReport(raised=raised, words=sentence(*raised)))
    except ReprokitError as error:
        session.problems.append(str(error))
    all_findings = list(session.findings.values())
    _report(pipe, RuleReport(findings=all_findings, problems=session.problems, notes=session.notes()))


def _training_goes_on() -> bool:
    """Wait for one polling interval; returns whether the launcher keeps standard input open."""
    return not select.select([0], [], [], POLL)[0]


def _report(pipe: int, report: RuleReport) -> None:
    data = msgspec.json.encode(report) + b"\n"
    while data:
        data = data[os.write(pipe, data) :]
