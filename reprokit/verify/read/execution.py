"""Tells one execution from two: a run that is compared with itself, or with a copy, is equal whatever it does."""

from __future__ import annotations

from enum import Enum

from reprokit.model.run import RunFile


class SharedTrait(Enum):
    """What two executions never have in common, in words."""

    RUN_ID = "the run id"
    LAUNCHER = "the process that launched them"
    METRICS = "every recorded time"


def shared(left: RunFile, right: RunFile) -> SharedTrait | None:
    """Find what shows that both directories hold the same execution; None says only that nothing shows it."""
    if left.run_id == right.run_id:
        return SharedTrait.RUN_ID
    if left.launcher_pid and _launcher(left) == _launcher(right):
        return SharedTrait.LAUNCHER
    if left.metrics is not None and left.metrics == right.metrics and not left.clock:
        return SharedTrait.METRICS  # its lines hold times and process ids; a replayed clock can give those again
    return None


def _launcher(run: RunFile) -> tuple[str, int, float]:
    """Name a launcher: a process makes one run in its life."""
    return run.host, run.launcher_pid, run.launcher_started
