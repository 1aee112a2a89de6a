"""Reads the observations of agents: RUN/profile/*.jsonl, one untrusted file per process.

The number and size of files and lines are bounded; an invalid line is counted and skipped.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any

import msgspec

from reprokit.core import untrusted_json
from reprokit.core.errors import RunError
from reprokit.run_files.findings import CodePlace
from reprokit.run_files.rundir import PROFILE, RunDirectory

MAX_FILES = 1024
MAX_FILE = 64 << 20  # bytes
MAX_TOTAL = 1 << 30
MAX_LINE = 64 << 10
MAX_TEXT = 500  # characters of a name

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Line = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
Frame = tuple[str, Line, str]  # file, line, function
Name = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]


class ObservedProcess(msgspec.Struct, frozen=True, tag_field="kind", tag="process"):
    """The process that wrote the file."""

    pid: Count = 0
    identity: Name = ""
    argv: list[str] = []
    steps: Count = 0
    sampled_steps: Count = 0  # steps in which functions were counted
    left_out: Count = 0


class Helper(msgspec.Struct, frozen=True, tag_field="kind", tag="helper"):
    """A process that the agent started for measurements, which is no part of the training."""

    pid: Count


class Note(msgspec.Struct, frozen=True, tag_field="kind", tag="note"):
    """A note on what could not be observed, and why."""

    text: str


class Sampling(msgspec.Struct, frozen=True, tag_field="kind", tag="sampling"):
    """The share of a framework's steps in which its operators were observed."""

    framework: Name = ""
    steps: Count = 0
    observed: Count = 0


class _Executed(msgspec.Struct, frozen=True, kw_only=True):
    """An operator, or code that a compiler made."""

    framework: Name
    version: Name = ""
    name: Name
    overload: Name = ""
    phase: Name = ""
    device: Name = ""
    dtypes: list[str] = []
    attributes: dict[str, Any] = {}
    where: list[Frame] = []
    calls: Count = 0


class OperatorLine(_Executed, frozen=True, kw_only=True, tag_field="kind", tag="operator"):
    """A distinct call of an operator."""


class ConfirmedCall(_Executed, frozen=True, kw_only=True, tag_field="kind", tag="confirmed"):
    """The result of executing a distinct call again."""

    repeats: Count = 0
    results: Count = 0
    threads: dict[str, str] = {}
    capabilities: dict[str, str] = {}
    problem: str = ""


class CompiledCode(_Executed, frozen=True, kw_only=True, tag_field="kind", tag="compiled"):
    """Code that a compiler made."""

    function: str = ""
    operators: list[str] = []


class Function(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="function"):
    """A function of a library, with the places that call it."""

    name: Name
    calls: Count = 0
    where: list[tuple[str, Line, str, Count]] = []


class Setting(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="setting"):
    """A switch of a framework, or a variable, as it was."""

    name: Name
    value: Any = None
    where: Any = None


class Loader(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="loader"):
    """A data loader, parallel or not."""

    name: Name
    workers: int | str | None = None
    deterministic: bool | str | None = None
    where: list[Frame] = []
    calls: Count = 0


class Completion(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="completion"):
    """A place that takes results in the order of their completion."""

    name: Name
    ordered: bool = False  # whether the results are put in order afterwards: Pool.map
    calls: Count = 0
    where: list[Frame] = []


Observed = (
    ObservedProcess
    | Helper
    | Note
    | Sampling
    | OperatorLine
    | ConfirmedCall
    | CompiledCode
    | Function
    | Setting
    | Loader
    | Completion
)  # one line of a file


class ObservedLines:
    """The observed lines of a run, and the errors in them."""

    def __init__(self, run: RunDirectory):
        self._run = run
        self._room = MAX_TOTAL
        self.bad = 0  # lines that could not be read
        self.notes: list[str] = []

    def __iter__(self) -> Iterator[tuple[int, Observed]]:
        """Yield each line, with the number of its process."""
        for number, name in enumerate(self._names()):
            for line in self._lines(name):
                observed = self._decoded(line)
                if observed is not None:
                    yield number, observed

    def _names(self) -> list[str]:
        directory = self._run.path / PROFILE
        try:
            if not stat.S_ISDIR(os.lstat(directory).st_mode):
                raise NotADirectoryError(20, "not a directory")
            entries = os.listdir(directory)
        except OSError as error:
            self.notes.append(f"what was observed cannot be read: {error.strerror}")
            return []
        names = sorted(name for name in entries if name.endswith(".jsonl"))
        if len(names) > MAX_FILES:
            self.notes.append(f"{len(names) - MAX_FILES} processes beyond the first {MAX_FILES} are left out")
        if "more" in entries:  # one byte for each process whose agent wrote no file
            with suppress(OSError):  # the run is being deleted
                self.notes.append(f"{os.lstat(directory / 'more').st_size} further processes were not observed")
        return names[:MAX_FILES]

    def _lines(self, name: str) -> Iterator[bytes]:
        try:
            with os.fdopen(self._run.open(os.path.join(PROFILE, name)), "rb") as file:
                room = min(MAX_FILE, self._room)
                while room > 0 and (line := file.readline(MAX_LINE + 1)):
                    room -= len(line)
                    self._room -= len(line)
                    yield line
                if room <= 0:
                    self.notes.append(f"{name} is larger than what is read of it")
        except (RunError, OSError) as error:
            self.notes.append(str(error))

    def _decoded(self, line: bytes) -> Observed | None:
        try:
            if len(line) <= MAX_LINE:
                return msgspec.convert(untrusted_json.loads(line), Observed)  # type: ignore[no-any-return]
        except (msgspec.MsgspecError, ValueError):
            pass
        self.bad += 1
        return None


def place(frame: Frame | tuple[str, int, str, int]) -> CodePlace:
    """Return a frame as a place of code."""
    return CodePlace(frame[0][:MAX_TEXT], frame[1], frame[2][:MAX_TEXT])
