"""Finds what changed below directories since a run began, whoever changed it and by whatever calls.

A change of a file's content, name or attributes gives it a new ctime, which no program can set. So nothing needs to be
listed before the start. Directories that changed themselves are looked at first, as the search is bounded.
"""

from __future__ import annotations

import heapq
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import msgspec

from reprokit.run.file_times import born

MAX_LOOKED_AT = 1_000_000  # files
MAX_SECONDS = 2.0
OFTEN = 512  # files between two looks at the time
MAX_DIRECTORIES = 10_000  # that are listed
MAX_DEPTH = 64


class ChangedFiles(msgspec.Struct):
    """The regular files and symbolic links that changed, and the directories that were created."""

    files: set[str] = msgspec.field(default_factory=set)
    directories: set[str] = msgspec.field(default_factory=set)
    cut: str = ""  # the first directory that was not looked through; empty if all were


class SearchedDirectory(msgspec.Struct, frozen=True, order=True):
    """A directory to be looked through, in the order of the search."""

    is_old: bool  # nothing was created, renamed or removed in it
    depth: int
    path: str
    is_whole: bool  # also what did not change itself below it


class ChangeSearch:
    """A search through directories; each is looked through once."""

    def __init__(self, start: int, is_searched: Callable[[str], bool], interrupted: Callable[[], bool]) -> None:
        self._start, self._is_searched, self._interrupted = start, is_searched, interrupted
        self._deadline = time.monotonic() + MAX_SECONDS
        self._whole: tuple[str, ...] = ()
        self._seen: set[str] = set()
        self._waiting: list[SearchedDirectory] = []
        self._looked_at = 0
        self._changed = ChangedFiles()

    def run(self, whole: Sequence[str], partly: Iterable[str]) -> ChangedFiles:
        """Look through directories: the first with all below them, the others where they changed themselves."""
        self._whole = tuple(os.path.join(path, "") for path in whole)
        for path in (*whole, *partly):
            with suppress(OSError):
                self._add(path, os.stat(path), 0)
        while self._waiting:
            directory = heapq.heappop(self._waiting)
            if not self._look_through(directory):
                self._changed.cut = directory.path
                break
        return self._changed

    def _add(self, path: str, status: os.stat_result, depth: int) -> None:
        if path in self._seen or not stat.S_ISDIR(status.st_mode) or depth > MAX_DEPTH:
            return
        self._seen.add(path)
        is_old = status.st_ctime_ns <= self._start
        self._add_created(path, status)
        is_whole = os.path.join(path, "").startswith(self._whole)
        heapq.heappush(self._waiting, SearchedDirectory(is_old, depth, path, is_whole))

    def _add_created(self, path: str, status: os.stat_result) -> None:
        """Add a directory to those that were created since."""
        is_old = status.st_ctime_ns <= self._start
        if not is_old and len(self._changed.directories) < MAX_DIRECTORIES and born(path) > self._start:
            self._changed.directories.add(path)

    def _look_through(self, directory: SearchedDirectory) -> bool:
        """Look at each entry of a directory; return False if the bounds were reached."""
        with suppress(OSError), os.scandir(directory.path) as entries:  # gone, or not this user's to read
            for entry in entries:
                if not self._goes_on():
                    return False
                with suppress(OSError):
                    self._look_at(entry, directory)
        return True

    def _goes_on(self) -> bool:
        self._looked_at += 1
        if self._looked_at % OFTEN:
            return True
        is_late = time.monotonic() > self._deadline or self._looked_at > MAX_LOOKED_AT
        return not (is_late or self._interrupted())

    def _look_at(self, entry: os.DirEntry[str], directory: SearchedDirectory) -> None:
        status = entry.stat(follow_symlinks=False)
        has_changed = status.st_ctime_ns > self._start
        if stat.S_ISDIR(status.st_mode):
            if (directory.is_whole or has_changed) and self._is_searched(entry.path):
                self._add(entry.path, status, directory.depth + 1)
            elif has_changed and _is_empty(entry.path):  # as MLflow's .trash: nothing that would have to be searched
                self._add_created(entry.path, status)
            return
        if has_changed and (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
            self._changed.files.add(entry.path)
        if stat.S_ISLNK(status.st_mode) and os.path.isdir(entry.path):
            target = os.path.realpath(entry.path)
            if self._is_searched(target):
                self._add(target, os.stat(target), directory.depth + 1)


def _is_empty(directory: str) -> bool:
    with suppress(OSError), os.scandir(directory) as entries:
        return next(entries, None) is None
    return False


def created_above(paths: Iterable[str], start: int) -> Iterator[str]:
    """Yield the directories above files that were created since, as far as the file system knows."""
    seen: set[str] = set()
    for path in paths:
        while (path := os.path.dirname(path)) not in seen and path != "/":
            seen.add(path)
            if born(path) <= start:
                break
            yield path
