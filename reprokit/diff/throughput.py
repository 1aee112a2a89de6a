"""Measures how fast a data set is read by a number of threads; each thread reads whole files."""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from reprokit.core.pages import drawing
from reprokit.core.printable import printable
from reprokit.core.screen import Cells, print_rows
from reprokit.diff import records
from reprokit.diff.record_check import files_word

FORMAT = 1  # of the JSON document
MEGABYTE = 1_000_000
PLOT: Final = (480, 300)
STYLE: Final = (
    "<style>text{font:12px sans-serif;fill:#333}path{fill:none;stroke:#bbb}"
    "polyline{fill:none;stroke:#1f77b4;stroke-width:2}circle{fill:#1f77b4}</style>"
)


@dataclass
class ThroughputPass:
    """The figures of one pass over all files."""

    threads: int
    seconds: float = 0.0
    size: int = 0  # bytes as stored
    records: int = 0
    bad: int = 0
    batches: list[tuple[float, int, int]] = field(default_factory=list)  # seconds, index of the file, batch in it

    def gap(self, share: float) -> float:
        """Return a quantile (share 0 to 1) of the seconds between batches, counted from the start of the pass."""
        times = [0.0, *(at for at, _, _ in self.batches)]
        gaps = sorted(after - before for before, after in pairwise(times))
        return gaps[math.ceil(share * len(gaps)) - 1] if gaps else 0.0

    @property
    def order(self) -> str:
        """The SHA-256 digest of the order in which batches were completed."""
        return hashlib.sha256("".join(f"{file} {number}\n" for _, file, number in self.batches).encode()).hexdigest()


@dataclass
class MeasuredThroughput:
    """The figures of all passes over a data set."""

    path: str
    batch: int  # records
    files: int = 0
    passes: list[ThroughputPass] = field(default_factory=list)
    not_read: Counter[str] = field(default_factory=Counter)  # files by kind


def measure(path: str, threads: Sequence[int], batch: int) -> MeasuredThroughput:
    """Read a data set once for each number of threads."""
    result, missing = MeasuredThroughput(path, batch), ""
    files = [file for file in records.files(path) if file is not None]
    for count in threads:
        reading, unreadable = _pass(files, count, batch)
        result.passes.append(reading)
        result.not_read.update(map(str, unreadable.values()))
        missing = missing or next((kind.library for kind in unreadable.values() if kind.library), "")
        files = [file for file in files if file.name not in unreadable]
    result.files = len(files)
    if not files:
        raise records.none_known(path, missing)
    return result


def _pass(
    files: Sequence[records.RecordFile], threads: int, batch: int
) -> tuple[ThroughputPass, dict[str, records.NotARecordFile]]:
    """Read all files; returns also of which kind those are that cannot be read."""
    reading, unreadable = ThroughputPass(threads), dict[str, records.NotARecordFile]()
    began = time.perf_counter()

    def read(position: int) -> tuple[int, int, int]:
        file = files[position]
        source = file.open()
        good = bad = batches = 0
        try:
            for batch_records in records.read(file.name, source, whole=True):
                bad += bool(batch_records.problem)
                good += 0 if batch_records.problem else batch_records.amount
                while (batches + 1) * batch <= good:
                    reading.batches.append((time.perf_counter() - began, position, batches))
                    batches += 1
        except records.NotARecordFile as kind:
            unreadable[file.name] = kind
            return 0, 0, 0
        if good > batches * batch:
            reading.batches.append((time.perf_counter() - began, position, batches))
        return source.size, good, bad

    with ThreadPoolExecutor(threads) as pool:
        sums = [sum(column) for column in zip(*pool.map(read, range(len(files))), strict=True)]
    reading.size, reading.records, reading.bad = sums or (0, 0, 0)
    reading.seconds = time.perf_counter() - began
    return reading, unreadable


def document(result: MeasuredThroughput) -> dict[str, Any]:
    """Return the JSON document that --json prints."""
    return {
        "format": FORMAT,
        "path": result.path,
        "batch": result.batch,
        "files": result.files,
        "not_read": dict(sorted(result.not_read.items())),
        "passes": [
            {
                "threads": reading.threads,
                "seconds": reading.seconds,
                "size": reading.size,
                "records": reading.records,
                "bad": reading.bad,
                "batches": len(reading.batches),
                "longest_gap": reading.gap(1.0),
                "gap_p99": reading.gap(0.99),
                "order": f"sha256:{reading.order}",
            }
            for reading in result.passes
        ],
    }


def print_throughput(result: MeasuredThroughput) -> None:
    """Print a line for each number of threads."""
    rows = [Cells(("threads", "MB/s", "records/s", "longest gap", "p99 gap", "order of batches"))]
    for reading in result.passes:
        rates = (f"{rate(reading):.1f}", f"{reading.records / reading.seconds:.0f}")
        gaps = [f"{1000 * reading.gap(share):.2f} ms" for share in (1.0, 0.99)]
        latencies = (*gaps, reading.order[:16]) if reading.batches else ("-", "-", "-")
        rows.append(Cells((str(reading.threads), *rates, *latencies)))
    last = result.passes[-1]
    footer = [f"not read: {count} {files_word(count)} ({kind})" for kind, count in sorted(result.not_read.items())]
    if last.bad:
        footer.append(f"{last.bad} bad {'record' if last.bad == 1 else 'records'}: see 'reprokit data check'")
    headline = f"{result.files} {files_word(result.files)} of {last.size} bytes, batches of {result.batch} records"
    print_rows(headline, rows, footer)


def rate(reading: ThroughputPass) -> float:
    """Return the throughput of a pass in MB/s."""
    return reading.size / reading.seconds / MEGABYTE


def plot(result: MeasuredThroughput) -> str:
    """Return a standalone SVG plot of MB/s by threads."""
    (width, height), passes = PLOT, sorted(result.passes, key=lambda reading: reading.threads)
    across = drawing.axis([float(reading.threads) for reading in passes], 60, width - 20)
    up = drawing.axis([0.0, *map(rate, passes)], height - 40, 30)
    body = [STYLE, drawing.text((60, 18), f"MB/s by threads: {printable(result.path)}")]
    body.append(drawing.path("axis", f"M60 30V{height - 40}H{width - 20}"))
    body += [drawing.text((54, round(up.place(mark)) + 4), f"{mark:g}", "end") for mark in up.marks(5)]
    points = [(across.place(float(reading.threads)), up.place(rate(reading))) for reading in passes]
    for reading, (x, _) in zip(passes, points, strict=True):
        body.append(drawing.text((round(x), height - 20), str(reading.threads), "middle"))
    body += [drawing.line(points, "line"), *(drawing.line([point], "dot", 4) for point in points)]
    spoken = "; ".join(f"{reading.threads} threads {rate(reading):.1f} MB/s" for reading in passes)
    svg = drawing.drawing(PLOT, "throughput", "Throughput by threads", spoken, body)
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
