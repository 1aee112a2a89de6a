"""Has a training do a captured step again: starts the script, hands the snapshot to its agent, and reads the result."""

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

from reprokit import rundir
from reprokit.errors import NotRedone, RunError
from reprokit.launch.plain_run import NOTHING
from reprokit.launch.process import Child, ExitStatus, Termination
from reprokit.launch.run import Watch, execute
from reprokit.plan import RUN, CapturePlan, Plan, RedoPlan
from reprokit.rundir import RunDirectory

MAX_RESULT = 64 << 20
MAX_LINE = 1 << 20
MAX_TRIALS = 100_000
MAX_DEATHS = 3  # processes that may end in the middle of a trial one after the other
ENDED_BY_USER = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class RedoRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done again, and by which script."""

    mode: str
    snapshot: Path
    command: tuple[str, ...]
    working_directory: Path
    patches: tuple[str, ...] = ()
    seconds: float | None = None  # in which the first result must come


class TrialProgress:
    """Reads the trials as the training writes them, and tells of each."""

    def __init__(self, path: Path, told: Callable[[str], object]) -> None:
        self._path = path
        self._told = told
        self._read = 0
        self.trials: list[dict[str, Any]] = []

    @property
    def finished(self) -> int:
        """Trials whose outcome is known."""
        return sum("text" in trial for trial in self.trials)

    def __call__(self, child: Child | None = None) -> None:
        """Look for new lines; one that is not whole yet waits."""
        with suppress(OSError), open(self._path, "rb", opener=rundir.open_regular) as file:
            file.seek(self._read)
            while len(self.trials) < MAX_TRIALS:
                line = file.readline(MAX_LINE)
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            trial = json.loads(line)
        except (ValueError, RecursionError):
            return
        if isinstance(trial, dict):
            self.trials.append(trial)
            if isinstance(trial.get("text"), str):
                self._told(trial["text"])


def redo(asked: RedoRequest, told: Callable[[str], object]) -> dict[str, Any]:
    """Return the result that the training's agent wrote; raises NotRedone where there is none."""
    directory = Path(tempfile.mkdtemp(prefix="reprokit-redo-"))
    try:
        return _RedoProcesses(asked, directory, told).result()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class _RedoProcesses:
    """The processes of one request: mostly one, and another for what a process did not survive."""

    def __init__(self, asked: RedoRequest, directory: Path, told: Callable[[str], object]) -> None:
        self._asked = asked
        self._directory = directory
        self._result = directory / "result.json"
        self._progress = TrialProgress(directory / "progress", told)
        self._runs = 0
        self._is_late = False

    def result(self) -> dict[str, Any]:
        deaths = 0
        while True:
            before = self._progress.finished
            ended = self._run()
            found = read_result(self._result)
            if self._is_late:
                raise NotRedone(f"its first step did not come in {self._asked.seconds:g} s; the script was ended")
            _raise_interrupted(ended, found)
            if found is not None and not found.get("again"):
                break
            deaths = 0 if self._progress.finished > before else deaths + 1
            if found is None and (not self._progress.trials or deaths > MAX_DEATHS):
                raise NotRedone(self._why(ended))
            if deaths > MAX_DEATHS:
                raise NotRedone("the script comes to no further result, however often it is started again")
        trouble = found.get("trouble")
        if trouble:
            raise NotRedone(str(trouble))
        return found

    def _run(self) -> ExitStatus:
        self._runs += 1
        asked = self._asked
        self._result.unlink(missing_ok=True)
        plan = Plan(
            mode=RUN,
            command=asked.command,
            working_directory=asked.working_directory,
            output=self._directory / f"run-{self._runs}",
            trail=NOTHING,
            patches=asked.patches,
            capture=CapturePlan(
                redo=RedoPlan(
                    mode=asked.mode,
                    snapshot=asked.snapshot,
                    result=self._result,
                    progress=self._directory / "progress",
                    trials=tuple(self._progress.trials),
                )
            ),
        )
        ended = execute(plan, *self._watches()).ended
        self._progress()
        return ended

    def _watches(self) -> list[Watch]:
        """Tell of the trials, and end a script that comes to nothing in the time that it has."""
        if self._asked.seconds is None:
            return [self._progress]
        import time

        deadline = time.monotonic() + self._asked.seconds

        def is_late() -> bool:
            came = self._progress.trials or self._result.exists()
            self._is_late = time.monotonic() > deadline and not came
            return self._is_late

        return [self._progress, Termination(is_late)]

    def _why(self, ended: ExitStatus) -> str:
        if self._progress.trials:
            return f"the script ended {ended.words} in the middle of a trial, {MAX_DEATHS + 1} times"
        return (
            f"the script ended {ended.words} before its first step came: no optimizer was about to apply gradients;"
            " give the command that trains, as it was when the snapshot was taken"
        )


def _raise_interrupted(ended: ExitStatus, found: dict[str, Any] | None) -> None:
    """A script that the user ended is not started again."""
    by_user = ended.signal_number in ENDED_BY_USER or ended.exit_code == 128 + signal.SIGINT
    if by_user and (found is None or found.get("again")):
        raise NotRedone("the script was ended before there was a result")


def read_result(path: Path) -> dict[str, Any] | None:
    """Return result.json, which a process of the user's wrote; None where there is none."""
    data = rundir.beginning(path, MAX_RESULT + 1)
    if not path.exists():
        return None
    try:
        found = json.loads(data) if len(data) <= MAX_RESULT else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise NotRedone("the result that the script left cannot be read")
    return found


def patches_of(snapshot: Path) -> tuple[str, ...]:
    """Return the patches of the run that the snapshot lies in: without them the step would come to other bits."""
    run = Path(os.path.realpath(snapshot)).parent.parent
    if not os.path.lexists(run / rundir.RUN):
        return ()
    try:
        patches = RunDirectory(run).run.patches
    except RunError:
        return ()
    return tuple(patch.text for patch in patches)
