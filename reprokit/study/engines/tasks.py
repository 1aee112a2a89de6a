"""Turns a study into tasks, a pair each, that any scheduler can run, and collects their results."""

from __future__ import annotations

import hashlib
import math
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar
from uuid import uuid4

import msgspec

from reprokit.core.errors import CannotWriteRun, EngineUnusable, ReprokitError, StudyDamaged
from reprokit.run.messages import warn
from reprokit.study import attempt as attempts
from reprokit.study import predictions
from reprokit.study.attempt import PairReport, PairTask, Task
from reprokit.study.engines import shared_store as depots
from reprokit.study.engines import worker
from reprokit.study.engines.engine import PairListener, Stop, continued
from reprokit.study.engines.local import MAX_LOG
from reprokit.study.engines.worker import BEAT, CLAIM, ENDED, ORDER, REPORT, STOP, Claim, JobEnd, Order
from reprokit.study.results import MAX_VALUES, PairResult, RunResult
from reprokit.study.store import LOGS, PREDICTIONS, STUDY, name_of, read_study

JOBS: Final = "jobs"
OF_DIRECTORY: Final = 1.0  # seconds between two signs of life
OF_STORE: Final = 10.0
MAX_SMALL: Final = 1 << 16  # bytes of a claim
MAX_WORDS: Final = 500  # characters that a worker says
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}-\d+-[0-9a-f]{12}")

S = TypeVar("S", bound=msgspec.Struct)


class StudyTask(msgspec.Struct, frozen=True, kw_only=True):
    """A line that `study tasks` prints."""

    task: str
    setup: str
    pair: int
    command: str  # for a shell, in any directory


class TaskCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts tasks that were handed out and have not come back."""

    at_work: int = 0
    not_begun: int = 0


class Desk:
    """Hands out the orders of a study and takes back what came of them.

    The orders that were handed out lie in the study's own directory, so that a later start knows of them.
    """

    def __init__(self, directory: Path, store: str, *, keep_claims: bool = False) -> None:
        self._keep_claims = keep_claims  # somebody might begin a job once more when its results are here already
        self._directory, self._jobs = directory, directory / JOBS
        self.is_apart = bool(store)
        self.place = depots.below(store, _key(directory)) if store else str(self._jobs)
        self._own = depots.opened(str(self._jobs))
        self.depot = depots.opened(self.place)
        self._beat = OF_STORE if depots.is_url(store) else OF_DIRECTORY

    @property
    def silence(self) -> float:
        """The seconds without a heartbeat after which a job counts as dead."""
        return 3 * self._beat

    def read_from(self, source: str) -> None:
        """Read results from a copy of the store, or of this study's part of it."""
        part = depots.below(source, _key(self._directory))
        self.place = source if depots.is_url(source) or not Path(part).is_dir() else part
        self.depot = depots.opened(self.place)

    def order(self, task: PairTask) -> tuple[str, bytes]:
        """Make the name and the order of a pair without handing it out."""
        name = f"{task.name}-{uuid4().hex[:12]}"
        data = worker.encoded(Order(pair=task, apart=self.is_apart, beat=self._beat))
        self._own.put(f"{name}.{ORDER}", data)
        return name, data

    def hand_out(self, task: PairTask) -> str:
        """Put the order of a pair where its worker looks for it."""
        name, data = self.order(task)
        if self.is_apart:
            self.depot.put(f"{name}.{ORDER}", data)
        return name

    def names(self) -> list[str]:
        """Return the names of the jobs that were handed out and not collected, the oldest first."""
        suffix = f".{ORDER}"
        with suppress(FileNotFoundError), os.scandir(self._jobs) as entries:
            times_and_names = [
                (entry.stat().st_mtime_ns, entry.name.removesuffix(suffix))
                for entry in entries
                if entry.name.endswith(suffix)
            ]
            return [name for _, name in sorted(times_and_names) if _NAME.fullmatch(name)]
        return []

    def pairs_out(self) -> Collection[tuple[str, int]]:
        """Return setup and number of each pair that was handed out and not collected."""
        return {(task.first.setup, task.first.pair) for task in map(self.task, self.names())}

    def require_none_out(self, words: str) -> None:
        """Refuse to execute pairs that a handed-out task may be executing."""
        count = len(self.names())
        if count:
            raise EngineUnusable(f"{count} pairs of {words}")

    def task(self, name: str) -> PairTask:
        """Return the pair of a job that was handed out."""
        data = self._own.get(f"{name}.{ORDER}", worker.MAX_ORDER) or b""
        try:
            return msgspec.json.decode(data, type=Order, strict=False).pair
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise StudyDamaged(f"{self._jobs / name}.{ORDER}: {error}; remove it") from None

    def tell(self, name: str, command: bytes) -> None:
        """Write a command for a job: to end, or not to begin."""
        with suppress(ReprokitError):
            self.depot.put(f"{name}.{STOP}", command)

    def claim(self, name: str) -> Claim | None:
        """Return the claim of the worker that has begun a job."""
        return _read(self.depot.get(f"{name}.{CLAIM}", MAX_SMALL), Claim)

    def ended(self, name: str) -> JobEnd | None:
        """Return the end report of a job."""
        return _read(self.depot.get(f"{name}.{ENDED}", MAX_SMALL), JobEnd)

    def beat(self, name: str) -> bytes | None:
        """Return the last heartbeat of a job."""
        return self.depot.get(f"{name}.{BEAT}", 100)

    def report(self, name: str, task: PairTask) -> PairReport:
        """Return the results of a job so far, as far as they answer its order."""
        data = self.depot.get(f"{name}.{REPORT}", worker.MAX_REPORT) or b""
        if len(data) > worker.MAX_REPORT:
            warn(f"{name}: its report is larger than {worker.MAX_REPORT} bytes, and was not read")
            return PairReport()
        reported = _read(data, PairReport) or PairReport()
        parts = [task.first, task.second] if task.made is None else [task.second]
        runs = [
            _checked(run, run_task)
            for run, run_task in zip(reported.runs, parts, strict=False)
            if _is_of(run, run_task)
        ]
        if len(runs) != len(reported.runs):
            warn(f"{name}: its report tells of another run, and was not used")
            return PairReport(runs=runs[:0])
        is_whole = len(runs) == len(parts) and reported.pair is not None
        pair = reported.pair if is_whole and _names(reported.pair) == (task.first.setup, task.first.pair) else None
        return PairReport(runs=runs, pair=pair)

    def fetch(self, name: str, run: RunResult) -> None:
        """Fetch the predictions and the log of a run."""
        if not self.is_apart:
            return
        of_run = name_of(run.setup, run.pair, run.part)
        for folder, file, limit in (
            (PREDICTIONS, f"{of_run}.json", predictions.MAX_FILE),
            (LOGS, f"{of_run}.log", MAX_LOG),
        ):
            data = self.depot.get(f"{name}.{file}", limit)
            if data is None:
                continue
            if len(data) > limit:
                warn(f"{name}.{file} is larger than {limit} bytes, and was left where it is")
                continue
            try:
                (self._directory / folder).mkdir(mode=0o700, exist_ok=True)
                depots.opened(str(self._directory / folder)).put(file, data)
            except (OSError, ReprokitError) as error:
                raise CannotWriteRun(f"{self._directory / folder}: {error}; make room, then start it again") from None

    def forget(self, name: str) -> None:
        """Remove all files of a job."""
        with suppress(StudyDamaged):
            task = self.task(name)
            for run_task in (task.first, task.second):
                of_run = name_of(run_task.setup, run_task.pair, run_task.part)
                for kind in (".json", ".log") if self.is_apart else ():
                    self.depot.remove(f"{name}.{of_run}{kind}")
        for suffix in worker.ALL:
            if suffix != CLAIM or not self._keep_claims:
                self.depot.remove(f"{name}.{suffix}")
        self._own.remove(f"{name}.{ORDER}")

    # What came of a job

    def take_back(self, name: str, listener: PairListener, lost: str) -> PairTask | None:
        """Hand on all that came of a job, and return the pair where a run of it is still to be made.

        `lost` says how what it began came to no end, or nothing where that is no result.
        """
        task = self.task(name)
        report = self.report(name, task)
        try:
            return self._told(name, task, report, listener, lost)
        finally:
            self.forget(name)

    def _told(
        self, name: str, task: PairTask, report: PairReport, listener: PairListener, lost: str
    ) -> PairTask | None:
        runs = list(report.runs)
        if lost and report.pair is None and len(runs) + (task.made is not None) < 2:
            runs.append(attempts.lost(task.second if runs or task.made else task.first, lost))
        stop: Stop | None = None
        for run in runs:
            self.fetch(name, run)
            try:
                listener.run_ended(run)
            except Stop as asked:
                stop = asked
        ended_runs = [*([task.made] if task.made is not None else []), *runs]
        rest = continued(task, ended_runs, listener, report.pair)
        if stop is not None:
            raise stop
        return rest


def handed_out(desk: Desk, pairs: Iterable[PairTask]) -> Iterator[StudyTask]:
    """Yield the tasks that nobody has begun: those of earlier calls, then the given pairs."""
    for name in desk.names():
        if desk.claim(name) is None:
            yield _line(desk, name, desk.task(name))
    for pair in pairs:
        yield _line(desk, desk.hand_out(pair), pair)


def _line(desk: Desk, name: str, pair: PairTask) -> StudyTask:
    command = shlex.join([sys.executable, "-m", worker.__name__, desk.place, name])
    return StudyTask(task=name, setup=pair.first.setup, pair=pair.first.pair, command=command)


def collect(desk: Desk, listener: PairListener, *, is_over: bool) -> TaskCounts:
    """Take back what was done so far, in whichever order.

    Where nothing is at work any more, what has begun and not ended is lost, and what has not begun is forgotten.
    """
    at_work = not_begun = 0
    for name in desk.names():
        claim, ended = desk.claim(name), desk.ended(name)
        if claim is None:
            not_begun += not is_over
            if is_over:
                desk.forget(name)
        elif ended is None and not is_over:
            at_work += 1
        else:
            # A run whose other one was lost is handed out with the next tasks.
            desk.take_back(name, listener, lost_words(claim, ended, "the study's tasks are over"))
    return TaskCounts(at_work=at_work, not_begun=not_begun)


def lost_words(claim: Claim, ended: JobEnd | None, words: str) -> str:
    """Return the message about a run that has not ended."""
    if ended is not None:
        return _text(ended.words) or "it has ended without a word"
    who = f"worker {_text(claim.worker)} on {_text(claim.host)} died"
    return f"{who} ({_text(words)})" if words else who


def _text(words: str) -> str:
    return " ".join(words.split())[:MAX_WORDS]


def _key(directory: Path) -> str:
    """Return the prefix of this study's keys in a store."""
    digest = hashlib.sha256((directory / STUDY).read_bytes()).hexdigest()
    return f"{read_study(directory).study.name}-{digest[:16]}"


def _read(data: bytes | None, kind: type[S]) -> S | None:
    if not data:
        return None
    try:
        return msgspec.json.decode(data, type=kind, strict=False)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _names(pair: PairResult | None) -> tuple[str, int] | None:
    return None if pair is None else (pair.setup, pair.pair)


def _is_of(run: RunResult, task: Task) -> bool:
    """Return whether a result belongs to the run that was asked for, with plausible figures."""
    same = all(getattr(run, name) == getattr(task, name) for name in ("setup", "pair", "part", "mode", "seed"))
    finite = all(math.isfinite(seconds) and seconds >= 0 for seconds in (run.seconds, run.processor))
    return same and finite and all(len(series.values) <= MAX_VALUES for series in run.series)


def _checked(run: RunResult, task: Task) -> RunResult:
    """Return the result without the facts that only this machine can know."""
    own = f"{PREDICTIONS}/{name_of(task.setup, task.pair, task.part)}.json"
    replace = msgspec.structs.replace
    evaluations = [
        evaluation if evaluation.predictions == own else replace(evaluation, predictions="")
        for evaluation in run.evaluations
    ]
    notes = [note[: attempts.MAX_NOTE] for note in run.notes[: attempts.MAX_NOTES]]
    ended, host = run.ended[: attempts.MAX_NOTE], run.host[:MAX_WORDS]
    worker = run.worker[:MAX_WORDS]
    return replace(
        run, together=task.together, evaluations=evaluations, notes=notes, ended=ended, host=host, worker=worker
    )
