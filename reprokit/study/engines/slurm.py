"""Executes pairs as jobs of Slurm through submitit, or by submitit's local processes."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from reprokit.core.errors import EngineUnusable, needed_for, reason
from reprokit.study.description import Engine
from reprokit.study.engines.local import last_line
from reprokit.study.engines.worker import own_name, work

LOCAL: Final = "local"  # the address that stands for this machine
FOLDER: Final = "slurm"
OFF: Final = {"no-requeue": True}  # nobody begins a job once more
MAX_LINE: Final = 500
# squeue goes on to list a job for some minutes after its end (MinJobAge). These states are ends, as nobody requeues.
ENDS: Final = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"}
)
COMPLETED: Final = "COMPLETED"
GONE: Final = "no longer in the queue"
SHORTEST, LONGEST, PATIENCE = 2.0, 60.0, 30.0  # seconds between two looks at the queue, and for an answer


def check(settings: Engine) -> None:
    """Refuse settings that submitit does not know."""
    with needed_for('kind = "slurm"', "submitit"):
        import submitit  # noqa: F401
    if settings.address not in ("", LOCAL):
        raise EngineUnusable('engine.address of kind = "slurm" is left out, or "local" for processes of this machine')
    if settings.address != LOCAL:
        if shutil.which("sbatch") is None:
            raise EngineUnusable("there is no sbatch here; start the study where Slurm's commands are")
        known = sorted(parameters())
        unknown = sorted(set(settings.options) - set(known))
        if unknown:
            raise EngineUnusable(f"submitit has no parameter {unknown[0]} for Slurm; it has {', '.join(known)}")


def parameters() -> set[str]:
    """Return the names of submitit's parameters for sbatch."""
    from submitit.slurm.slurm import SlurmExecutor

    return set(SlurmExecutor._valid_parameters()) - {"map_count", "folder", "command", "additional_parameters"}


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
    """Submits jobs by submitit. Its results, which are pickles, are never read: the depot has ours."""

    def __init__(self, settings: Engine, directory: Path) -> None:
        self._jobs: dict[str, Any] = {}
        self._executor = executor(settings, directory / FOLDER)
        self._queue = None if settings.address == LOCAL else Queue()

    def submit(self, place: str, name: str) -> None:
        """Queue the job that makes a pair."""
        try:
            self._jobs[name] = self._executor.submit(_work, place, name, sys.path)
        except Exception as error:
            raise EngineUnusable(f"the job cannot be submitted: {reason(error)[:MAX_LINE]}") from None
        if self._queue is not None:
            self._queue.add(self._jobs[name].job_id)

    def ended(self, name: str) -> str | None:
        """Return how a job has ended."""
        job = self._jobs[name]
        has_result = job.paths.result_pickle.exists()
        if self._queue is None:
            end = job.state if job.done() else None
        else:
            end = COMPLETED if has_result else self._queue.end_of(job.job_id)
        if end is None:
            return None
        state = "" if end in ("FINISHED", COMPLETED) else f"job {job.job_id}: {end}"
        last = last_line(job.paths.stderr)
        return state if has_result and not last else f"{state or f'job {job.job_id}'}: {last}"

    def cancel(self, name: str) -> None:
        """Cancel a job, queued or running."""
        with suppress(Exception):
            self._jobs[name].cancel()

    def close(self) -> None:
        """Do nothing: no connection is open."""


def executor(settings: Engine, folder: Path) -> Any:
    """Return submitit's executor with the study's parameters."""
    import submitit

    folder.mkdir(mode=0o700, exist_ok=True)
    own: dict[str, Any] = dict(settings.options)
    chosen: Any
    try:
        if settings.address == LOCAL:
            chosen = submitit.LocalExecutor(folder=str(folder))
            chosen.update_parameters(**{"timeout_min": 7 * 24 * 60, **own})
        else:
            chosen = submitit.SlurmExecutor(folder=str(folder), max_num_timeout=0)
            chosen.update_parameters(**{"job_name": "reprokit", **own, "additional_parameters": OFF})
    except Exception as error:
        raise EngineUnusable(f"submitit refuses engine.options: {reason(error)[:MAX_LINE]}") from None
    return chosen


def _work(place: str, name: str, path: list[str]) -> None:
    """Execute a job; runs on a node of the cluster."""
    sys.path[:] = path
    work(place, name, own_name())
