"""What the processes of a run printed, as text and as JSON.

reprokit/schemas/show-console.schema.json describes the document.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reprokit import console
from reprokit.console import STREAMS
from reprokit.errors import NothingKept
from reprokit.printable import printable
from reprokit.rundir import RunDirectory
from reprokit.verify.read.scan import natural

FORMAT = 1
LONGEST = 4000  # characters of a line on the screen


@dataclass(frozen=True)
class ProcessText:
    """What a process printed to one stream: the first part, and behind what was dropped the last."""

    process: str
    first: bytes
    last: bytes
    dropped: int
    lost: int


@dataclass(frozen=True)
class PrintedText:
    """What a run printed to one stream."""

    path: Path
    stream: int
    texts: list[ProcessText]


def printed_text(path: Path, stream: int) -> PrintedText:
    """Return what the processes of a run printed; raises NothingKept where that was not kept."""
    run = RunDirectory(path)
    if not run.keeps_console:
        raise NothingKept(f"{path}: nothing was kept of what it printed; record without --no-console")
    return PrintedText(path, stream, list(_texts(run, stream)))


def _texts(run: RunDirectory, stream: int) -> Iterator[ProcessText]:
    heads = console.heads(run)
    for process in sorted(heads, key=natural):
        found = console.read(run, heads[process])
        first, last = console.text(found.first, stream), console.text(found.last, stream)
        if first or last:
            yield ProcessText(process, first, last, found.dropped, found.lost)


def counts(run: RunDirectory) -> Iterator[tuple[str, list[int]]]:
    """Yield each process that printed, with the number of lines of each stream."""
    heads = console.heads(run)
    for process in sorted(heads, key=natural):
        found = console.read(run, heads[process])
        pieces = found.first + found.last
        yield process, [len(console.text(pieces, stream).splitlines()) for stream in range(len(STREAMS))]


def print_text(found: PrintedText) -> None:
    """Print it line by line, safe for a terminal; where several processes printed, each below its name."""
    for text in found.texts:
        if len(found.texts) > 1:
            print(f"==> {printable(f'process {text.process}')} <==")
        _print_lines(text.first)
        if text.dropped:
            print(f"[{text.dropped} bytes that both streams were given here were not kept]")
        _print_lines(text.last)
        if text.lost:
            print(f"[{text.lost} bytes after this were not kept]")


def _print_lines(data: bytes) -> None:
    for line in _lines(data):
        print(printable(line, LONGEST).encode("utf-8", "backslashreplace").decode())


def _lines(data: bytes) -> list[str]:
    """Return the lines; one that was written over, as it was at last."""
    lines = data.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n") if data else []
    return [line.rstrip("\r").rpartition("\r")[2] for line in lines]


def document(found: PrintedText) -> dict[str, Any]:
    """Return it as a JSON document."""
    return {
        "format": FORMAT,
        "path": str(found.path),
        "stream": STREAMS[found.stream],
        "processes": [
            {
                "process": text.process,
                "lines": _lines(text.first),
                "last_lines": _lines(text.last),
                "dropped": text.dropped,
                "lost": text.lost,
            }
            for text in found.texts
        ],
    }
