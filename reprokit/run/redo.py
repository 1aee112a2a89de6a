"""Re-executes a captured step: starts the training's script, passes the snapshot to its agent, and reads the result."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from reprokit.core.errors import NotRedone, RunError
from reprokit.model.plan import RUN, CapturePlan, Plan, RedoPlan
from reprokit.run.part import Watch
from reprokit.run.parts.plain import NOTHING
from reprokit.run.process import Child, ExitStatus, Termination
from reprokit.run.run import execute
from reprokit.run_files import rundir
from reprokit.run_files.rundir import RunDirectory

MAX_RESULT = 64 << 20
MAX_LINE = 1 << 20
MAX_TRIALS = 100_000
MAX_DEATHS = 3  # processes in a row that may die within a trial
ENDED_BY_USER = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class RedoRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is re-executed, and by which script."""

    mode: str
    snapshot: Path
    command: tuple[str, ...]
    working_directory: Path
    patches: tuple[str, ...] = ()
    seconds: float | None = None  # timeout for the first result


class TrialProgress:
    """Reads trials from a file as the training writes them, and reports each one."""

    def __init__(self, path: Path, report: Callable[[str], object]) -> None:
        self._path = path
        self._report = report
        self._offset = 0
        self.trials: list[dict[str, Any]] = []

    @property
    def finished(self) -> int:
        """Return the number of trials with a known result."""
        return sum("text" in trial for trial in self.trials)

    def __call__(self, child: Child | None = None) -> None:
        """Read new lines; an incomplete last line is left for the next call."""
        with suppress(OSError), open(self._path, "rb", opener=rundir.open_regular) as file:
            file.seek(self._offset)
            while len(self.trials) < MAX_TRIALS:
                line = file.readline(MAX_LINE)
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                self._add_trial(line)

    def _add_trial(self, line: bytes) -> None:
        try:
            trial = json.loads(line)
        except (ValueError, RecursionError):
            return
        if isinstance(trial, dict):
            self.trials.append(trial)
            if isinstance(trial.get("text"), str):
                self._report(trial["text"])


def redo(request: RedoRequest, report: Callable[[str], object]) -> dict[str, Any]:
    """Return the result that the training's agent wrote; raise NotRedone if there is none."""
    directory = Path(tempfile.mkdtemp(prefix="reprokit-redo-"))
    try:
        return _RedoProcesses(request, directory, report).result()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class _RedoProcesses:
    """Runs a request in one process, and starts another whenever a process dies within a trial."""

    def __init__(self, request: RedoRequest, directory: Path, report: Callable[[str], object]) -> None:
        self._request = request
        self._directory = directory
        self._result = directory / "result.json"
        self._progress = TrialProgress(directory / "progress", report)
        self._runs = 0
        self._timed_out = False

    def result(self) -> dict[str, Any]:
        deaths = 0
        while True:
            finished_before = self._progress.finished
            exit_status = self._run()
            result = read_result(self._result)
            if self._timed_out:
                raise NotRedone(f"its first step did not come in {self._request.seconds:g} s; the script was ended")
            _raise_interrupted(exit_status, result)
            if result is not None and not result.get("again"):
                break
            deaths = 0 if self._progress.finished > finished_before else deaths + 1
            if result is None and (not self._progress.trials or deaths > MAX_DEATHS):
                raise NotRedone(self._failure_reason(exit_status))
            if deaths > MAX_DEATHS:
                raise NotRedone("the script comes to no further result, however often it is started again")
        problem = result.get("trouble")
        if problem:
            raise NotRedone(str(problem))
        return result

    def _run(self) -> ExitStatus:
        self._runs += 1
        request = self._request
        self._result.unlink(missing_ok=True)
        plan = Plan(
            mode=RUN,
            command=request.command,
            working_directory=request.working_directory,
            output=self._directory / f"run-{self._runs}",
            trail=NOTHING,
            patches=request.patches,
            capture=CapturePlan(
                redo=RedoPlan(
                    mode=request.mode,
                    snapshot=request.snapshot,
                    result=self._result,
                    progress=self._directory / "progress",
                    trials=tuple(self._progress.trials),
                )
            ),
        )
        exit_status = execute(plan, *self._watches()).ended
        self._progress()
        return exit_status

    def _watches(self) -> list[Watch]:
        """Return watches that report trials, and end a script without any result at the timeout."""
        if self._request.seconds is None:
            return [self._progress]
        import time

        deadline = time.monotonic() + self._request.seconds

        def has_timed_out() -> bool:
            has_result = self._progress.trials or self._result.exists()
            self._timed_out = time.monotonic() > deadline and not has_result
            return self._timed_out

        return [self._progress, Termination(has_timed_out)]

    def _failure_reason(self, status: ExitStatus) -> str:
        if self._progress.trials:
            return f"the script ended {status.words} in the middle of a trial, {MAX_DEATHS + 1} times"
        return (
            f"the script ended {status.words} before its first step came: no gradients were about to be applied,"
            " or no function like the captured one was called;"
            " give the command that trains, as it was when the snapshot was taken"
        )


def _raise_interrupted(exit_status: ExitStatus, result: dict[str, Any] | None) -> None:
    """Raise NotRedone if the user ended the script: it is not started again."""
    by_user = exit_status.signal_number in ENDED_BY_USER or exit_status.exit_code == 128 + signal.SIGINT
    if by_user and (result is None or result.get("again")):
        raise NotRedone("the script was ended before there was a result")


def read_result(path: Path) -> dict[str, Any] | None:
    """Return the content of result.json, written by a user's process; None if there is no file."""
    data = rundir.beginning(path, MAX_RESULT + 1)
    if not path.exists():
        return None
    try:
        result = json.loads(data) if len(data) <= MAX_RESULT else None
    except (ValueError, RecursionError):
        result = None
    if not isinstance(result, dict):
        raise NotRedone("the result that the script left cannot be read")
    return result


def patches_of(snapshot: Path) -> tuple[str, ...]:
    """Return the patches of the snapshot's run: without them the step would compute other bits."""
    run = Path(os.path.realpath(snapshot)).parent.parent
    if not os.path.lexists(run / rundir.RUN):
        return ()
    try:
        patches = RunDirectory(run).run.patches
    except RunError:
        return ()
    return tuple(patch.text for patch in patches)
