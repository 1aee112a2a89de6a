"""Detects a run that is compared with itself or a copy: it is equal even if the training is not reproducible."""

from __future__ import annotations

from enum import Enum

from reprokit.model.run import RunFile


class SharedTrait(Enum):
    """A trait that two different executions never share, in words."""

    RUN_ID = "the run id"
    LAUNCHER = "the process that launched them"
    METRICS = "every recorded time"


def shared(left: RunFile, right: RunFile) -> SharedTrait | None:
    """Return a trait that shows that both directories hold the same execution; None if there is no such evidence."""
    if left.run_id == right.run_id:
        return SharedTrait.RUN_ID
    if left.launcher_pid and _launcher(left) == _launcher(right):
        return SharedTrait.LAUNCHER
    if left.metrics is not None and left.metrics == right.metrics and not left.clock:
        return SharedTrait.METRICS  # its lines hold times and process ids; a replayed clock may repeat them
    return None


def _launcher(run: RunFile) -> tuple[str, int, float]:
    """Return what identifies a launcher process, which executes only one run."""
    return run.host, run.launcher_pid, run.launcher_started
