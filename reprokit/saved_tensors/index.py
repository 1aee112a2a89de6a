"""Reads the indexes of saved tensors, one file per process, as far as they have been written.

docs/format.md describes the lines. Run directories are untrusted: each size is bounded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal, Protocol

import msgspec

from reprokit.core.bounds import bounded_names, open_file
from reprokit.core.errors import RunDamaged, RunTooNew, reason

FORMAT: Final = 1
ENDING: Final = ".jsonl"
KEY = re.compile(r"[0-9a-f]{16}-[0-9]{1,9}")
MAX_BYTES = 4 << 30  # of one index
MAX_LINE = 1 << 20
BLOCK = 8 << 20  # bytes per read
UNREADABLE: Final = "its tensors cannot be read"

Text = Annotated[str, msgspec.Meta(max_length=4096)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Mode = Literal["train", "eval", "predict", "global"]
Number = float | Literal["nan", "inf", "-inf"] | None  # JSON has no numbers that are not finite


class IndexLine(msgspec.Struct, frozen=True):
    """One line of an index; its kind follows from the fields that are set."""

    format: int | None = None
    process: Text = ""
    rank: Text = ""
    tensor: Text | None = None
    collections: Annotated[list[Text], msgspec.Meta(max_length=64)] = []
    aliases: Annotated[list[Text], msgspec.Meta(max_length=1000)] = []
    module: Text = ""
    layer: Text = msgspec.field(default="", name="class")
    place: tuple[Text, Count] | None = None
    placement: Text = ""  # which part of a DTensor the process has
    step: Count | None = None
    mode: Mode = "global"
    name: Text = ""
    call: Count = 0
    shard: Annotated[int, msgspec.Meta(ge=0, le=999_999_999)] | None = None
    key: Text = ""
    dtype: Text = ""
    digest: Text = ""
    shape: Annotated[list[Count], msgspec.Meta(max_length=64)] = []
    reductions: Annotated[dict[Text, Number], msgspec.Meta(max_length=64)] = {}
    unproved: Text = ""  # why 'ask' could not prove a value that no trail sees; empty for all others
    # Of an eager replay of compiled code, and not seen by the trail, which finds that replay to be the run.
    eager: bool = False
    passed: Count | None = None
    dropped: Annotated[int, msgspec.Meta(ge=-1, le=1 << 53)] | None = None  # -1: everything that follows
    why: Text = ""
    end: bool = False


_DECODER = msgspec.json.Decoder(IndexLine)


class ProcessIndex(Protocol):
    """What one process of the training saved, as lines."""

    order: list[tuple[str, int]]  # modes and steps whose values are complete, in temporal order

    @property
    def key(self) -> str: ...
    @property
    def name(self) -> str: ...
    def has_passed(self, mode: str, step: int) -> bool: ...
    def new_lines(self) -> Iterator[IndexLine]: ...


class WorkerIndex:
    """The index of one process of the training."""

    def __init__(self, directory: Path, key: str) -> None:
        self.key = key
        self.name = key  # until its first line has been read
        self.order: list[tuple[str, int]] = []  # modes and steps whose values are complete, in temporal order
        self.last: dict[str, int] = {}
        self.ended = False
        self._path = directory / f"{key}{ENDING}"
        self._offset = 0
        self._lines = 0

    def has_passed(self, mode: str, step: int) -> bool:
        """Return whether the process has completed this step."""
        return self.ended or self.last.get(mode, -1) >= step

    def new_lines(self) -> Iterator[IndexLine]:
        """Yield the lines written since the last call; an incomplete line is left for the next call."""
        with os.fdopen(open_file(self._path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < self._offset or size > MAX_BYTES:
                raise RunDamaged(
                    f"{self._path} was cut, or is larger than {MAX_BYTES} bytes; its tensors cannot be read"
                )
            file.seek(self._offset)
            while data := file.read(BLOCK):
                whole = data[: data.rfind(b"\n") + 1]
                if len(data) - len(whole) > MAX_LINE:
                    raise RunDamaged(
                        f"{self._path} has a line of more than {MAX_LINE} bytes; its tensors cannot be read"
                    )
                for line in whole.splitlines():
                    yield self._line(line)
                self._offset += len(whole)
                file.seek(self._offset)
                if len(data) < BLOCK:
                    return

    def _line(self, text: bytes) -> IndexLine:
        self._lines += 1
        try:
            line = _DECODER.decode(text)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise RunDamaged(f"{self._path}, line {self._lines}: {reason(error)}; {UNREADABLE}") from None
        if self._lines == 1:
            self._begin(line)
        if line.passed is not None:
            self.order.append((line.mode, line.passed))
            self.last[line.mode] = max(line.passed, self.last.get(line.mode, -1))
        self.ended = self.ended or line.end
        return line

    def _begin(self, line: IndexLine) -> None:
        if line.format is None or line.format < 1:
            raise RunDamaged(f"{self._path} does not begin as an index of tensors; {UNREADABLE}")
        if line.format > FORMAT:
            newer = f"has format {line.format}, this reprokit reads up to {FORMAT}"
            raise RunTooNew(f"{self._path} {newer}; upgrade reprokit")
        self.name = f"rank{line.rank}" if line.rank else line.process or self.key


def keys(directory: Path) -> list[str]:
    """Return the keys of the processes that saved tensors, as in the names of their files."""
    names = (name.removesuffix(ENDING) for name in bounded_names(directory, ENDING))
    return [name for name in names if KEY.fullmatch(name)]
