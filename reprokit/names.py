"""The names that the shim noted: of files that the run wrote, put in place and read."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import msgspec

from reprokit import rundir

MAX_LIST = 64 << 20  # bytes of written.paths or read.paths that are read
MAX_BELOW = 1_000_000  # files below one directory that was put in place
ENVIRONMENT = "pyvenv.cfg"  # a virtual environment holds more files than all else, and no results
MAX_WATCHED = 10_000  # files below the working directory that are looked at
MAX_DEPTH = 64  # of directories below one that was put in place
ESCAPED = re.compile(rb"\\(.)")  # a backslash and a line feed stand as two characters each, and so does TO
POSITION = b"\\<"  # behind the name of what was read: how much had been written
TO = b"\0"  # between the two names of a line, when it was read; no name has it

NOISE = frozenset(
    {
        ".cache",
        ".git",
        ".ipynb_checkpoints",
        ".keras",
        ".matplotlib",
        ".mypy_cache",
        ".nv",
        ".pytest_cache",
        ".reprokit",
        ".triton",
        "__pycache__",
    }
)  # directories in which programs keep their own things
NOISE_SUFFIXES = (".pyc", ".pyo")


class Written(msgspec.Struct, frozen=True):
    """The files that a run wrote, by the absolute names that they had then."""

    opened: set[str]  # for writing
    placed: set[tuple[str, str]]  # by rename or link: from where (empty: a symbolic link was made), and to where
    is_whole: bool = True


def read(run: Path) -> set[str]:
    """What read.paths says."""
    return set(read_at(run))


def read_at(run: Path) -> dict[str, int | None]:
    """What was read, and how long written.paths was then for the first time; None where nobody noted it."""
    found: dict[str, int | None] = {}
    for line in _data(run / rundir.READ)[0].split(b"\n"):
        name, _, digits = line.rpartition(POSITION)
        at = int(digits) if name and digits.isdigit() else None
        path = ESCAPED.sub(_unescaped, line if at is None else name)
        if path.startswith(b"/") and b"\0" not in path:
            before = found.setdefault(os.fsdecode(path), at)
            if before is not None and at is not None:
                found[os.fsdecode(path)] = min(before, at)
    return found


def written_at(run: Path) -> dict[str, int]:
    """Where in written.paths each name stands first that was opened for writing, or given to something."""
    found: dict[str, int] = {}
    start = 0
    for line in _data(run / rundir.WRITTEN)[0].split(b"\n"):
        path = ESCAPED.sub(_unescaped, line).rpartition(TO)[2]
        if path.startswith(b"/"):
            found.setdefault(os.fsdecode(path), start)
        start += len(line) + 1
    return found


def written(run: Path) -> Written:
    """What written.paths says."""
    lines, is_whole = _lines(run / rundir.WRITTEN)
    opened, placed = set(), set()
    for line in lines:
        before, is_placed, after = line.partition(TO)
        if not is_placed:
            opened.add(os.fsdecode(line))
        elif after.startswith(b"/"):
            placed.add((os.fsdecode(before), os.fsdecode(after)))
    return Written(opened, placed, is_whole)


def _lines(path: Path) -> tuple[set[bytes], bool]:
    """The lines of a list without their escapes, and whether these are all."""
    data, is_whole = _data(path)
    lines = {ESCAPED.sub(_unescaped, line) for line in set(data.split(b"\n")) if TO not in line}
    return {line for line in lines if line.startswith((b"/", TO))}, is_whole


def _data(path: Path) -> tuple[bytes, bool]:
    """What a list holds, and whether that is all."""
    try:
        with open(path, "rb", opener=rundir.open_regular) as file:
            return file.read(MAX_LIST), not file.read(1)
    except OSError:
        return b"", True


def _unescaped(found: re.Match[bytes]) -> bytes:
    return {b"n": b"\n", b">": TO}.get(found[1], found[1])


def entry(path: str) -> str:
    """The name without symbolic links, but for the last part, which may be one itself."""
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def there(names: Written, searched: Callable[[str], bool] = lambda _: True) -> Iterator[str]:
    """All that is there of what the run wrote or put in place: files, symbolic links, and what is below directories.

    A directory is looked into where ``searched`` says so.
    """
    yield from {os.path.realpath(path) for path in names.opened}
    for path in {entry(after) for _, after in names.placed}:
        if os.path.isdir(path) and not os.path.islink(path):
            yield from (one.path for one in islice(below(path, searched), MAX_BELOW))
        elif os.path.lexists(path):
            yield path


def below(directory: str, searched: Callable[[str], bool], depth: int = MAX_DEPTH) -> Iterator[os.DirEntry[str]]:
    """All but the directories in a directory and in those below it, into which ``searched`` lets."""
    if not depth or not searched(directory):
        return
    try:
        with os.scandir(directory) as entries:
            found = list(entries)
    except OSError:  # gone, or not this user's to read
        return
    for one in found:
        if one.is_dir(follow_symlinks=False):
            yield from below(one.path, searched, depth - 1)
        else:
            yield one


def is_environment(directory: str) -> bool:
    """Whether it is a virtual environment of Python's."""
    return os.path.lexists(os.path.join(directory, ENVIRONMENT))


def changed_since(directory: str, moment: int, searched: Callable[[str], bool]) -> Iterator[str]:
    """Files below a directory that were written, renamed or linked later, by whomever, among the first there."""
    for one in islice(below(directory, searched), MAX_WATCHED):
        with suppress(OSError):
            status = one.stat(follow_symlinks=False)
            if status.st_ctime_ns > moment and (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
                yield one.path


def gone(names: Written, counts: Callable[[str], bool]) -> set[str]:
    """Names that are not there any more, and were not given to something else by the run."""
    moved = {before for before, after in names.placed if counts(after)}
    paths = names.opened | {after for _, after in names.placed}
    return {path for path in paths if counts(path) and not os.path.lexists(path) and not _is_moved(path, moved)}


def _is_moved(path: str, moved: set[str]) -> bool:
    """Whether it, or a directory above it, was."""
    while path not in moved:
        above = os.path.dirname(path)
        if above == path:
            return False
        path = above
    return True
