"""Judges a training by rules while it runs: another process follows the run directory.

It reports through a pipe; if it crashes or hangs, its reports so far are kept. Its standard input is closed when
the training has ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from reprokit.core.errors import EXIT_STOPPED, reason
from reprokit.core.messages import say, warn
from reprokit.model.plan import Plan, RulesPlan
from reprokit.model.run_warning import RunWarning
from reprokit.run import environment
from reprokit.run.early_end import ENOUGH, EarlyEnd
from reprokit.run.part import Closing, Launch, RunPart, Watch
from reprokit.run.process import Child, ExitStatus
from reprokit.run.user_commands import COMMAND_FAILED, MAX_COMMANDS, NAP, UserCommands
from reprokit.run_files import findings, rundir
from reprokit.run_files.findings import MAX_BYTES, MAX_FINDINGS, FindingsFile, RuleReport

# Modules are imported from the launcher's sys.path, not from the user's current directory.
PROGRAM = "import sys; sys.path[:] = sys.argv[1].split('\\n'); from reprokit.rules.follower import follow; follow()"
PATIENCE = 60.0  # seconds for an interrupted training to end, and for rules to reach its last step
MAX_SAID = 20  # lines of alarms printed
PIECE = 1 << 16  # bytes
MAX_PIECES = 64  # read at one call
VARIABLE = "REPROKIT_FINDING"
INCOMPLETE = "rules-incomplete"  # code of warnings


class RuleWatch(RunPart):
    """The process that judges a run, its reports, and the action that an alarm triggers."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        assert plan.rules is not None
        self._rules, self._partial_line = plan.rules, b""
        self._is_complete = False  # whether the process has reported the whole run
        self._problems: list[RunWarning] = []
        self._commands = UserCommands("--on-rule", plan.rules.command) if plan.rules.command else None
        self._first_alarm = ""  # in words
        self._lines = self._not_printed = 0  # of alarms

    def started(self, launch: Launch) -> None:
        run, answers = launch.path, launch.path / rundir.ANSWERS
        self._findings_file = FindingsFile(run_id=launch.run.run_id)
        stopping = (lambda: self._first_alarm) if self._rules.stops else str
        self._early_end = EarlyEnd(run, answers / ENOUGH, stopping, PATIENCE, EXIT_STOPPED)
        try:
            if self._rules.stops:
                answers.mkdir(mode=0o700, exist_ok=True)
            self._process: subprocess.Popen[bytes] | None = _start_process(run, self._rules)
        except OSError as error:
            self._process = None
            self._problems.append(RunWarning(f"--rules: nothing was judged: {reason(error)}", INCOMPLETE))

    def watches(self) -> Iterable[Watch]:
        return (self._watch,)

    def _watch(self, child: Child) -> None:
        """Read new reports, and end the training if an alarm must stop it."""
        self._read()
        if self._commands is not None:
            self._commands.reap()
        self._early_end(child)

    def stop(self, ended: ExitStatus) -> ExitStatus:
        if self._early_end.reason:
            text = f"the training was stopped (exit status {EXIT_STOPPED}): {self._first_alarm}"
            self._problems.append(RunWarning(text, "stopped-by-rule"))
        return self._early_end.finish(ended)

    def ended(self, closing: Closing) -> None:
        closing.user_commands.extend([] if self._commands is None else [self._commands])

    def finish(self, closing: Closing) -> None:
        """Wait a limited time for the rules to reach the last step, and write findings.json."""
        interrupted = closing.interrupted
        process, deadline = self._process, time.monotonic() + PATIENCE
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            while self._read() and time.monotonic() < deadline and not interrupted():
                time.sleep(NAP)
            process.kill()
            code = process.wait()
            if not self._is_complete:
                problem = (
                    "had not come to the last step"
                    if code == -9
                    else f"ended early, {ExitStatus(exit_code=code).words}"
                )
                problem = f"ended early, by signal {-code}" if code < 0 and code != -9 else problem
                text = f"--rules: their process {problem}: 'reprokit rules RUN' judges the whole run"
                self._problems.append(RunWarning(text, INCOMPLETE))
        if self._not_printed:
            say(f"and {self._not_printed} more alarms: 'reprokit show --findings' has them")
        notes = [
            *self._findings_file.rule_notes,
            *(() if self._is_complete else (each.text for each in self._problems)),
        ]
        findings.write(closing.path, replace(self._findings_file, rule_notes=notes))
        for warning in self._problems:
            closing.warn(warning.text, warning.code)
        for text in self._commands.finish(interrupted) if self._commands is not None else ():
            closing.warn(text, COMMAND_FAILED)

    def _read(self) -> bool:
        """Read new reports; return whether more may come."""
        assert self._process is None or self._process.stdout is not None
        for _ in range(MAX_PIECES if self._process is not None else 0):
            try:
                data = os.read(self._process.stdout.fileno(), PIECE)  # type: ignore[union-attr]
            except BlockingIOError:
                return True
            *lines, self._partial_line = (self._partial_line + data).split(b"\n")
            if not data or len(self._partial_line) > MAX_BYTES:
                return False
            for line in lines:
                self._take_report(line)
        return self._process is not None

    def _take_report(self, line: bytes) -> None:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # the process reports its own failures
            report = msgspec.json.decode(line, type=RuleReport)
            if report.findings is not None:
                alarms, self._is_complete = report.findings[:MAX_FINDINGS], True
                self._findings_file = replace(self._findings_file, findings=alarms, rule_notes=report.notes)
                self._problems.extend(RunWarning(f"--rules: {problem}", INCOMPLETE) for problem in report.problems)
            elif report.raised:
                self._raise_alarm(report)

    def _raise_alarm(self, report: RuleReport) -> None:
        raised = self._findings_file.findings
        self._first_alarm, self._lines = self._first_alarm or report.words, self._lines + 1
        if self._lines <= MAX_SAID:
            warn(report.words, "alarm")
        else:
            self._not_printed += len(report.raised)
        for finding in report.raised[: MAX_FINDINGS - len(raised)]:
            raised.append(finding)
            if self._commands is not None and len(raised) <= MAX_COMMANDS:
                self._commands.start(finding.rule, {VARIABLE: msgspec.json.encode(finding).decode()})


def _start_process(run: Path, plan: RulesPlan) -> subprocess.Popen[bytes]:
    """Start the process in a session of its own: signals to the training's group must not reach it."""
    path = "\n".join(filter(os.path.isabs, sys.path))
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", PROGRAM, path, str(run), *plan.specs],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment.without_own(environment.inherited()),
        start_new_session=True,
    )
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    return process


PART = RuleWatch
