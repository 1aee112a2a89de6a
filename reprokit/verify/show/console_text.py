"""Presents the output of a run's processes, as text and as JSON.

reprokit/schemas/show-console.schema.json describes the document.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reprokit.core.errors import NothingKept
from reprokit.core.printable import printable
from reprokit.run_files import console
from reprokit.run_files.console import STREAMS
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.read.scan import natural

FORMAT = 1
LONGEST = 4000  # characters of a line on a terminal


@dataclass(frozen=True)
class ProcessText:
    """The text that a process printed to one stream: the first part and, after dropped text, the last."""

    process: str
    first: bytes
    last: bytes
    dropped: int
    lost: int


@dataclass(frozen=True)
class PrintedText:
    """The text that a run printed to one stream."""

    path: Path
    stream: int
    texts: list[ProcessText]


def printed_text(path: Path, stream: int) -> PrintedText:
    """Return what the processes of a run printed; raise NothingKept if it was not kept."""
    run = RunDirectory(path)
    if not run.keeps_console:
        raise NothingKept(f"{path}: nothing was kept of what it printed; record without --no-console")
    return PrintedText(path, stream, list(_texts(run, stream)))


def _texts(run: RunDirectory, stream: int) -> Iterator[ProcessText]:
    heads = console.heads(run)
    for process in sorted(heads, key=natural):
        process_console = console.read(run, heads[process])
        first, last = console.text(process_console.first, stream), console.text(process_console.last, stream)
        if first or last:
            yield ProcessText(process, first, last, process_console.dropped, process_console.lost)


def counts(run: RunDirectory) -> Iterator[tuple[str, list[int]]]:
    """Yield each process with console output, and the number of lines of each stream."""
    heads = console.heads(run)
    for process in sorted(heads, key=natural):
        process_console = console.read(run, heads[process])
        pieces = process_console.first + process_console.last
        yield process, [len(console.text(pieces, stream).splitlines()) for stream in range(len(STREAMS))]


def print_text(printed: PrintedText) -> None:
    """Print the text safely for a terminal; with several processes, each below its name."""
    for process_text in printed.texts:
        if len(printed.texts) > 1:
            print(f"==> {printable(f'process {process_text.process}')} <==")
        _print_lines(process_text.first)
        if process_text.dropped:
            print(f"[{process_text.dropped} bytes that both streams were given here were not kept]")
        _print_lines(process_text.last)
        if process_text.lost:
            print(f"[{process_text.lost} bytes after this were not kept]")


def _print_lines(data: bytes) -> None:
    for line in _lines(data):
        print(printable(line, LONGEST).encode("utf-8", "backslashreplace").decode())


def _lines(data: bytes) -> list[str]:
    """Return the lines; of an overwritten line its last state."""
    lines = data.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n") if data else []
    return [line.rstrip("\r").rpartition("\r")[2] for line in lines]


def document(printed: PrintedText) -> dict[str, Any]:
    """Return the text as a JSON document."""
    return {
        "format": FORMAT,
        "path": str(printed.path),
        "stream": STREAMS[printed.stream],
        "processes": [
            {
                "process": process_text.process,
                "lines": _lines(process_text.first),
                "last_lines": _lines(process_text.last),
                "dropped": process_text.dropped,
                "lost": process_text.lost,
            }
            for process_text in printed.texts
        ],
    }
