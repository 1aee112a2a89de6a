"""Runs tasks as jobs of Slurm through submitit, or by submitit's local processes."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from reprokit.core.errors import EngineUnusable, needed_for, reason
from reprokit.run.kernel import end_with_parent
from reprokit.study import tasks
from reprokit.study.description import Engine
from reprokit.study.engines import apart_from_terminal
from reprokit.study.engines.local import last_line

LOCAL: Final = "local"  # the address that stands for this machine
LOCAL_JOB: Final = "SUBMITIT_LOCAL_JOB_ID"  # the process that controls a job of it
FOLDER: Final = "slurm"
MAX_LINE: Final = 500
# squeue goes on to list a job for some minutes after its end (MinJobAge); one that it requeues is pending again.
ENDS: Final = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"}
)
CANCELLED: Final = "CANCELLED"
GONE: Final = "no longer in the queue"
SHORTEST, LONGEST, PATIENCE = 2.0, 60.0, 30.0  # seconds between two looks at the queue, and for an answer


def check(settings: Engine) -> None:
    """Refuse settings that submitit does not know."""
    with needed_for('kind = "slurm"', "submitit"):
        import submitit  # noqa: F401
    if settings.address not in ("", LOCAL):
        raise EngineUnusable('engine.address of kind = "slurm" is left out, or "local" for processes of this machine')
    if settings.address != LOCAL and shutil.which("sbatch") is None:
        raise EngineUnusable("there is no sbatch here; start the study where Slurm's commands are")
    _executor(settings, Path())


class Queue:
    """How this user's jobs stand, by squeue: submitit asks sacct, which complains where Slurm keeps no accounts."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._submitted, self._looked = time.monotonic(), -math.inf

    def add(self, job: str) -> None:
        """Take note of a job that was submitted: new ones are looked at more often."""
        self._states[job] = ""
        self._submitted = time.monotonic()

    def end_of(self, job: str) -> str | None:
        """Return the state in which a job has ended; None while it waits or runs, or nobody knows of it."""
        now = time.monotonic()
        if now > self._looked + min(LONGEST, max(SHORTEST, (now - self._submitted) / 10)):
            self._looked = now
            self._look()
        state = self._states[job]
        return state if state in ENDS or state == GONE else None

    def _look(self) -> None:
        command = ["squeue", "--noheader", f"--user={os.getuid()}", "--states=all", "--format=%i %T"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
        except (OSError, subprocess.SubprocessError):
            return  # nobody answers now
        listed = dict(words for line in done.stdout.splitlines() if len(words := line.split()) == 2)
        for job, state in self._states.items():
            self._states[job] = listed.get(job, state if state in ENDS or not state else GONE)


class Slurm:
    """Submits jobs by submitit. Slurm requeues what it preempts; a job that failed is submitted again here."""

    def __init__(self, settings: Engine, directory: Path) -> None:
        self._jobs: dict[str, Any] = {}  # the last one of each task, as long as it has not ended
        self._tries: Counter[str] = Counter()
        self._directory = directory
        self._executor = _executor(settings, directory / FOLDER)
        (directory / FOLDER).mkdir(mode=0o700, exist_ok=True)
        self._queue = None if settings.address == LOCAL else Queue()

    def submit(self, name: str) -> None:
        """Queue the job that makes a pair."""
        self._tries[name] = 0
        self._submit(name)

    def _submit(self, name: str) -> None:
        self._tries[name] += 1
        try:
            with apart_from_terminal():
                self._jobs[name] = self._executor.submit(_work, str(self._directory), name, sys.path)
        except Exception as error:
            raise EngineUnusable(f"the job cannot be submitted: {reason(error)[:MAX_LINE]}") from None
        if self._queue is not None:
            self._queue.add(self._jobs[name].job_id)

    def ended(self, name: str) -> str | None:
        """Return how the last job of a task has ended."""
        job = self._jobs[name]
        has_result = job.paths.result_pickle.exists()
        state = (job.state if job.done() else None) if self._queue is None else self._queue.end_of(job.job_id)
        if not has_result and state is None:
            return None
        del self._jobs[name]
        if has_result and job.exception() is None:
            return ""
        if state != CANCELLED and self._tries[name] < tasks.TRIES:
            self._submit(name)
            return None
        return f"job {job.job_id}: {last_line(job.paths.stderr) or state}"

    def close(self) -> None:
        """Cancel the jobs that have not ended."""
        for job in self._jobs.values():
            with suppress(Exception):
                if self._queue is not None:
                    job.cancel()
                elif not job.done():
                    os.kill(int(job.job_id), signal.SIGKILL)


def _executor(settings: Engine, folder: Path) -> Any:
    """Return submitit's executor with the study's parameters."""
    import submitit

    is_local = settings.address == LOCAL
    own: dict[str, Any] = {"timeout_min": 7 * 24 * 60} if is_local else {"job_name": "reprokit"}
    try:
        chosen = (submitit.LocalExecutor if is_local else submitit.SlurmExecutor)(folder=str(folder))
        chosen.update_parameters(**{**own, **settings.options})
    except Exception as error:
        raise EngineUnusable(f"submitit refuses engine.options: {reason(error)[:MAX_LINE]}") from None
    return chosen


def _work(directory: str, name: str, path: list[str]) -> None:
    """Run a task; this is called on a node of the cluster."""
    sys.path[:] = path
    if LOCAL_JOB in os.environ:
        end_with_parent()
    tasks.work(directory, name, tasks.own_name())
