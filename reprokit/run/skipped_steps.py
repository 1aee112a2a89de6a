"""Puts into a continued run what it skipped on its way to a keyframe, and what the run before it has.

The lines of a process are numbered, and so are its numbers and the steps of its trail: what it had written when the
keyframe was kept is taken from the first run, and what it wrote behind it stays. If the first run is itself a
continuation that was killed, it has only the part that it made itself, and the rest is that of the run before it.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec
from msgspec.structs import replace

from reprokit.core.bounds import bounded_names, open_file
from reprokit.core.errors import CannotWriteRun, RunDamaged, reason, refused_as
from reprokit.model.run import Continued, ReachedKeyframe
from reprokit.run_files import console, numbers, rundir, trails, unflushed
from reprokit.run_files.console import ConsoleHead, PrintedPart
from reprokit.run_files.keyframes import Count
from reprokit.run_files.rundir import RunDirectory

MAX_POSITION = 64 << 20
MOST = 500  # runs of a chain
BLOCK = 1 << 20
ANSWER, RESTORED = f"{rundir.ANSWERS}/keyframe", b"restored"  # of agent/state/fast_forward.py, as the next one
POSITION, FILLED = f"{rundir.ANSWERS}/position", f"{rundir.ANSWERS}/filled"
MAX_REASON = 1000
_LINE = re.compile(rb'(\{"k":"(\w+)","p":("(?:[^"\\]|\\.)*"),"n":)([0-9]{1,18})(,.*)', re.DOTALL)
_SERIES = struct.Struct("<4xI24x")  # of a record


class WrittenPosition(msgspec.Struct, frozen=True, array_like=True):
    """What a process had written when the keyframe was put in; once the skipped steps are there, with theirs."""

    process: str
    key: str
    lines: Count
    numbers: Count  # bytes of its file
    printed: dict[str, Count] = {}  # bytes of records in each file of console/
    moment: int = 0  # nanoseconds of CLOCK_MONOTONIC


@dataclass(frozen=True)
class SkippedSegment:
    """What is taken from a run: lines, bytes of numbers, and steps of the trail up to a count for each series."""

    run: RunDirectory
    lines: range
    numbers: range
    series: Mapping[str, int]


def answer(run: Path) -> str:
    """Return why a keyframe could not be put in; an empty text where nobody says so."""
    text = rundir.beginning(run / ANSWER, MAX_REASON)
    return "" if text == RESTORED else text.decode("utf-8", "replace")


def is_at_keyframe(run: Path) -> bool:
    """Return whether all processes of a run came to the keyframe to which they were fast-forwarded."""
    return rundir.beginning(run / ANSWER, MAX_REASON) == RESTORED


def positions(run: Path, name: str = POSITION) -> dict[str, WrittenPosition]:
    """Return what each fast-forwarded process had written at the keyframe; raises RunDamaged for anything else."""
    lines = rundir.beginning(run / name, MAX_POSITION).splitlines()
    try:
        each = [msgspec.json.decode(line, type=WrittenPosition) for line in lines]
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise RunDamaged(f"{run / name}: {reason(error)}") from None
    return {position.process: position for position in each}


def printed_until(reports: Iterable[tuple[str, Mapping[str, int]]]) -> dict[str, int]:
    """Return how much each process had printed, as processes at a keyframe saw it: each knows best of itself."""
    reports, printed = list(reports), dict[str, int]()
    for _, seen in reports:
        for name, size in seen.items():
            printed[name] = max(size, printed.get(name, 0))
    for key, seen in reports:
        printed.update({name: size for name, size in seen.items() if name.partition("-")[0] == key.partition("-")[0]})
    return printed


def earlier_pids(run: RunDirectory) -> list[int]:
    """Return the process ids that may stand in what the skipped steps printed, of a run and of those before it."""
    pids: set[int] = set()
    for each in _chain(run):
        heads = console.heads(each) if each.keeps_console else {}
        pids.update([each.run.launcher_pid, *(head.pid for head in heads.values())])
        pids.update([] if each.run.continues is None else each.run.continues.pids)
    return sorted(pids)


def fill_in(run: RunDirectory, continued: Continued) -> bool:
    """Put in what the runs before this one have of the skipped steps, return True; raises where it does not fit."""
    own, filled = positions(run.path), list[WrittenPosition]()
    for process, reached in continued.processes.items():
        segments = _segments(_first(continued), process, reached)
        lines = _fill_in_lines(run, process, own[process], segments)
        size = _fill_in_numbers(run, process, own[process], segments)
        _fill_in_steps(run, process, segments)
        filled.append(WrittenPosition(process, own[process].key, lines, size))
    if run.keeps_console:
        filled[0] = replace(filled[0], printed=_fill_in_console(run, continued, own))
    with refused_as(CannotWriteRun, run.path / FILLED):
        rundir.write_whole(run.path / FILLED, b"".join(msgspec.json.encode(each) + b"\n" for each in filled))
    return True


def require_skipped(continued: Continued) -> None:
    """Raise a ReprokitError unless all runs are there from which the skipped steps come, with what they wrote."""
    for process, reached in continued.processes.items():
        segments = _segments(_first(continued), process, reached)
        for _ in _earlier_lines(process, segments):
            pass
        for segment in segments:
            path = _numbers_of(segment.run, process) if segment.numbers else None
            if segment.numbers and (path is None or path.stat().st_size < segment.numbers.stop):
                raise RunDamaged(f"{segment.run.path / rundir.NUMBERS} lacks numbers from before its keyframe")
            for name, series in _series_of(segment.run, process).items():
                if _lacks_steps(series, segment.series.get(name, 0)):
                    raise RunDamaged(f"{segment.run.path}: its trail ends before its keyframe")
    _earlier_consoles(continued)


def _first(continued: Continued) -> RunDirectory:
    first = RunDirectory(Path(continued.path))
    if first.run.run_id != continued.run_id:
        raise RunDamaged(f"{first.path} is another run than the one that was continued")
    return first


def _chain(run: RunDirectory) -> list[RunDirectory]:
    """Return a run and those before it that have what it skipped, the oldest first."""
    chain = [run]
    while (continued := run.run.continues) is not None and continued.step and not run.has(FILLED):
        if len(chain) > MOST or not is_at_keyframe(run.path):
            raise RunDamaged(f"{run.path} did not come to the keyframe that it was to go on from")
        chain.insert(0, run := _first(continued))
    return chain


def _segments(run: RunDirectory, process: str, reached: ReachedKeyframe) -> list[SkippedSegment]:
    """Return from which runs come the lines, numbers and steps of a process up to a keyframe, the oldest first."""
    segments: list[SkippedSegment] = []
    for each in reversed(_chain(run)):
        own, lines, size = positions(each.path).get(process), reached.lines, reached.numbers
        if own is None:
            return [SkippedSegment(each, range(1, lines), range(numbers.HEAD.size, size), reached.series), *segments]
        if each.has(FILLED):
            filled = positions(each.path, FILLED).get(process)
            if filled is None:
                raise RunDamaged(f"{each.path / FILLED} lacks process {process}")
            lines, size = lines - own.lines + filled.lines, size - own.numbers + filled.numbers
            return [SkippedSegment(each, range(1, lines), range(numbers.HEAD.size, size), reached.series), *segments]
        segments.insert(0, SkippedSegment(each, range(own.lines, lines), range(own.numbers, size), reached.series))
        continued = each.run.continues
        if continued is None or process not in continued.processes:
            raise RunDamaged(f"{each.path / rundir.RUN}: process {process} was not continued")
        reached = continued.processes[process]
    return segments


# ---- lines ------------------------------------------------------------------------------------------------------


def _fill_in_lines(run: RunDirectory, process: str, own: WrittenPosition, segments: list[SkippedSegment]) -> int:
    """Put in the lines of the skipped steps; return how many lines the process then has before its own ones."""
    path = run.path / rundir.METRICS
    unflushed.gather(run.path, path)
    count = 1 + sum(len(segment.lines) for segment in segments)
    with _written_anew(path) as new:
        for line in _lines(path):
            number = _number(line, process)
            if number is None or number == 0:
                new.write(line)
            elif number >= own.lines:
                new.write(_numbered(line, number - own.lines + count))
            if number == 0:
                new.writelines(_earlier_lines(process, segments))
    return count


def _earlier_lines(process: str, segments: list[SkippedSegment]) -> Iterator[bytes]:
    """Yield the lines of the process in the runs before, with new numbers; raises RunDamaged if some are missing."""
    begin = 1
    for segment in segments:
        waiting = unflushed.read(segment.run.path)
        seen = set()
        for line in (*_lines(segment.run.path / rundir.METRICS), *waiting):
            number = _number(line, process)
            if number is not None and number in segment.lines and number not in seen:
                seen.add(number)
                yield _numbered(line, number - segment.lines.start + begin)
        if len(seen) != len(segment.lines):
            raise RunDamaged(f"{segment.run.path / rundir.METRICS} lacks lines from before its keyframe")
        begin += len(segment.lines)


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the whole lines of a file."""
    with os.fdopen(open_file(path), "rb", buffering=BLOCK) as file:
        for line in iter(lambda: file.readline(rundir.MAX_LINE), b""):
            if line.endswith(b"\n"):
                yield line


def _number(line: bytes, process: str) -> int | None:
    """Return the number of a line of the process; None for other lines."""
    match = _LINE.fullmatch(line)
    return int(match[4]) if match and match[3] == json.dumps(process).encode() else None


def _numbered(line: bytes, number: int) -> bytes:
    """Return a line with another number. What is kept of predictions in files is in the other run's."""
    match = _LINE.fullmatch(line)
    assert match is not None
    line = b"%s%d%s" % (match[1], number, match[5])
    try:
        content = msgspec.json.decode(line)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise RunDamaged(f"line {number} of process {match[3].decode('ascii', 'replace')}: {reason(error)}") from None
    if match[2] != b"evaluation":
        return line
    for column in (content.get("predictions"), content.get("truth")):
        if isinstance(column, dict):
            column.pop("file", None)
            column.pop("row", None)
    return msgspec.json.encode(content) + b"\n"


@contextmanager
def _written_anew(path: Path) -> Iterator[IO[bytes]]:
    """Replace a file by what is written, whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        with refused_as(CannotWriteRun, path):
            with open(partial, "wb", opener=_private) as new:
                yield new
            os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


# ---- numbers ----------------------------------------------------------------------------------------------------


def _fill_in_numbers(run: RunDirectory, process: str, own: WrittenPosition, segments: list[SkippedSegment]) -> int:
    """Put in the numbers of the skipped steps; return the bytes that come before the process's own ones."""
    path = _numbers_of(run, process)
    sources = [(_numbers_of(segment.run, process), segment.numbers) for segment in segments if segment.numbers]
    if path is None or not (own.numbers and sources):
        if own.numbers or sources:
            raise RunDamaged(f"{run.path}: the runs do not have the same numbers before the keyframe")
        return own.numbers
    head = range(numbers.HEAD.size)
    with _written_anew(path) as new:
        _copy(path, head, new)
        for source, part in sources:
            _copy(source, part, new)
        size = new.tell()
        if _declared(Path(new.name), range(len(head), size)) != _declared(path, range(len(head), own.numbers)):
            raise RunDamaged(f"{run.path}: the runs do not have the same series of numbers before the keyframe")
        _copy(path, range(own.numbers, path.stat().st_size), new)
    return size


def _numbers_of(run: RunDirectory, process: str) -> Path | None:
    """Return the file of numbers of the first process of this identity."""
    directory = run.path / rundir.NUMBERS
    names = bounded_names(directory, numbers.ENDING) if directory.is_dir() else []
    for name in names:
        kept = numbers.ProcessNumbers(run, name)
        if kept.process == process and not kept.incarnation:
            return directory / name
    return None


def _copy(source: Path | None, part: range, target: IO[bytes]) -> None:
    if source is None:
        raise RunDamaged("a run before has no numbers of the process")
    target.flush()
    with os.fdopen(open_file(source), "rb") as file:
        file.seek(part.start)
        left = len(part)
        while left and (block := file.read(min(left, BLOCK))):
            target.write(block)
            left -= len(block)
    if left:
        raise RunDamaged(f"{source} is cut short")
    target.flush()


def _declared(path: Path, part: range) -> list[bytes]:
    """Return the records that declare series."""
    declared = []
    with os.fdopen(open_file(path), "rb") as file:
        file.seek(part.start)
        for _ in range(0, len(part), BLOCK):
            block = file.read(min(BLOCK, part.stop - file.tell()))
            whole = len(block) // numbers.SIZE * numbers.SIZE
            for index, (series,) in enumerate(_SERIES.iter_unpack(block[:whole])):
                if not series:
                    declared.append(block[index * numbers.SIZE + 8 : (index + 1) * numbers.SIZE])
    return declared


# ---- what was printed -------------------------------------------------------------------------------------------


def _earlier_consoles(continued: Continued) -> dict[str, list[PrintedPart]]:
    """Return what each process had printed up to a keyframe, by the name of its file, from all runs of the chain."""
    printed: dict[str, list[PrintedPart]] = {}
    until: Mapping[str, int] = continued.printed
    for run in reversed(_chain(_first(continued))):
        own = positions(run.path).values()
        since = printed_until((each.key, each.printed) for each in own)
        if run.has(FILLED):
            filled = printed_until((each.key, each.printed) for each in positions(run.path, FILLED).values())
            until = {name: size - since.get(name, 0) + filled.get(name, 0) for name, size in until.items()}
            since = {}
        for name, size in until.items() if run.keeps_console else ():
            part = console.part_of(run, name, since.get(name, 0), size)
            if part is not None:
                printed.setdefault(name, []).insert(0, part)
        until = {} if run.run.continues is None else run.run.continues.printed
    return printed


def _fill_in_console(run: RunDirectory, continued: Continued, own: Mapping[str, WrittenPosition]) -> dict[str, int]:
    """Put in what was printed in the skipped steps, for what a fast-forward printed; return the bytes of each file."""
    earlier, sizes = _earlier_consoles(continued), dict[str, int]()
    since = printed_until((each.key, each.printed) for each in own.values())
    for name in sorted({*earlier, *since}):
        later = console.part_of(run, name, since.get(name, 0))
        parts = [*earlier.get(name, []), *([later] if later else [])]
        sizes[name] = since.get(name, 0)
        if parts and _is_skipping(parts[-1].head, continued):
            sizes[name] = sum(part.size for part in earlier.get(name, []))
            with _written_anew(run.path / rundir.CONSOLE / name) as new:
                new.write(console.spliced(parts))
    return sizes


def _is_skipping(head: ConsoleHead, continued: Continued) -> bool:
    """Return whether a process skipped steps, or was started by one that did: others ran truly from their beginning."""
    name = head.identity.partition(b"\0")[0].decode("utf-8", "replace")
    return any(f"{name}/".startswith(f"{process}/") for process in continued.processes)


# ---- steps of the trail -----------------------------------------------------------------------------------------


def _fill_in_steps(run: RunDirectory, process: str, segments: list[SkippedSegment]) -> None:
    own = _series_of(run, process)
    done: Mapping[str, int] = {}
    for segment in segments:
        for name, series in _series_of(segment.run, process).items():
            start, stop = done.get(name, 0), segment.series.get(name, 0)
            if start >= stop or name not in own:
                continue
            if _lacks_steps(series, stop) or own[name].count < stop:
                raise RunDamaged(f"{segment.run.path}: its trail ends before its keyframe")
            _write(own[name], start, stop, series)
            _write_kept(own[name], {step: series.kept_bytes(step) for step in series.kept() if start <= step < stop})
        done = segment.series


def _series_of(run: RunDirectory, process: str) -> dict[str, trails.Series]:
    own = [trail for trail in trails.read(run) if trail.process == process and not trail.incarnation]
    return {series.name: series for trail in own for series in trail.series}


def _lacks_steps(series: trails.Series, stop: int) -> bool:
    """Return whether a trail ends before a step, and not only without those that it would pass over until there."""
    return series.looked_at_from(series.count) < stop


def _write(series: trails.Series, start: int, stop: int, recorded: trails.Series) -> None:
    """Write steps over those that have no digests."""
    with refused_as(CannotWriteRun, series.path), open(series.path, "r+b", opener=rundir.open_regular) as file:
        for first, offset, count, size in series.places(start, stop):
            file.seek(offset)
            file.write(recorded.records(first, first + count, size))


def _write_kept(series: trails.Series, digests: Mapping[int, bytes]) -> None:
    """Write the digests of single tensors in places that no later step has."""
    held = {slot: step for step in series.kept() if (slot := series.slot(step)) is not None}
    with refused_as(CannotWriteRun, series.path), open(series.path, "r+b", opener=rundir.open_regular) as file:
        for step, data in sorted(digests.items()):
            slot = series.slot(step)
            if slot is not None and slot[1] == len(data) and step > held.get(slot, -1):
                file.seek(slot[0])
                file.write(data)
