"""The tasks of a study, a pair each, that any scheduler can run: an order for each, and what came of it so far."""

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

from reprokit.errors import CannotWriteRun, EngineUnusable, ReprokitError, StudyDamaged
from reprokit.launch.messages import warn
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
    """A line of `study tasks`."""

    task: str
    setup: str
    pair: int
    command: str  # for a shell, in any directory


class Outstanding(msgspec.Struct, frozen=True, kw_only=True):
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
        """Seconds without a sign of life that are longer than usual."""
        return 3 * self._beat

    def read_from(self, source: str) -> None:
        """Take results from a copy of the store, or of the study's part of it."""
        part = depots.below(source, _key(self._directory))
        self.place = source if depots.is_url(source) or not Path(part).is_dir() else part
        self.depot = depots.opened(self.place)

    def order(self, task: PairTask) -> tuple[str, bytes]:
        """Return a name and the order for a pair; nobody has it yet."""
        name = f"{task.name}-{uuid4().hex[:12]}"
        data = worker.encoded(Order(pair=task, apart=self.is_apart, beat=self._beat))
        self._own.put(f"{name}.{ORDER}", data)
        return name, data

    def hand_out(self, task: PairTask) -> str:
        """Put the order for a pair where its worker will look for it."""
        name, data = self.order(task)
        if self.is_apart:
            self.depot.put(f"{name}.{ORDER}", data)
        return name

    def names(self) -> list[str]:
        """Jobs that were handed out and not taken back, the oldest first."""
        suffix = f".{ORDER}"
        with suppress(FileNotFoundError), os.scandir(self._jobs) as entries:
            found = [
                (entry.stat().st_mtime_ns, entry.name.removesuffix(suffix))
                for entry in entries
                if entry.name.endswith(suffix)
            ]
            return [name for _, name in sorted(found) if _NAME.fullmatch(name)]
        return []

    def pairs_out(self) -> Collection[tuple[str, int]]:
        """Setup and number of each pair that was handed out and has not come back."""
        return {(task.first.setup, task.first.pair) for task in map(self.task, self.names())}

    def require_none_out(self, words: str) -> None:
        """Refuse to make pairs that somebody else may be making."""
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

    def tell(self, name: str, what: bytes) -> None:
        """Ask a job to end, or not to begin."""
        with suppress(ReprokitError):
            self.depot.put(f"{name}.{STOP}", what)

    def claim(self, name: str) -> Claim | None:
        """Return who has begun a job."""
        return _read(self.depot.get(f"{name}.{CLAIM}", MAX_SMALL), Claim)

    def ended(self, name: str) -> JobEnd | None:
        """Return what a job said at its end."""
        return _read(self.depot.get(f"{name}.{ENDED}", MAX_SMALL), JobEnd)

    def beat(self, name: str) -> bytes | None:
        """Return the last sign of life."""
        return self.depot.get(f"{name}.{BEAT}", 100)

    def report(self, name: str, task: PairTask) -> PairReport:
        """Return what came of a job so far, as far as it is an answer to its order."""
        data = self.depot.get(f"{name}.{REPORT}", worker.MAX_REPORT) or b""
        if len(data) > worker.MAX_REPORT:
            warn(f"{name}: its report is larger than {worker.MAX_REPORT} bytes, and was not read")
            return PairReport()
        found = _read(data, PairReport) or PairReport()
        parts = [task.first, task.second] if task.made is None else [task.second]
        runs = [_checked(run, one) for run, one in zip(found.runs, parts, strict=False) if _is_of(run, one)]
        if len(runs) != len(found.runs):
            warn(f"{name}: its report tells of another run, and was not used")
            return PairReport(runs=runs[:0])
        is_whole = len(runs) == len(parts) and found.pair is not None
        pair = found.pair if is_whole and _names(found.pair) == (task.first.setup, task.first.pair) else None
        return PairReport(runs=runs, pair=pair)

    def fetch(self, name: str, run: RunResult) -> None:
        """Bring here what a run predicted and printed."""
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
        """Remove all of a job."""
        with suppress(StudyDamaged):
            task = self.task(name)
            for one in (task.first, task.second):
                of_run = name_of(one.setup, one.pair, one.part)
                for kind in (".json", ".log") if self.is_apart else ():
                    self.depot.remove(f"{name}.{of_run}{kind}")
        for what in worker.ALL:
            if what != CLAIM or not self._keep_claims:
                self.depot.remove(f"{name}.{what}")
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
        made = [*([task.made] if task.made is not None else []), *runs]
        rest = continued(task, made, listener, report.pair)
        if stop is not None:
            raise stop
        return rest


def handed_out(desk: Desk, pairs: Iterable[PairTask]) -> Iterator[StudyTask]:
    """Yield the tasks that nobody has begun: those of before, and these."""
    for name in desk.names():
        if desk.claim(name) is None:
            yield _line(desk, name, desk.task(name))
    for pair in pairs:
        yield _line(desk, desk.hand_out(pair), pair)


def _line(desk: Desk, name: str, pair: PairTask) -> StudyTask:
    command = shlex.join([sys.executable, "-m", worker.__name__, desk.place, name])
    return StudyTask(task=name, setup=pair.first.setup, pair=pair.first.pair, command=command)


def collect(desk: Desk, listener: PairListener, *, is_over: bool) -> Outstanding:
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
    return Outstanding(at_work=at_work, not_begun=not_begun)


def lost_words(claim: Claim, ended: JobEnd | None, words: str) -> str:
    """Return what is said of a run that has not come to its end."""
    if ended is not None:
        return _text(ended.words) or "it has ended without a word"
    who = f"worker {_text(claim.worker)} on {_text(claim.host)} died"
    return f"{who} ({_text(words)})" if words else who


def _text(words: str) -> str:
    return " ".join(words.split())[:MAX_WORDS]


def _key(directory: Path) -> str:
    """Return what the place of this study inside of a store is called."""
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
    """Return whether a result is one of the run that was asked for, with figures that can be."""
    same = (run.setup, run.pair, run.part, run.mode, run.seed) == (
        task.setup,
        task.pair,
        task.part,
        task.mode,
        task.seed,
    )
    finite = all(math.isfinite(one) and one >= 0 for one in (run.seconds, run.processor))
    return same and finite and all(len(series.values) <= MAX_VALUES for series in run.series)


def _checked(run: RunResult, task: Task) -> RunResult:
    """Return the result, with nothing that only this side can know."""
    own = f"{PREDICTIONS}/{name_of(task.setup, task.pair, task.part)}.json"
    replace = msgspec.structs.replace
    evaluations = [one if one.predictions == own else replace(one, predictions="") for one in run.evaluations]
    notes = [note[: attempts.MAX_NOTE] for note in run.notes[: attempts.MAX_NOTES]]
    ended, host = run.ended[: attempts.MAX_NOTE], run.host[:MAX_WORDS]
    worker = run.worker[:MAX_WORDS]
    return replace(
        run, together=task.together, evaluations=evaluations, notes=notes, ended=ended, host=host, worker=worker
    )
