"""Runs a study: plans it, resumes it where it stopped, and stores a line per ended run and pair."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Final

import msgspec

from reprokit.core.errors import (
    BadStudy,
    CannotBegin,
    CannotWriteRun,
    LaunchError,
    StudyChanged,
    StudyInProgress,
    StudyTooLarge,
)
from reprokit.core.messages import say, warn
from reprokit.core.printable import printable
from reprokit.core.version import VERSION
from reprokit.run import command as commands
from reprokit.run import environment, host
from reprokit.run.rundirectory import home
from reprokit.run_files import rundir
from reprokit.run_files.home import home_of
from reprokit.study import attempt, description, engines, store
from reprokit.study.attempt import PairReport, PairTask
from reprokit.study.description import LocatedStudy, Study, differences
from reprokit.study.engines.local import Local, Stop, continued
from reprokit.study.pairs import (
    directory_of,
    holding,
    is_gone,
    is_locked,
    lock_file,
    locked,
    prepared,
    run_directory,
    task_of,
)
from reprokit.study.results import PairPlace, PairResult, RunResult, encode
from reprokit.study.store import StudyFile
from reprokit.study.tasks import StudyTask, command_of, read_report, report_file
from reprokit.study.wording import size

PATIENCE: Final = 20.0  # seconds that a start waits for the last run of a killed one
LATE: Final = 2.0  # seconds by which what a task that died has left may come to be seen
SILENCE: Final = 30.0  # and what one has left that ended well
SPARE = 16 << 20  # bytes of the disk that stay free
SHOWN = 200  # characters of the reason why a run failed


class StudyState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a study."""

    directory: Path
    failed: int  # number of failed runs
    made: int
    total: int
    stopped: bool = False


class TaskCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the pairs of which not all has been gathered."""

    at_work: int = 0
    interrupted: int = 0
    not_begun: int = 0


def place_for(name: str, output: Path | None) -> Path:
    """Return the directory of a study."""
    return Path(os.path.realpath(output if output is not None else home_of(Path()) / "studies" / name))


def run(described: LocatedStudy, directory: Path, source: Path, *, stop_on_failure: bool = False) -> StudyState:
    """Execute the missing runs of a study; raises Interrupted after a signal."""
    study = described.study
    engines.check(study.engine)
    if study.engine.kind == engines.LOCAL:
        _check_commands(described)
    _make(directory)
    with holding(directory / store.LOCK, PATIENCE):
        plan = _study_file(described, directory, source)
        running = _RunningStudy(plan, directory, stop_on_failure=stop_on_failure)
        stopped = False
        try:
            running.say_plan()
            running.collect()
            if study.engine.kind == engines.LOCAL:
                local = Local(directory, study.engine.parallel, keep_logs=study.keep == "all")
                local.make(running.pairs(), running)
            else:
                engines.make(study.engine, running)
        except Stop as stop:
            if stop.error is not None:
                raise stop.error from None
            stopped = True
        finally:
            running.close()
        return running.done(stopped=stopped)


def tasks(described: LocatedStudy, directory: Path, source: Path) -> list[StudyTask]:
    """Return the missing pairs of a study as tasks for any scheduler, without those that are at work."""
    _make(directory)
    with holding(directory / store.LOCK, PATIENCE):
        running = _RunningStudy(_study_file(described, directory, source), directory, stop_on_failure=False)
        running.collect()
        try:
            return [_line(directory, place) for place in running.places() if not is_locked(lock_file(directory, place))]
        except Stop as stop:
            raise stop.error or BadStudy(str(stop)) from None


def _line(directory: Path, place: PairPlace) -> StudyTask:
    command = shlex.join(command_of(directory, place.name))
    return StudyTask(task=place.name, setup=place.setup, pair=place.pair, command=command)


def collect(directory: Path, *, is_over: bool = False) -> tuple[StudyState, TaskCounts]:
    """Collect the results of a study's tasks; also returns the counts of outstanding ones."""
    directory = Path(os.path.realpath(directory))
    plan = store.read_study(directory)
    with holding(directory / store.LOCK, PATIENCE):
        running = _RunningStudy(plan, directory, stop_on_failure=False)
        outstanding = running.collect(is_over=is_over)
        return running.done(stopped=False), outstanding


def _check_commands(described: LocatedStudy) -> None:
    """Raise BadStudy if a program of the study does not exist, instead of recording failed runs."""
    study, own = described.study, environment.inherited()
    for setup in study.setup:
        words, variables = study.command_of(setup), {**own, **study.variables, **setup.variables}
        try:
            commands.resolve(words, variables.get("PATH"), directory_of(study, setup, described.base))
        except LaunchError as error:
            raise BadStudy(f"setup {setup.name}: {error}") from None


def _make(directory: Path) -> None:
    """Make the directory, private to the user, and below .reprokit ignored by version control."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if home_of(Path()) in directory.parents:
            home(Path())
        names = {entry.name for entry in os.scandir(directory)} - {store.LOCK}
    except OSError as error:
        raise CannotWriteRun(f"{directory}: {error.strerror}; choose another directory with -o") from None
    if names and store.STUDY not in names and not names <= {f"{store.STUDY}.partial"}:
        raise BadStudy(f"{directory} is not empty and holds no study; choose another directory with -o")


def _study_file(described: LocatedStudy, directory: Path, source: Path) -> StudyFile:
    """Return the existing study.json of this study, or write a new one."""
    if not (directory / store.STUDY).exists():
        study = StudyFile(
            reprokit=VERSION,
            study=described.study,
            base=str(described.base),
            source=str(source),
            digest=described.digest,
            started=rundir.utc_now(),
            host=_host(),
            order=description.planned(described.study),
        )
        store.write_study(directory, study)
        return study
    before = store.read_study(directory)
    changed = list(differences(before.study, described.study))
    if before.base != str(described.base):
        changed.append("the directory that the study file lies in")
    if changed:
        what = f"was begun with other values of {', '.join(changed)}"
        raise StudyChanged(f"the study in {directory} {what}; put them back, or begin another with -o")
    return before


def _host() -> dict[str, object]:
    """Return the facts about the machine that times depend on."""
    cpu = host.cpu_facts()
    return {
        "name": os.uname().nodename,
        **host.system_facts(),
        "processor": cpu["model"],
        "processors": cpu["usable"],
        "memory": host.memory(),
        "gpus": host.gpu_facts(Path(os.curdir)),
    }


class _RunningStudy:
    """The state of a study in progress; an engine's listener."""

    def __init__(self, plan: StudyFile, directory: Path, *, stop_on_failure: bool) -> None:
        self._plan, self._study, self.directory = plan, plan.study, directory
        self._locks: dict[PairPlace, int] = {}  # of the pairs that are made here
        self._stop = stop_on_failure
        self._results = {(result.place, result.part): result for result in store.read_results(directory)}
        self._pairs = {result.place: result for result in store.read_pairs(directory)}
        self._coming = [place for place in plan.order if place not in self._pairs]
        self._room = DiskSpace(self._study, directory)
        counted = [result for result in self._results.values() if self._counts(result)]
        planned = Counter({setup.name: self._study.runs for setup in self._study.setup})
        self._progress = StudyProgress(planned, counted, self._study.engine.parallel, say)
        for result in self._results.values():
            self._room.add(result)
        for pair in self._pairs.values():
            self._room.add_pair(pair)
        self._said_room = False
        self._said: set[tuple[str, str]] = set()  # notes, by setup: each is said once

    def _counts(self, run: RunResult) -> bool:
        """Return whether a result need not be produced again."""
        is_half = run.place not in self._pairs and (run.place, "second") not in self._results
        return not (is_half and is_gone(self.directory, run))

    def say_plan(self) -> None:
        """Report the plan."""
        study, progress = self._study, self._progress
        what = f"study {study.name}: {progress.total} runs, {study.runs} of each of {len(study.setup)} setups"
        say(f"{what}, in {self.directory}" + (f"; {progress.made} are made" if progress.made else ""))
        if study.engine.parallel > 1:
            warn(f"{study.engine.parallel} runs at the same time: their times are marked as not comparable", "parallel")

    # What is to be made

    def places(self) -> Iterator[PairPlace]:
        """Yield the remaining pairs; each is checked for disk space only when its turn comes."""
        (self.directory / store.RUNS).mkdir(mode=0o700, exist_ok=True)
        self._tidy()
        for place in list(self._coming):
            try:
                self._room.check(place.setup for place in self._coming)
            except StudyTooLarge as error:
                raise Stop(error) from None
            yield place

    def pairs(self) -> Iterator[PairTask]:
        """Yield the remaining pairs, locked, with what is known of their runs."""
        for place in self.places():
            try:
                self._locks[place] = locked(lock_file(self.directory, place), PATIENCE)
            except StudyInProgress as error:
                raise Stop(error) from None
            report = read_report(self._plan, self.directory, place) or PairReport()
            if report.pair is not None:  # a task has made it meanwhile
                self._take(place, report)
                continue
            stop = self._add(report.runs)
            if stop is not None:
                raise stop
            stored = (self._results.get((place, part)) for part in ("first", "second"))
            known = {run.part: run for run in stored if run is not None}
            yield prepared(self._task(place), known, self._locks[place])

    def _tidy(self) -> None:
        """Remove the directories of pairs that were compared just before the study was killed."""
        for place in self._plan.order:
            result = self._pairs.get(place)
            if result is not None:
                attempt.tidy(self._task(place), result)
                lock_file(self.directory, place).unlink(missing_ok=True)

    def _task(self, place: PairPlace) -> PairTask:
        return task_of(self._plan, self.directory, place)

    def close(self) -> None:
        """Release the pairs that were not made to their end."""
        for descriptor in self._locks.values():
            os.close(descriptor)

    # What came of tasks

    def collect(self, *, is_over: bool = False) -> TaskCounts:
        """Store the results of tasks that have ended; what was begun is lost where nothing is at work any more."""
        counts: Counter[str] = Counter()
        for place in list(self._coming):
            report = read_report(self._plan, self.directory, place)
            if report is not None and report.pair is not None:
                self._take(place, report)
            elif is_locked(lock_file(self.directory, place)):
                counts["at_work"] += 1
            elif report is not None and is_over:
                self._take(place, report, report.refused or "its task did not end, and no task is at work any more")
            else:
                counts["not_begun" if report is None else "interrupted"] += 1
        return TaskCounts(**counts)

    def settle(self, place: PairPlace, words: str, since: float) -> bool | None:
        """Store what came of a task that ended so many seconds ago: whether a run of it is still to be made.

        None while that cannot be seen yet: a shared directory may show it late, and its last run may be ending.
        """
        report = read_report(self._plan, self.directory, place)
        if report is not None and report.pair is not None:
            return self._take(place, report)
        if since < (LATE if words else SILENCE) or is_locked(lock_file(self.directory, place)):
            return None
        if report is None or report.refused:
            words = report.refused if report is not None else words
            raise Stop(CannotBegin(words or f"{place.name} has ended before it began"))
        return self._take(place, report, words or "its task ended without a word")

    def _take(self, place: PairPlace, report: PairReport, lost: str = "") -> bool:
        """Store the results of a task, and count its unfinished run as lost; return whether one is still to be made."""
        task, runs = self._task(place), list(report.runs)
        if report.pair is None and len(runs) < 2:
            runs.append(attempt.lost(task.second if runs else task.first, lost))
        stop = self._add(runs)
        rest = continued(task, runs, self, report.pair)
        if rest is not None:
            report_file(self.directory, place).unlink(missing_ok=True)
        if stop is not None:
            raise stop
        return rest is not None

    def _add(self, runs: Iterable[RunResult]) -> Stop | None:
        """Store those of these results that are new, all of them; return what should stop the study."""
        stop: Stop | None = None
        for run in runs:
            before = self._results.get((run.place, run.part))
            if before is None or encode(before) != encode(run):
                try:
                    self.run_ended(run)
                except Stop as asked:
                    stop = asked
        return stop

    # Results

    def run_ended(self, run: RunResult) -> None:
        """Store the line of a run, and report its result."""
        store.add_result(self.directory, run)
        self._results[run.place, run.part] = run
        self._room.add(run, rundir.size_of(run_directory(self.directory, run.setup, run.pair, run.part)))
        self._progress.run_ended(run)
        for note in run.notes:
            if (run.setup, note) not in self._said:
                self._said.add((run.setup, note))
                warn(f"{run.setup}, pair {run.pair}, {run.part} run: {note}", "run-note")
        if run.outcome != "finished":
            name = store.name_of(run.setup, run.pair, run.part)
            if (self.directory / store.LOGS / f"{name}.log").exists():
                warn(f"it printed what is in {self.directory / store.LOGS / name}.log", "run-failed")
            if self._stop:
                raise Stop

    def pair_ended(self, _task: PairTask, pair: PairResult) -> None:
        """Store the line of a pair, and report its result."""
        store.add_pair(self.directory, pair)
        self._pairs[pair.place] = pair
        place = pair.place
        self._coming.remove(place)
        report_file(self.directory, place).unlink(missing_ok=True)
        lock_file(self.directory, place).unlink(missing_ok=True)
        if place in self._locks:
            os.close(self._locks.pop(place))
        self._room.add_pair(pair)
        self._progress.pair_ended(pair)
        self._say_room()

    def _say_room(self) -> None:
        """Report after the first round how much disk space and time the rest will take."""
        is_first_round = any(place.pair == 1 for place in self._coming)
        if self._said_room or is_first_round or not self._coming:
            return
        self._said_room = True
        needed, free = self._room.needed(place.setup for place in self._coming), self._room.free()
        left = self._progress.left()
        took = f", and about {in_time(left)}" if left is not None else ""
        say(f"what is left needs about {size(needed)} of {size(free)} that are free{took}")

    def done(self, *, stopped: bool) -> StudyState:
        """Return the state of the study."""
        failed = sum(result.outcome != "finished" for result in self._results.values())
        progress = self._progress
        return StudyState(
            directory=self.directory, failed=failed, made=progress.made, total=progress.total, stopped=stopped
        )


def how_to_go_on(words: list[str]) -> str:
    """Return the command that resumes an interrupted study."""
    return shlex.join(["reprokit", *words])


class StudyProgress:
    """Counts the runs of a study and estimates the remaining time."""

    def __init__(
        self,
        planned: Counter[str],
        made: Iterable[RunResult],
        parallel: int,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._left = Counter(planned)
        self.total = sum(planned.values())  # number of planned runs
        self._seconds: dict[str, list[float]] = {}
        self._parallel, self._say, self._clock = parallel, say, clock
        for one in made:
            self._count(one)
        self._began, self._spent = clock(), 0.0

    @property
    def made(self) -> int:
        """Return the number of ended runs."""
        return self.total - sum(self._left.values())

    def _count(self, run: RunResult) -> None:
        if self._left[run.setup] > 0:
            self._left[run.setup] -= 1
        if run.outcome != "lost" and run.seconds:
            self._seconds.setdefault(run.setup, []).append(run.seconds)

    def run_ended(self, run: RunResult) -> None:
        """Report the result of a run in one line."""
        self._count(run)
        self._spent += run.seconds
        how = f"{in_time(run.seconds)}" if run.outcome == "finished" else f"{run.outcome.upper()}, {run.ended}"
        left = self.left()
        rest = f"; about {in_time(left)} left" if left is not None and self.made < self.total else ""
        name = f"{run.setup}, pair {run.pair}, {run.part} run ({run.mode})"
        self._say(printable(f"{name}: {how[:SHOWN]} ({self.made} of {self.total} runs{rest})"))

    def pair_ended(self, pair: PairResult) -> None:
        """Report the result of a pair."""
        self._say(printable(f"{pair.setup}, pair {pair.pair}: {pair.words}"))

    def left(self) -> float | None:
        """Estimate the remaining seconds from the runs so far and the time between them."""
        known = [seconds for several in self._seconds.values() for seconds in several]
        if not known:
            return None
        usual = fmean(known)
        means = {setup: fmean(several) for setup, several in self._seconds.items()}
        alone = sum(count * means.get(setup, usual) for setup, count in self._left.items())
        busy = (self._clock() - self._began) * self._parallel
        factor = max(1.0, busy / self._spent) if self._spent else 1.0
        return alone * factor / self._parallel


def in_time(seconds: float) -> str:
    """Return a duration for people."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


class DiskSpace:
    """Tracks the sizes of run directories, and estimates the disk space that further runs need."""

    def __init__(self, study: Study, directory: Path) -> None:
        self._study, self._directory = study, directory
        self._sizes: dict[tuple[str, str], int] = {}  # largest size by setup and part
        self._differed: set[str] = set()
        self._runs = 0

    def add(self, run: RunResult, on_disk: int = 0) -> None:
        """Add the size of a run, and of its directory if it is on this machine."""
        key = run.setup, run.part
        self._sizes[key] = max(self._sizes.get(key, 0), run.stored, on_disk)
        self._runs += 1

    def add_pair(self, pair: PairResult) -> None:
        """Add whether a pair differs, and is therefore kept."""
        if pair.identical is not True:
            self._differed.add(pair.setup)

    def of_pair(self, setup: str) -> int:
        """Return the bytes that a pair of this setup takes; of a setup without one, those of the largest pair."""
        of_setup: Counter[str] = Counter()
        for (name, _), taken in self._sizes.items():
            of_setup[name] += taken
        return of_setup[setup] or max(of_setup.values(), default=0)

    def needed(self, setups: Iterable[str]) -> int:
        """Return the largest number of bytes that the coming pairs, by the names of their setups, can take."""
        coming = list(setups)
        if not coming or not self._sizes:
            return 0
        kept_setups = {"all": set(coming), "different": self._differed}.get(self._study.keep, set())
        kept = sum(self.of_pair(name) for name in coming if name in kept_setups)
        beside = self._study.engine.parallel * max(map(self.of_pair, coming))
        return kept + beside + 2 * len(coming) * self._of_lines()

    def check(self, setups: Iterable[str]) -> None:
        """Raise StudyTooLarge if the coming pairs do not fit on the disk."""
        needed, free = self.needed(setups), self.free()
        if needed + SPARE > free:
            what = f"what is left of the study needs about {size(needed)}, and {size(free)} are free"
            raise StudyTooLarge(f"{self._directory}: {what}; make room, then start the same command again")

    def free(self) -> int:
        """Return the free bytes of the disk."""
        return shutil.disk_usage(self._directory).free

    def _of_lines(self) -> int:
        """Return the bytes that remain of a run in any case: its line and its predictions."""
        stays = 0
        for name in ("results.jsonl", "pairs.jsonl"):
            path = self._directory / name
            stays += path.stat().st_size if path.exists() else 0
        place = self._directory / "predictions"
        if place.is_dir():
            with os.scandir(place) as entries:
                stays += sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
        return stays // max(1, self._runs)
