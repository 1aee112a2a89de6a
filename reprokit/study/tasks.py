"""Makes a pair of a study as a task of any scheduler: `python -m reprokit.study.tasks DIRECTORY TASK`.

A task may be started any number of times, on any machine that reaches the study's directory, also twice at the same
time. It reads there what to do, locks its pair, and keeps each run that has ended in its report. What was made is not
made again. So a scheduler may retry it, and neither a killed worker nor a killed study loses a run that has ended.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from signal import SIGTERM
from typing import Final

import msgspec

from reprokit.core.errors import CannotBegin, CannotWriteRun, ReprokitError, refused_as
from reprokit.core.messages import warn
from reprokit.run.interruption import Interrupted
from reprokit.run.kernel import end_with_parent
from reprokit.run_files import rundir
from reprokit.study import attempt as attempts
from reprokit.study import pairs, store
from reprokit.study.attempt import PairReport, PairTask, Task
from reprokit.study.engines.local import CODE, Local
from reprokit.study.results import MAX_LINE, MAX_VALUES, PairPlace, PairResult, RunResult
from reprokit.study.store import StudyFile

TASKS: Final = "tasks"  # directory of reports
TRIES: Final = 3  # how often a scheduler starts a task whose worker dies
MAX_REPORT: Final = 2 * MAX_LINE + (1 << 20)  # bytes
MAX_WORDS: Final = 500  # characters of the names of a host and of a worker


class TaskFailed(Exception):
    """A task has ended before its pair was made."""


class StudyTask(msgspec.Struct, frozen=True, kw_only=True):
    """A line that `study tasks` prints."""

    task: str
    setup: str
    pair: int
    command: str  # for a shell, in any directory


# Reports


def report_file(directory: Path, place: PairPlace) -> Path:
    """Return the file that a task keeps its results in until they are gathered."""
    return directory / TASKS / f"{place.name}.json"


def read_report(plan: StudyFile, directory: Path, place: PairPlace) -> PairReport | None:
    """Return the report of a task, as far as it tells of its own pair; None if no task has begun it."""
    file = report_file(directory, place)
    data = rundir.beginning(file, MAX_REPORT + 1)
    if not data and not file.exists():
        return None
    try:
        if len(data) > MAX_REPORT:
            raise ValueError(f"it is larger than {MAX_REPORT} bytes")
        report = msgspec.json.decode(data, type=PairReport, strict=False)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        warn(f"{file} was not used: {error}", "report-not-used")
        return PairReport()
    task = pairs.task_of(plan, directory, place)
    asked = (task.first, task.second)
    if len(report.runs) > len(asked) or not all(map(_is_of, report.runs, asked)):
        warn(f"{file} was not used: it tells of another run", "report-not-used")
        return PairReport()
    runs = [_checked(*both) for both in zip(report.runs, asked, strict=False)]
    is_whole = len(runs) == len(asked) and report.pair is not None and report.pair.place == place
    return PairReport(runs=runs, pair=report.pair if is_whole else None, refused=report.refused)


def _is_of(run: RunResult, task: Task) -> bool:
    """Return whether a result belongs to the run that was asked for, with plausible figures."""
    same = all(getattr(run, name) == getattr(task, name) for name in ("setup", "pair", "part", "mode", "seed"))
    finite = all(math.isfinite(seconds) and seconds >= 0 for seconds in (run.seconds, run.processor))
    return same and finite and all(len(series.values) <= MAX_VALUES for series in run.series)


def _checked(run: RunResult, task: Task) -> RunResult:
    """Return the result within bounds, and with the facts that the study itself knows."""
    own = f"{store.PREDICTIONS}/{store.name_of(task.setup, task.pair, task.part)}.json"
    replace = msgspec.structs.replace
    evaluations = [
        evaluation if evaluation.predictions == own else replace(evaluation, predictions="")
        for evaluation in run.evaluations
    ]
    return replace(
        run,
        together=task.together,
        evaluations=evaluations,
        notes=[note[: attempts.MAX_NOTE] for note in run.notes[: attempts.MAX_NOTES]],
        ended=run.ended[: attempts.MAX_NOTE],
        host=run.host[:MAX_WORDS],
        worker=run.worker[:MAX_WORDS],
    )


class TaskReport:
    """Keeps what has ended of a task in its file; the listener of the engine that makes the pair."""

    def __init__(self, file: Path, made: tuple[RunResult, ...]) -> None:
        self._file, self._report = file, PairReport(runs=list(made))
        self._write()

    def run_ended(self, run: RunResult) -> None:
        """Keep a run."""
        self._report.runs.append(run)
        self._write()

    def pair_ended(self, _task: PairTask, pair: PairResult) -> None:
        """Keep the comparison."""
        self._report.pair = pair
        self._write()

    def _write(self) -> None:
        _write_report(self._file, self._report)


def _write_report(file: Path, report: PairReport) -> None:
    with refused_as(CannotWriteRun, file, "make room, then start the task again"):
        file.parent.mkdir(mode=0o700, exist_ok=True)
        rundir.write_whole(file, attempts.encoded_report(report), synced=True)


# A task


def perform(directory: Path, name: str, worker: str) -> None:
    """Make the runs that a pair lacks, and compare them; raises Interrupted after a signal."""
    plan = store.read_study(directory)
    place = next((place for place in plan.order if place.name == name), None)
    if place is None:
        raise CannotBegin(f"the study in {directory} has no task {name}")
    (directory / store.RUNS).mkdir(mode=0o700, exist_ok=True)
    lock_file = pairs.lock_file(directory, place)
    with pairs.holding(lock_file) as lock:
        if not _is_made(plan, directory, place):
            try:
                _make(plan, directory, place, worker, lock)
            except ReprokitError as error:
                report = read_report(plan, directory, place) or PairReport()
                report.refused = f"{error.slug}: {error}"
                with suppress(ReprokitError):
                    _write_report(report_file(directory, place), report)
                raise
        lock_file.unlink(missing_ok=True)


def _is_made(plan: StudyFile, directory: Path, place: PairPlace) -> bool:
    """Return whether a pair was made: what is gathered is stored before its report is removed."""
    report = read_report(plan, directory, place)
    if report is not None and report.pair is not None:
        return True
    return any(pair.place == place for pair in store.read_pairs(directory))


def _make(plan: StudyFile, directory: Path, place: PairPlace, worker: str, lock: int) -> None:
    report = read_report(plan, directory, place) or PairReport()
    runs = (*store.read_results(directory), *report.runs)
    task = pairs.task_of(plan, directory, place, worker)
    task = pairs.prepared(task, {run.part: run for run in runs if run.place == place}, lock)
    listener = TaskReport(report_file(directory, place), task.made)
    Local(directory, keep_logs=plan.study.keep == "all").make(iter([task]), listener)


def own_name() -> str:
    """Return a name for a worker without one from its scheduler: its job, its container, or this process."""
    job = os.environ.get("SLURM_JOB_ID") or os.environ.get("SUBMITIT_LOCAL_JOB_ID")
    return f"job {job}" if job else os.environ.get("HOSTNAME", "") or f"process {os.getpid()}"


# What schedulers start


def command_of(directory: Path, name: str) -> list[str]:
    """Return the command of a task, for any directory."""
    return [sys.executable, "-m", __name__, str(directory), name]


def work(directory: str, name: str, worker: str, variables: Mapping[str, str] | None = None) -> None:
    """Make the pair of a task by a process that ends with this one; raises TaskFailed with what it said last."""
    code = CODE.format(path=[part for part in sys.path if part], module=__name__)
    words = [sys.executable, "-c", code, directory, name, worker]
    done = subprocess.run(words, check=False, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=variables)
    if done.returncode:
        how = f"by signal {-done.returncode}" if done.returncode < 0 else f"with status {done.returncode}"
        last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][: attempts.MAX_NOTE]
        raise TaskFailed(f"the task ended {how}" + (f": {last}" if last else ""))


def main(arguments: list[str]) -> int:
    """Make the pair of a task; one that is told the name of its worker ends with it."""
    directory, name, *worker = arguments
    if worker:
        parent = os.getppid()
        end_with_parent(SIGTERM)
        if os.getppid() != parent:
            return attempts.INTERRUPTED
    try:
        perform(Path(os.path.realpath(directory)), name, worker[0] if worker else own_name())
    except Interrupted as interrupted:
        return 128 + interrupted.number
    except ReprokitError as error:
        print(f"reprokit: {error.slug}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
