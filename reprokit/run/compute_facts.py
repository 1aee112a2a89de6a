"""Reads what the libraries of a recording computed with, as its agents took it down."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from reprokit.core.errors import RunError
from reprokit.run_files import rundir
from reprokit.run_files.rundir import RunDirectory

MAX_READ = 16 << 20  # bytes read from the end of metrics.jsonl: processes write these lines as they end
MAX_TEXT = 200
_WANTED = b'{"k":"compute"'
Fact = bool | int | str | list[str] | None


class _ComputeLine(msgspec.Struct):
    """A line of kind compute in metrics.jsonl; other fields are ignored."""

    p: str
    name: str
    library: str
    facts: dict[str, Fact]


class ComputeFacts(msgspec.Struct, frozen=True):
    """The compute facts of all processes, those nearest to the command first."""

    lines: list[_ComputeLine] = msgspec.field(default_factory=list)

    def all(self, library: str, fact: str) -> list[Any]:
        """Return a library's fact in each process that reported it."""
        return [line.facts[fact] for line in self.lines if line.library == library and line.facts.get(fact) is not None]

    def number(self, library: str, fact: str) -> int | None:
        """Return a number from the first process that reported it; the highest if it loaded several copies."""
        facts = [(line.p, line.facts.get(fact)) for line in self.lines if line.library == library]
        counts = [(process, value) for process, value in facts if type(value) is int]
        return max((value for process, value in counts if process == counts[0][0]), default=None)

    def text(self, library: str, fact: str) -> str:
        """Return a text from the first process that reported it; empty if none did."""
        return next((value for value in self.all(library, fact) if isinstance(value, str)), "")[:MAX_TEXT]

    def texts(self, library: str, fact: str) -> list[str]:
        """Return the texts that any process reported, sorted."""
        lists = [value for value in self.all(library, fact) if isinstance(value, list)]
        return sorted({text[:MAX_TEXT] for texts in lists for text in texts})

    def has(self, library: str) -> bool:
        """Return whether any process used the library."""
        return any(line.library == library for line in self.lines)


def read_compute_facts(run: RunDirectory) -> ComputeFacts:
    """Return a run's compute facts; none if its metrics are missing or damaged, which verify reports."""
    try:
        descriptor = run.open(rundir.METRICS)
    except RunError:
        return ComputeFacts()
    with os.fdopen(descriptor, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_READ))
        lines = file.read(MAX_READ).split(b"\n")
    compute_lines = [line for raw in lines if raw.startswith(_WANTED) and (line := _decoded_line(raw)) is not None]
    return ComputeFacts(sorted(compute_lines, key=lambda line: (len(line.p), line.p)))


def _decoded_line(raw: bytes) -> _ComputeLine | None:
    try:
        return msgspec.json.decode(raw, type=_ComputeLine)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
