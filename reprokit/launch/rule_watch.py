"""Has rules judge a training while it goes on: in another process, which follows the run directory.

Its reports come by a pipe; where it crashes or hangs, what it had reported is kept. Its standard input is closed once
the training has ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from reprokit import findings, rundir
from reprokit.errors import EXIT_STOPPED, reason
from reprokit.findings import MAX_BYTES, MAX_FINDINGS, FindingsFile, RuleReport
from reprokit.launch import environment
from reprokit.launch.early_end import ENOUGH, EarlyEnd
from reprokit.launch.messages import say, warn
from reprokit.launch.process import Child, ExitStatus
from reprokit.launch.user_commands import MAX_COMMANDS, NAP, UserCommands
from reprokit.plan import RulesPlan

# Modules come from where the launcher has them, not from where the user stands.
PROGRAM = "import sys; sys.path[:] = sys.argv[1].split('\\n'); from reprokit.rules.follower import follow; follow()"
PATIENCE = 60.0  # seconds for an interrupted training to end, and for rules to come to its last step
MAX_SAID = 20  # alarms on the screen
PIECE = 1 << 16  # bytes
MAX_PIECES = 64  # read at one look
VARIABLE = "REPROKIT_FINDING"


class RuleWatch:
    """The process that judges a run, what it has reported, and what an alarm does."""

    def __init__(self, plan: RulesPlan, run: Path, run_id: str) -> None:
        self._run, self._content, self._rest = run, FindingsFile(run_id=run_id), b""
        self._has_all = False  # that the process had to report
        self._problems: list[str] = []
        self._commands = UserCommands("--on-rule", plan.command) if plan.command else None
        self._first = ""  # alarm, in words
        answers = run / rundir.ANSWERS
        stopping = (lambda: self._first) if plan.stops else str
        self._early_end = EarlyEnd(run, answers / ENOUGH, stopping, PATIENCE, EXIT_STOPPED)
        try:
            if plan.stops:
                answers.mkdir(mode=0o700, exist_ok=True)
            self._process: subprocess.Popen[bytes] | None = _started(run, plan)
        except OSError as error:
            self._process = None
            self._problems.append(f"--rules: nothing was judged: {reason(error)}")

    def __call__(self, child: Child) -> None:
        """Take new reports, and end the training where an alarm is to."""
        self._read()
        if self._commands is not None:
            self._commands.reap()
        self._early_end(child)

    def ended(self, ended: ExitStatus) -> ExitStatus:
        """Return how the training counts as ended; what else of a stopped one goes on is ended."""
        if self._early_end.reason:
            self._problems.append(f"the training was stopped (exit status {EXIT_STOPPED}): {self._first}")
        return self._early_end.finish(ended)

    def finish(self, interrupted: Callable[[], bool]) -> list[str]:
        """Wait a while for the rules to come to the last step, and write findings.json; returns what went wrong."""
        process, deadline = self._process, time.monotonic() + PATIENCE
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            while self._read() and time.monotonic() < deadline and not interrupted():
                time.sleep(NAP)
            process.kill()
            code = process.wait()
            if not self._has_all:
                how = (
                    "had not come to the last step"
                    if code == -9
                    else f"ended early, {ExitStatus(exit_code=code).words}"
                )
                how = f"ended early, by signal {-code}" if code < 0 and code != -9 else how
                self._problems.append(f"--rules: their process {how}: 'reprokit rules RUN' judges the whole run")
        more = len(self._content.findings) - MAX_SAID
        if more > 0:
            say(f"and {more} more alarms: 'reprokit show --findings' has them")
        notes = [*self._content.rule_notes, *(() if self._has_all else self._problems)]
        findings.write(self._run, replace(self._content, rule_notes=notes))
        return [*self._problems, *(self._commands.finish(interrupted) if self._commands is not None else ())]

    def _read(self) -> bool:
        """Take what was reported; return whether more may come."""
        assert self._process is None or self._process.stdout is not None
        for _ in range(MAX_PIECES if self._process is not None else 0):
            try:
                data = os.read(self._process.stdout.fileno(), PIECE)  # type: ignore[union-attr]
            except BlockingIOError:
                return True
            *lines, self._rest = (self._rest + data).split(b"\n")
            if not data or len(self._rest) > MAX_BYTES:
                return False
            for line in lines:
                self._take(line)
        return self._process is not None

    def _take(self, line: bytes) -> None:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # it says itself that it failed
            report = msgspec.json.decode(line, type=RuleReport)
            if report.findings is not None:
                found, self._has_all = report.findings[:MAX_FINDINGS], True
                self._content = replace(self._content, findings=found, rule_notes=report.notes)
                self._problems.extend(f"--rules: {problem}" for problem in report.problems)
            elif report.finding is not None and len(self._content.findings) < MAX_FINDINGS:
                self._content.findings.append(report.finding)
                self._raise(report)

    def _raise(self, report: RuleReport) -> None:
        assert report.finding is not None
        self._first, number = self._first or report.words, len(self._content.findings)
        if number <= MAX_SAID:
            warn(report.words)
        if self._commands is not None and number <= MAX_COMMANDS:
            self._commands.start(report.finding.rule, {VARIABLE: msgspec.json.encode(report.finding).decode()})


def _started(run: Path, plan: RulesPlan) -> subprocess.Popen[bytes]:
    """Start the process, in a session of its own: signals to the training's group are not for it."""
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
