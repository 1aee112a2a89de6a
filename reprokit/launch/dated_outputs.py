"""Moves aside what a recording wrote into directories named by the time, before a replay makes them again.

A replay is told the recorded time, and so the names of these directories. Many scripts make them without a look, which
fails if they are there, or take what lies in them for state of their own. Elsewhere a replay writes where the recording
wrote, as the script does each time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from reprokit.errors import RunError
from reprokit.launch.messages import say
from reprokit.model.run import RunFile, timestamp
from reprokit.printable import bounded, printable
from reprokit.rundir import RunDirectory

SLACK = 2.0  # seconds: run.json holds whole ones
ZONES = 900  # seconds by whose multiples time zones differ
SCALES = {10: 1, 13: 10**3, 16: 10**6, 19: 10**9}  # by the number of digits of a time since 1970
MOST_FILES = 10_000  # in a directory that is moved
MOST_COPIES = 1000
SHOWN = 3

_BETWEEN = re.compile(r"(?<=\d)[-_:. TZ]{1,2}(?=\d)")
_DIGITS = re.compile(r"\d+")


def is_dated(name: str, began: float, ended: float) -> bool:
    """Return whether a name tells a moment between these, in seconds since 1970 or by hour and minute of any zone."""
    for match in _DIGITS.finditer(name):
        scale = SCALES.get(len(match[0]))
        if scale is not None and began - SLACK <= int(match[0]) / scale <= ended + SLACK:
            return True
    groups = _DIGITS.findall(_BETWEEN.sub("", name))
    return any(_has_time_of_day(digits, began, ended) for digits in groups)


def _has_time_of_day(digits: str, began: float, ended: float) -> bool:
    """Return whether six of the digits are an hour, minute and second of the run; or four, behind a date."""
    for at in range(len(digits) - 3):
        hour, minute, second = (int(digits[at + i : at + i + 2] or "60") for i in (0, 2, 4))
        if hour > 23 or minute > 59:
            continue
        if second < 60 and _is_between(minute * 60 + second, began - SLACK, ended + SLACK):
            return True
        if at >= 4 and at + 4 == len(digits) and _is_between(minute * 60, began - 60, ended):
            return True
    return False


def _is_between(second: int, began: float, ended: float) -> bool:
    return (second - began) % ZONES <= ended - began


def set_aside(recording: Path, directory: Path) -> None:
    """Give such directories of a recording, with nothing else in them, another name: NAME.~1~, or the next free one."""
    with suppress(OSError, RunError):
        moved = [f"{path} is now {_rename(path).name}" for path in _dated(RunDirectory(recording), directory)]
        for line in bounded(moved, SHOWN, " such directories"):
            say(f"{printable(line)}: it is of an earlier run by the same calendar, and this one makes its own")


def _dated(recording: RunDirectory, directory: Path) -> Iterator[Path]:
    """Yield the outermost directories that hold outputs of the recording only, and are named by its time."""
    outputs = recording.outputs()
    span = _span(recording.run)
    if outputs is None or span is None:
        return
    names = [*(file.path for file in outputs.files), *(link.path for link in outputs.links)]
    files = {Path(os.path.abspath(directory / name)) for name in names}
    for path in sorted({parent for file in files for parent in _named_by_time(file, directory, span)}):
        if not path.is_symlink() and path.is_dir() and set(_files_below(path)) <= files:
            yield path


def _span(run: RunFile) -> tuple[float, float] | None:
    began, ended = timestamp(run.started), timestamp(run.ended or "")
    return None if began is None or ended is None else (began, ended)


def _named_by_time(file: Path, directory: Path, span: tuple[float, float]) -> Iterable[Path]:
    """Return the outermost parent of a file, not of the working directory too, whose name tells the time."""
    own = {directory, *directory.parents}
    parents = [parent for parent in reversed(file.parents) if parent not in own and is_dated(parent.name, *span)]
    return parents[:1]


def _files_below(directory: Path) -> Iterator[Path]:
    """Yield all that is no directory; the directory itself if there is too much of it, or it cannot be read."""

    def give_up(_: OSError) -> None:
        seen.append(directory)

    seen: list[Path] = []
    for parent, _, names in os.walk(directory, onerror=give_up):
        seen.extend(Path(parent, name) for name in names)
        if len(seen) > MOST_FILES:
            yield directory
            return
    yield from seen


def _rename(path: Path) -> Path:
    for number in range(1, MOST_COPIES):
        target = path.with_name(f"{path.name}.~{number}~")
        if not os.path.lexists(target):
            os.rename(path, target)
            return target
    raise FileExistsError(path)
