"""Reads random profiles: their format, statistics, and how faithfully a replay followed one."""

from reprokit.entropy.files import EntropyFile, entropy_files
from reprokit.entropy.profile import (
    being_written,
    check,
    fidelity,
    gave_up,
    root_loaded,
    summarise,
    withheld_runtimes,
)

__all__ = [
    "EntropyFile",
    "being_written",
    "check",
    "entropy_files",
    "fidelity",
    "gave_up",
    "root_loaded",
    "summarise",
    "withheld_runtimes",
]
