"""Runs tasks as jobs of Slurm through submitit, or by submitit's local processes."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from reprokit.core.errors import EngineUnusable
from reprokit.run.kernel import end_with_parent
from reprokit.study import tasks
from reprokit.study.description import Engine
from reprokit.study.engines import apart_from_terminal, refused
from reprokit.study.engines.local import last_line

LIBRARY: Final = "submitit"
LOCAL: Final = "local"  # the address that stands for this machine
# squeue goes on to list a job for some minutes after its end (MinJobAge); one that it requeues is pending again.
CANCELLED, GONE = "CANCELLED", "no longer in the queue"
ENDS: Final = frozenset(
    {"BOOT_FAIL", CANCELLED, "COMPLETED", "DEADLINE", "FAILED", GONE, "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"}
)
SHORTEST, LONGEST, PATIENCE = 2.0, 60.0, 30.0  # seconds between two looks at the queue, and for an answer


def check(settings: Engine) -> None:
    """Refuse settings that submitit does not know."""
    if settings.address not in ("", LOCAL):
        raise EngineUnusable('engine.address of kind = "slurm" is left out, or "local" for processes of this machine')
    if settings.address != LOCAL and shutil.which("sbatch") is None:
        raise EngineUnusable("there is no sbatch here; start the study where Slurm's commands are")
    _executor(settings, Path())


class Queue:
    """How this user's jobs stand, by squeue: submitit asks sacct, which complains where Slurm keeps no accounts."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._submitted = self._looked = -math.inf  # when the last new job came, and when squeue was asked

    def end_of(self, job: str) -> str | None:
        """Return the state in which a job has ended; None while it waits or runs, or nobody knows of it."""
        now = time.monotonic()
        if job not in self._states:  # new ones are looked at more often
            self._states[job], self._submitted = "", now
        if now > self._looked + min(LONGEST, max(SHORTEST, (now - self._submitted) / 10)):
            self._looked = now
            self._look()
        return self._states[job] if self._states[job] in ENDS else None

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
        self._jobs: defaultdict[str, list[Any]] = defaultdict(list)  # of each task, as long as none made it
        self._directory, folder = str(directory), directory / "slurm"
        self._executor = _executor(settings, folder)
        folder.mkdir(mode=0o700, exist_ok=True)
        self._queue = None if settings.address == LOCAL else Queue()

    def submit(self, name: str) -> None:
        """Queue a job that makes a pair."""
        with refused("the job cannot be submitted"), apart_from_terminal():
            job = self._executor.submit(_work, self._directory, name, sys.path)
        self._jobs[name].append(job)

    def ended(self, name: str) -> str | None:
        """Return how the last job of a task has ended."""
        job = self._jobs[name][-1]
        has_result = job.paths.result_pickle.exists()
        state = (job.state if job.done() else None) if self._queue is None else self._queue.end_of(job.job_id)
        if not has_result and state is None:
            return None
        is_made = has_result and job.exception() is None
        if not is_made and state != CANCELLED and len(self._jobs[name]) < tasks.TRIES:
            self.submit(name)
            return None
        del self._jobs[name]
        return "" if is_made else f"job {job.job_id}: {last_line(job.paths.stderr) or state}"

    def close(self) -> None:
        """Cancel the jobs that have not ended."""
        for *_, job in self._jobs.values():
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
    with refused("submitit refuses engine.options"):
        chosen = (submitit.LocalExecutor if is_local else submitit.SlurmExecutor)(folder=str(folder))
        chosen.update_parameters(**{**own, **settings.options})
        return chosen


def _work(directory: str, name: str, path: list[str]) -> None:
    """Run a task; this is called on a node of the cluster."""
    sys.path[:] = path
    if "SUBMITIT_LOCAL_JOB_ID" in os.environ:
        end_with_parent()  # the process that controls the job
    tasks.work(directory, name, tasks.own_name())
