"""Reads what a run's libraries computed with, from the last lines of its metrics; in bounded time and memory."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from reprokit import rundir
from reprokit.errors import RunError
from reprokit.rundir import RunDirectory

MAX_READ = 16 << 20  # bytes from the end of metrics.jsonl: processes tell it as they end
MAX_TEXT = 200
_WANTED = b'{"k":"compute"'

Fact = bool | int | str | list[str] | None


class _Line(msgspec.Struct):
    """A line of kind compute, as far as it matters here."""

    p: str
    name: str
    library: str
    facts: dict[str, Fact]


class Computed(msgspec.Struct, frozen=True):
    """What every process told, those nearest to the command first."""

    lines: list[_Line] = msgspec.field(default_factory=list)

    def all(self, library: str, fact: str) -> list[Any]:
        """What the processes told of a library."""
        return [line.facts[fact] for line in self.lines if line.library == library and line.facts.get(fact) is not None]

    def number(self, library: str, fact: str) -> int | None:
        """A count, of the first process that told it; the highest where it has several copies of the library."""
        found = [(line.p, line.facts.get(fact)) for line in self.lines if line.library == library]
        counts = [(process, value) for process, value in found if type(value) is int]
        return max((value for process, value in counts if process == counts[0][0]), default=None)

    def text(self, library: str, fact: str) -> str:
        """A choice, of the first process that told it."""
        return next((value for value in self.all(library, fact) if isinstance(value, str)), "")[:MAX_TEXT]

    def texts(self, library: str, fact: str) -> list[str]:
        """Everything that any process told."""
        lists = [value for value in self.all(library, fact) if isinstance(value, list)]
        return sorted({text[:MAX_TEXT] for texts in lists for text in texts})

    def has(self, library: str) -> bool:
        """Whether any process used it."""
        return any(line.library == library for line in self.lines)


def read(run: RunDirectory) -> Computed:
    """What a run told; nothing where it has no metrics or they make no sense: verify says so."""
    try:
        descriptor = run.open(rundir.METRICS)
    except RunError:
        return Computed()
    with os.fdopen(descriptor, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_READ))
        lines = file.read(MAX_READ).split(b"\n")
    found = [line for raw in lines if raw.startswith(_WANTED) and (line := _decoded(raw)) is not None]
    return Computed(sorted(found, key=lambda line: (len(line.p), line.p)))


def _decoded(raw: bytes) -> _Line | None:
    try:
        return msgspec.json.decode(raw, type=_Line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
