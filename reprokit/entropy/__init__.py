"""Reads random profiles: their format, statistics, and how faithfully a replay followed one."""

from reprokit.entropy.files import EntropyFile, entropy_files
from reprokit.entropy.pool import processes
from reprokit.entropy.profile import (
    being_written,
    check,
    check_seal,
    count,
    fidelity,
    fresh_requests,
    full_calendars,
    gave_up,
    is_python,
    programs,
    root_loaded,
    started_at,
    summarize,
    withheld_runtimes,
)

__all__ = [
    "EntropyFile",
    "being_written",
    "check",
    "check_seal",
    "count",
    "entropy_files",
    "fidelity",
    "fresh_requests",
    "full_calendars",
    "gave_up",
    "is_python",
    "processes",
    "programs",
    "root_loaded",
    "started_at",
    "summarize",
    "withheld_runtimes",
]
