"""Runs a study: plans it, resumes it where it stopped, and stores a line per ended run and pair."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from reprokit.core.errors import BadStudy, CannotWriteRun, LaunchError, StudyChanged, StudyInProgress, StudyTooLarge
from reprokit.core.version import VERSION
from reprokit.run import command as commands
from reprokit.run import environment, host
from reprokit.run.messages import say, warn
from reprokit.run.rundirectory import home
from reprokit.run_files import rundir
from reprokit.run_files.home import home_of
from reprokit.study import attempt, description, engines, store
from reprokit.study.attempt import PairTask, Task
from reprokit.study.description import LocatedStudy, PairPlace, Setup, Study, differences
from reprokit.study.engines.engine import Stop
from reprokit.study.engines.tasks import Desk, StudyTask, TaskCounts, handed_out
from reprokit.study.engines.tasks import collect as take_back
from reprokit.study.progress import DiskSpace, StudyProgress, in_time
from reprokit.study.results import Mode, PairResult, Part, RunResult
from reprokit.study.store import StudyFile
from reprokit.study.wording import size

PATIENCE: Final = 20.0  # seconds that a start waits for the last run of a killed one
AGAIN: Final = "made again with its pair: the study was interrupted after the first run, whose directory is gone"
INTERRUPTED: Final = "an earlier attempt at this run was interrupted; nothing of it was used"


class StudyState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a study."""

    directory: Path
    failed: int  # number of failed runs
    made: int
    total: int
    stopped: bool = False


def place_for(name: str, output: Path | None) -> Path:
    """Return the directory of a study."""
    return Path(os.path.realpath(output if output is not None else home_of(Path()) / "studies" / name))


def run(described: LocatedStudy, directory: Path, source: Path, *, stop_on_failure: bool = False) -> StudyState:
    """Execute the missing runs of a study; raises Interrupted after a signal."""
    study = described.study
    engines.check(study)
    if study.engine.kind == "local":
        _check_commands(described)
    _make(directory)
    with _locked(directory) as lock:
        plan = _study_file(described, directory, source)
        running = _RunningStudy(plan, directory, stop_on_failure=stop_on_failure)
        engine = engines.make(study, directory, lock)
        stopped = False
        try:
            running.say_plan()
            engine.make(running.pairs(), running)
        except Stop as stop:
            if stop.error is not None:
                raise stop.error from None
            stopped = True
        return running.done(stopped=stopped)


def tasks(described: LocatedStudy, directory: Path, source: Path) -> list[StudyTask]:
    """Hand out the missing runs of a study as tasks for any scheduler."""
    study = described.study
    if study.engine.kind == "kubernetes":
        raise BadStudy("the tasks of kind = \"kubernetes\" are a manifest, which 'reprokit study run' writes")
    engines.check_store(study)
    _make(directory)
    with _locked(directory):
        running = _RunningStudy(_study_file(described, directory, source), directory, stop_on_failure=False)
        desk = Desk(directory, study.engine.store)
        try:
            return list(handed_out(desk, running.pairs(desk.pairs_out())))
        except Stop as stop:
            raise stop.error or BadStudy(str(stop)) from None


def collect(directory: Path, *, source: str = "", is_over: bool = False) -> tuple[StudyState, TaskCounts]:
    """Collect the results of a study's tasks; also returns the counts of outstanding ones."""
    plan = store.read_study(directory)
    with _locked(directory):
        running = _RunningStudy(plan, directory, stop_on_failure=False)
        desk = Desk(directory, plan.study.engine.store, keep_claims=True)
        if source:
            desk.read_from(source)
        outstanding = take_back(desk, running, is_over=is_over)
        return running.done(stopped=False), outstanding


def _check_commands(described: LocatedStudy) -> None:
    """Raise BadStudy if a program of the study does not exist, instead of recording failed runs."""
    study, own = described.study, environment.inherited()
    for setup in study.setup:
        words, variables = study.command_of(setup), {**own, **study.variables, **setup.variables}
        try:
            commands.resolve(words, variables.get("PATH"), _directory_of(study, setup, described.base))
        except LaunchError as error:
            raise BadStudy(f"setup {setup.name}: {error}") from None


def _directory_of(study: Study, setup: Setup, base: Path) -> Path:
    return Path(os.path.realpath(base / (setup.directory or study.directory)))


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


@contextmanager
def _locked(directory: Path) -> Iterator[int]:
    """Hold the study's lock, which its runs inherit; yields its descriptor."""
    descriptor = os.open(directory / store.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        deadline, said = time.monotonic() + PATIENCE, False
        while not _try_lock(descriptor):
            if time.monotonic() > deadline:
                raise StudyInProgress(f"{directory}: another start of the study, or a run of it, is still at work")
            if not said:
                say("a run of this study is still at work; waiting for its end")
                said = True
            time.sleep(0.1)
        yield descriptor
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


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
        self._plan, self._study, self._directory = plan, plan.study, directory
        self._stop = stop_on_failure
        self._results = {(result.setup, result.pair, result.part): result for result in store.read_results(directory)}
        self._pairs = {(result.setup, result.pair): result for result in store.read_pairs(directory)}
        self._coming = [place for place in plan.order if (place.setup, place.pair) not in self._pairs]
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
        is_half = (run.setup, run.pair) not in self._pairs and (run.setup, run.pair, "second") not in self._results
        return not (is_half and self._is_gone(run))

    def _is_gone(self, run: RunResult) -> bool:
        """Return whether the directory of a finished run is gone, so that nothing can be compared with it."""
        return run.outcome == "finished" and not self._run_directory(run.setup, run.pair, run.part).is_dir()

    def _run_directory(self, setup: str, pair: int, part: str) -> Path:
        return self._directory / store.RUNS / store.name_of(setup, pair, part)

    def say_plan(self) -> None:
        """Report the plan."""
        study, progress = self._study, self._progress
        what = f"study {study.name}: {progress.total} runs, {study.runs} of each of {len(study.setup)} setups"
        say(f"{what}, in {self._directory}" + (f"; {progress.made} are made" if progress.made else ""))
        if study.engine.parallel > 1:
            warn(f"{study.engine.parallel} runs at the same time: their times are marked as not comparable")

    # What is to be made

    def pairs(self, under_way: Collection[tuple[str, int]] = ()) -> Iterator[PairTask]:
        """Yield the remaining pairs; each is checked for disk space only when its turn comes."""
        (self._directory / store.RUNS).mkdir(mode=0o700, exist_ok=True)
        self._tidy()
        for place in list(self._coming):
            if (place.setup, place.pair) in under_way:
                continue
            task = self._task(place)
            first, second = (self._results.get((place.setup, place.pair, part)) for part in ("first", "second"))
            if first is not None and second is not None:  # only their comparison is missing
                self.pair_ended(task, attempt.compared(task, first, second))
                attempt.tidy(task, self._pairs[place.setup, place.pair])
                continue
            self._check_room()
            yield self._prepared(task, first)

    def _check_room(self) -> None:
        try:
            self._room.check(place.setup for place in self._coming)
        except StudyTooLarge as error:
            raise Stop(error) from None

    def _tidy(self) -> None:
        """Remove the directories of pairs that were compared just before the study was killed."""
        for place in self._plan.order:
            result = self._pairs.get((place.setup, place.pair))
            if result is not None:
                attempt.tidy(self._task(place), result)

    def _prepared(self, task: PairTask, first: RunResult | None) -> PairTask:
        """Return a task whose run directories are free, with notes on earlier attempts."""
        notes: dict[str, tuple[str, ...]] = {"first": (), "second": ()}
        if first is not None and self._is_gone(first):
            notes["first"], first = (AGAIN,), None
        for run_task in (task.first, task.second):
            if (run_task.part == "second" or first is None) and Path(run_task.run).exists():
                shutil.rmtree(run_task.run, ignore_errors=True)
                notes[run_task.part] += (INTERRUPTED,)
        replace = msgspec.structs.replace
        return replace(
            task,
            first=replace(task.first, notes=notes["first"]),
            second=replace(task.second, notes=notes["second"]),
            made=first,
        )

    def _task(self, place: PairPlace) -> PairTask:
        setup = self._study.find(place.setup)
        modes: tuple[Mode, Mode] = ("recorded", "replayed") if setup.entropy == "replayed" else ("observed", "observed")
        modes = modes if setup.observe else ("untouched", "untouched")
        return PairTask(
            first=self._run_task(setup, place.pair, "first", modes[0]),
            second=self._run_task(setup, place.pair, "second", modes[1]),
            keep=self._study.keep,
            ignore=self._study.ignore,
            ignore_console=self._study.ignore_console,
        )

    def _run_task(self, setup: Setup, pair: int, part: Part, mode: Mode) -> Task:
        study, base = self._study, Path(self._plan.base)
        return Task(
            setup=setup.name,
            pair=pair,
            part=part,
            mode=mode,
            command=study.command_of(setup),
            working_directory=str(_directory_of(study, setup, base)),
            place=str(self._directory),
            run=str(self._run_directory(setup.name, pair, part)),
            recording=str(self._run_directory(setup.name, pair, "first")) if mode == "replayed" else "",
            seed=study.seed_of(setup, pair),
            patches=setup.patches,
            calendar=setup.calendar,
            clock=setup.clock,
            data=tuple(str(base / path) for path in study.data),
            variables={**study.variables, **setup.variables},
            timeout=study.timeout,
            together=study.engine.parallel,
        )

    # Results

    def run_ended(self, run: RunResult) -> None:
        """Store the line of a run, and report its result."""
        store.add_result(self._directory, run)
        self._results[run.setup, run.pair, run.part] = run
        self._room.add(run, rundir.size_of(self._run_directory(run.setup, run.pair, run.part)))
        self._progress.run_ended(run)
        for note in run.notes:
            if (run.setup, note) not in self._said:
                self._said.add((run.setup, note))
                warn(f"{run.setup}, pair {run.pair}, {run.part} run: {note}")
        if run.outcome != "finished":
            name = store.name_of(run.setup, run.pair, run.part)
            if (self._directory / store.LOGS / f"{name}.log").exists():
                warn(f"it printed what is in {self._directory / store.LOGS / name}.log")
            if self._stop:
                raise Stop

    def pair_ended(self, task: PairTask, pair: PairResult) -> None:
        """Store the line of a pair, and report its result."""
        store.add_pair(self._directory, pair)
        self._pairs[pair.setup, pair.pair] = pair
        self._coming = [place for place in self._coming if (place.setup, place.pair) != (pair.setup, pair.pair)]
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
            directory=self._directory, failed=failed, made=progress.made, total=progress.total, stopped=stopped
        )


def how_to_go_on(words: list[str]) -> str:
    """Return the command that resumes an interrupted study."""
    return shlex.join(["reprokit", *words])
