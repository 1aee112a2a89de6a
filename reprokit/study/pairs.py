"""Derives a pair's task from the plan of its study, locks it, and frees its run directories.

Whoever makes a pair holds its lock, and so do its runs: the kernel releases it when the last of them has ended.
"""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from reprokit.core.errors import CannotWriteRun, StudyInProgress, refused_as
from reprokit.core.messages import say
from reprokit.study import store
from reprokit.study.attempt import PairTask, Task
from reprokit.study.description import Setup, Study
from reprokit.study.results import Mode, PairPlace, Part, RunResult
from reprokit.study.store import StudyFile

POLL: Final = 0.1  # seconds between two looks at a lock that somebody else holds
AGAIN: Final = "made again with its pair: the study was interrupted after the first run, whose directory is gone"
INTERRUPTED: Final = "an earlier attempt at this run was interrupted; nothing of it was used"


def task_of(plan: StudyFile, directory: Path, place: PairPlace, worker: str = "") -> PairTask:
    """Return the task of a pair, whose run directories may still hold something."""
    setup = plan.study.find(place.setup)
    modes: tuple[Mode, Mode] = ("recorded", "replayed") if setup.entropy == "replayed" else ("observed", "observed")
    modes = modes if setup.observe else ("untouched", "untouched")
    first, second = (
        _run_task(plan, directory, (setup, place.pair, part), mode, worker)
        for part, mode in zip(("first", "second"), modes, strict=True)
    )
    study = plan.study
    return PairTask(
        first=first, second=second, keep=study.keep, ignore=study.ignore, ignore_console=study.ignore_console
    )


def _run_task(plan: StudyFile, directory: Path, run: tuple[Setup, int, str], mode: Mode, worker: str) -> Task:
    (setup, pair, part), study, base = run, plan.study, Path(plan.base)
    return Task(
        setup=setup.name,
        pair=pair,
        part=part,  # type: ignore[arg-type]
        mode=mode,
        command=study.command_of(setup),
        working_directory=str(directory_of(study, setup, base)),
        place=str(directory),
        run=str(run_directory(directory, setup.name, pair, part)),
        recording=str(run_directory(directory, setup.name, pair, "first")) if mode == "replayed" else "",
        seed=study.seed_of(setup, pair),
        patches=setup.patches,
        calendar=setup.calendar,
        clock=setup.clock,
        data=tuple(str(base / path) for path in study.data),
        variables={**study.variables, **setup.variables},
        timeout=study.timeout,
        together=study.engine.parallel,
        worker=worker,
    )


def directory_of(study: Study, setup: Setup, base: Path) -> Path:
    """Return the directory in which the command of a setup is run."""
    return Path(os.path.realpath(base / (setup.directory or study.directory)))


def run_directory(directory: Path, setup: str, pair: int, part: str) -> Path:
    """Return the run directory of a run."""
    return directory / store.RUNS / store.name_of(setup, pair, part)


def is_gone(directory: Path, run: RunResult) -> bool:
    """Return whether the directory of a finished run is gone, so that nothing can be compared with it."""
    return run.outcome == "finished" and not run_directory(directory, run.setup, run.pair, run.part).is_dir()


def prepared(task: PairTask, known: dict[Part, RunResult], lock: int) -> PairTask:
    """Return a locked pair whose run directories are free, with notes on earlier attempts; `known` are its results."""
    made = tuple(known[part] for part in ("first", "second") if part in known and (part == "first" or "first" in known))
    notes: dict[str, tuple[str, ...]] = {"first": (), "second": ()}
    if len(made) == 1 and is_gone(Path(task.first.place), made[0]):
        notes["first"], made = (AGAIN,), ()
    for run_task in (task.first, task.second)[len(made) :]:
        if Path(run_task.run).exists():
            shutil.rmtree(run_task.run, ignore_errors=True)
            notes[run_task.part] += (INTERRUPTED,)
    replace = msgspec.structs.replace
    first, second = (replace(run_task, notes=notes[run_task.part]) for run_task in (task.first, task.second))
    return replace(task, first=first, second=second, made=made, lock=lock)


# Locks


def lock_file(directory: Path, place: PairPlace) -> Path:
    """Return the file that is locked while a pair is made."""
    return directory / store.RUNS / f"{place.name}.lock"


def locked(path: Path, patience: float = math.inf) -> int:
    """Lock a file and return its descriptor; raises StudyInProgress if somebody else holds it for too long."""
    deadline, said = time.monotonic() + patience, False
    while True:
        descriptor = _opened(path)
        if _try(descriptor):
            if os.fstat(descriptor).st_nlink:  # else whoever held it has removed the file
                return descriptor
        elif time.monotonic() > deadline:
            os.close(descriptor)
            raise StudyInProgress(f"{path}: another start of the study, or a run of it, is still at work")
        elif not said:
            say("a run of this study is still at work; waiting for its end")
            said = True
        os.close(descriptor)
        time.sleep(POLL)


@contextmanager
def holding(path: Path, patience: float = math.inf) -> Iterator[int]:
    """Hold a lock within this context; yields its descriptor."""
    descriptor = locked(path, patience)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Return whether somebody holds a lock."""
    if not path.exists():
        return False
    descriptor = _opened(path)
    try:
        return not _try(descriptor)
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with refused_as(CannotWriteRun, path, "choose another directory with -o"):
        return os.open(path, flags, 0o600)


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise CannotWriteRun(f"a file cannot be locked there: {error.strerror}; choose another directory") from None
    return True
