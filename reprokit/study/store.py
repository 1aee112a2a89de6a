"""Reads and writes the directory of a study: its plan, and a line per run and pair, from which it resumes.

The directory is untrusted: sizes are bounded, links are not followed, nothing is executed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

from reprokit.core.errors import CannotWriteRun, StudyDamaged, reason, refused_as
from reprokit.run_files.rundir import open_regular, write_whole
from reprokit.study import results
from reprokit.study.description import Study
from reprokit.study.results import PairPlace, PairResult, RunResult

FORMAT: Final = 1
STUDY: Final = "study.json"
RESULTS: Final = "results.jsonl"
PAIRS: Final = "pairs.jsonl"
RUNS: Final = "runs"
LOGS: Final = "logs"
PREDICTIONS: Final = "predictions"
LOCK: Final = "lock"

MAX_STUDY: Final = 64 << 20  # bytes of study.json
MAX_LINES: Final = 1_000_000
MAX_BYTES: Final = 8 << 30  # bytes of a file of lines

R = TypeVar("R", RunResult, PairResult)


class StudyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """study.json: what was planned, on which machine; never changed."""

    format: Literal[1] = FORMAT
    reprokit: str  # version of reprokit that began it
    study: Study
    base: str  # directory that its paths are relative to
    source: str = ""  # path of STUDY.toml
    digest: str = ""  # "sha256:..." of STUDY.toml
    started: str = ""  # ISO 8601, UTC
    host: dict[str, Any] = {}  # facts of the machine that began it
    order: list[PairPlace] = []

    def __post_init__(self) -> None:
        names = {setup.name for setup in self.study.setup}
        if not all(place.setup in names for place in self.order):
            raise ValueError("its order names a setup that it does not have")


def name_of(setup: str, pair: int, part: str) -> str:
    """Return the base name of the files of a run."""
    return f"{setup}-{pair:02d}-{part}"


def write_study(directory: Path, study: StudyFile) -> None:
    """Write study.json, completely or not at all."""
    data = msgspec.json.format(msgspec.json.encode(study), indent=2) + b"\n"
    with refused_as(CannotWriteRun, directory / STUDY, "choose another directory with -o"):
        write_whole(directory / STUDY, data, synced=True)


def read_study(directory: Path) -> StudyFile:
    """Read study.json; raises StudyDamaged."""
    path = directory / STUDY
    try:
        with open(path, "rb", opener=open_regular) as file:
            data = file.read(MAX_STUDY + 1)
    except FileNotFoundError:
        raise StudyDamaged(f"{directory} holds no {STUDY}: it is not the directory of a study") from None
    except OSError as error:
        raise StudyDamaged(f"{path}: {error.strerror}") from None
    try:
        if len(data) > MAX_STUDY:
            raise ValueError(f"it is larger than {MAX_STUDY} bytes")
        return msgspec.json.decode(data, type=StudyFile)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise StudyDamaged(f"{path}: {reason(error)}; the study cannot be used") from None


def read_results(directory: Path) -> list[RunResult]:
    """Return the result of each run, in the order in which they ended; the last line of a repeated run counts."""
    return _latest(_read(directory / RESULTS, RunResult), lambda run: (run.place, run.part))


def read_pairs(directory: Path) -> list[PairResult]:
    """Return the result of each pair."""
    return _latest(_read(directory / PAIRS, PairResult), lambda pair: pair.place)


def _latest(lines: Iterator[R], key: Callable[[R], object]) -> list[R]:
    """Return the last line of each key, in the order of these lines."""
    latest: dict[object, R] = {}
    for line in lines:
        latest.pop(key(line), None)
        latest[key(line)] = line
    return list(latest.values())


def add_result(directory: Path, result: RunResult) -> None:
    """Append the line of an ended run, synchronously to the disk."""
    line = results.encode(result)
    if len(line) > results.MAX_LINE:
        notes = [*result.notes, "its metrics and evaluations are too long for a line, and were left out"]
        line = results.encode(msgspec.structs.replace(result, series=[], evaluations=[], notes=notes))
    _append(directory / RESULTS, line)


def add_pair(directory: Path, result: PairResult) -> None:
    """Append the line of a pair that was compared."""
    _append(directory / PAIRS, results.encode(result))


def _read(path: Path, kind: type[R]) -> Iterator[R]:
    """Yield the complete lines of a file; a last line that a crash cut short is omitted."""
    try:
        file = open(path, "rb", opener=open_regular)  # noqa: SIM115
    except FileNotFoundError:
        return
    except OSError as error:
        raise StudyDamaged(f"{path}: {error.strerror}") from None
    with file:
        if os.fstat(file.fileno()).st_size > MAX_BYTES:
            raise StudyDamaged(f"{path} is larger than {MAX_BYTES} bytes; the study cannot be used")
        for number, line in enumerate(iter(lambda: file.readline(results.MAX_LINE + 1), b""), 1):
            if number > MAX_LINES or len(line) > results.MAX_LINE:
                raise StudyDamaged(f"{path}, line {number}: more than a study has; the study cannot be used")
            if not line.endswith(b"\n"):
                return
            yield _decoded(path, number, line, kind)


def _decoded(path: Path, number: int, line: bytes, kind: type[R]) -> R:
    try:
        return results.decode(line, kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise StudyDamaged(f"{path}, line {number}: {reason(error)}; the study cannot be used") from None


def _append(path: Path, line: bytes) -> None:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    with refused_as(CannotWriteRun, path, "make room, then start the same command again"):
        descriptor = os.open(path, flags, 0o600)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            _drop_cut_line(file.fileno())
            view = memoryview(line + b"\n")
            while view:
                view = view[file.write(view) :]
            os.fsync(file.fileno())


def _drop_cut_line(descriptor: int) -> None:
    """Remove the incomplete line that a crash left at the end, so that the next one is not appended to it."""
    size = end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - (1 << 16))
        block = os.pread(descriptor, end - start, start)
        newline = block.rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        os.ftruncate(descriptor, end)
