"""Turns what the user typed for a run into a path."""

from __future__ import annotations

from pathlib import Path

from reprokit.errors import RunNotFound, WorkingDirectoryMissing

HOME = Path(".reprokit")
LAST = "last"


def current_directory() -> Path:
    """The working directory, which may have been deleted under our feet."""
    try:
        return Path.cwd()
    except OSError as error:
        raise WorkingDirectoryMissing(f"the current directory: {error.strerror}; change to one that exists") from None


def run_path(text: str) -> Path:
    """The run directory at a path, or the newest one of this directory for ``last``."""
    if text != LAST or Path(text).exists():
        return Path(text)
    newest = HOME / LAST
    if not newest.exists():
        raise RunNotFound(f"there is no last run: {HOME} of the current directory holds none; name a run directory")
    return newest.resolve()
