"""Who asked a run for how much entropy: as a document, and on the screen."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from reprokit import entropy
from reprokit.entropy.request_counts import ProcessRequests, Requester, RequestTotals, RunRequests, who_asked
from reprokit.entropy.symbols import ExportedSymbols
from reprokit.errors import RunError
from reprokit.printable import bounded
from reprokit.rundir import ENTROPY, RunDirectory
from reprokit.screen import Cells, print_rows

FORMAT = 1
SHOWN = 20  # rows of a kind on a terminal
MAX_MODULES = 1000  # whose symbols are read
TITLES = Cells(("bytes", "requests", "withheld", "source", "call site", "threads", "asked in"))


@dataclass(frozen=True)
class EntropyRequests:
    """A run and its askers."""

    directory: RunDirectory
    asking: RunRequests
    symbols: dict[Requester, str]
    warnings: list[str]


def report(path: Path) -> EntropyRequests:
    """Read a run's entropy files; raises a RunError where that is impossible."""
    directory = RunDirectory(path)
    asking = who_asked(path / ENTROPY)
    return EntropyRequests(directory, asking, _symbols(asking), list(_damage(directory)))


def _damage(directory: RunDirectory) -> Iterator[str]:
    """Yield what is wrong with the random profile, by its seal."""
    profile = directory.run.profile
    if profile is not None and profile.sealed and directory.run.has_profile:
        try:
            entropy.check(directory.path / ENTROPY, profile)
        except RunError as error:
            yield str(error)


def _symbols(asking: RunRequests) -> dict[Requester, str]:
    """Return the function in which each call stands, where the library is still there and exports it."""
    libraries: dict[str, ExportedSymbols] = {}
    names = {}
    for asker in asking.rows:
        path = asker.module or asker.program
        if path not in libraries and (len(libraries) >= MAX_MODULES or not os.path.isabs(path)):
            continue
        symbols = libraries.setdefault(path, ExportedSymbols(Path(path))) if path not in libraries else libraries[path]
        if name := symbols.name(asker.offset - 1):  # where the call returns to may be the next function
            names[asker] = name
    return names


def document(found: EntropyRequests) -> dict[str, Any]:
    """Everything as a JSON document; reprokit/schemas/show-entropy.schema.json describes it."""
    run, asking = found.directory.run, found.asking
    return {
        "format": FORMAT,
        "path": str(found.directory.path),
        "run_id": run.run_id,
        "kind": run.kind,
        "keyed": run.keyed,
        "totals": {
            **msgspec.to_builtins(asking.total),
            "processes": len(asking.processes) + asking.processes_left_out,
            "threads": asking.threads,
        },
        "processes": [_process(process) for process in asking.processes],
        "processes_left_out": asking.processes_left_out,
        "askers": [_asker(asker, asked, found.symbols) for asker, asked in ordered(asking.rows)],
        "proof": msgspec.to_builtins(run.proof),
        "uncovered": [uncovered.text for uncovered in run.uncovered],
        "warnings": found.warnings,
    }


def _process(process: ProcessRequests) -> dict[str, Any]:
    return {
        "identity": process.identity,
        "incarnation": process.incarnation,
        "program": process.program,
        **msgspec.to_builtins(process.asked),
        "unrecorded": process.unrecorded,
        "matches": process.matches or None,
        "stand_in": process.stand_in or None,
    }


def _asker(asker: Requester, asked: RequestTotals, symbols: dict[Requester, str]) -> dict[str, Any]:
    facts = {**msgspec.to_builtins(asker), "match": asker.match or None, "symbol": symbols.get(asker)}
    return {**facts, **msgspec.to_builtins(asked)}


def ordered(rows: dict[Requester, RequestTotals]) -> list[tuple[Requester, RequestTotals]]:
    """Return the largest first; equal ones by name, so that two readings are the same."""

    def order(row: tuple[Requester, RequestTotals]) -> tuple[Any, ...]:
        return (-row[1].bytes, -row[1].requests, *msgspec.structs.astuple(row[0]))

    return sorted(rows.items(), key=order)


@dataclass
class _RequestGroup:
    """The same call in many threads and processes."""

    asker: Requester  # the first of them
    symbol: str
    asked: RequestTotals = field(default_factory=RequestTotals)
    threads: int = 0
    processes: set[tuple[str, int]] = field(default_factory=set)


def _groups(found: EntropyRequests) -> list[_RequestGroup]:
    groups: dict[tuple[str, ...], _RequestGroup] = {}
    for asker, asked in found.asking.rows.items():
        key = (asker.program, asker.module, str(asker.offset), asker.source, asker.match)
        group = groups.setdefault(key, _RequestGroup(asker, found.symbols.get(asker, "")))
        group.asked.add(asked.requests, asked.bytes, asked.withheld)
        group.threads += 1
        group.processes.add((asker.process, asker.incarnation))
    return sorted(groups.values(), key=lambda group: (-group.asked.bytes, -group.asked.requests, group.asker.module))


def print_report(found: EntropyRequests) -> None:
    """A table on a terminal, with its first rows; every row in a pipe."""
    total, asking = found.asking.total, found.asking
    number = len(asking.processes) + asking.processes_left_out
    headline = (
        f"{found.directory.path}: {total.requests} requests, {total.bytes} bytes, {total.withheld} requests withheld,"
        f" by {asking.threads} threads of {number} processes"
    )
    if found.directory.run.kind == "replay":
        headline = f"{found.directory.path}: a replay; {_matched(asking)}; what was not answered exactly:"
    groups = _groups(found)
    rows = [_row(group) for group in (groups[:SHOWN] if sys.stdout.isatty() else groups)]
    footer = [f"and {len(groups) - len(rows)} more (--json has them all)"] if len(rows) < len(groups) else []
    print_rows(headline, [TITLES, *rows], [*footer, *_first(_process_lines(asking), "processes"), *_notes(found)])


def _row(group: _RequestGroup) -> Cells:
    asker, asked = group.asker, group.asked
    source = f"{asker.source}, {asker.match}" if asker.match else asker.source
    numbers = (str(asked.bytes), str(asked.requests), str(asked.withheld))
    return Cells((*numbers, source, _site(group), str(group.threads), _where(group)))


def _site(group: _RequestGroup) -> str:
    """Library, offset, and function where it is known."""
    path = group.asker.module or group.asker.program
    place = f"{os.path.basename(path)}+{group.asker.offset:#x}" if path else "not told apart"
    return f"{place} ({group.symbol})" if group.symbol else place


def _where(group: _RequestGroup) -> str:
    """Return the process, and its thread where there is one only."""
    program = os.path.basename(group.asker.program)
    identity, incarnation = group.asker.process, group.asker.incarnation
    if len(group.processes) > 1:
        return f"{len(group.processes)} processes of {program}"
    if not identity:
        return "many processes"
    again = f", incarnation {incarnation}" if incarnation else ""
    thread = f", thread {group.asker.thread}" if group.threads == 1 else ""
    return f"process {identity}{again} of {program}{thread}"


def _matched(asking: RunRequests) -> str:
    names = next((list(process.matches) for process in asking.processes if process.matches), [])
    return ", ".join(f"{sum(process.matches.get(name, 0) for process in asking.processes)} {name}" for name in names)


def _first(lines: Iterable[str], what: str) -> Iterator[str]:
    """Yield the first lines on a terminal, and how many more there are."""
    found = list(lines)
    yield from bounded(found, SHOWN if sys.stdout.isatty() else len(found), f" {what} (--json has them all)")


def _process_lines(asking: RunRequests) -> Iterator[str]:
    """Of a replay, how each process was answered, the least exact first; of a keyed run, how much it was given."""

    def loose(process: ProcessRequests) -> int:
        return sum(number for match, number in process.matches.items() if match != "exact")

    told = [process for process in asking.processes if process.matches or (process.asked.requests and not asking.rows)]
    for process in sorted(told, key=lambda process: (-loose(process), -process.asked.bytes)):
        counts = ", ".join(f"{number} {match}" for match, number in process.matches.items())
        counts = counts or f"{process.asked.requests} requests, {process.asked.bytes} bytes"
        yield f"process {process.identity} of {os.path.basename(process.program)}: {counts}"


def _stand_ins(asking: RunRequests) -> Iterator[str]:
    """With --clock, the numbers that stood in for process ids."""
    for process in asking.processes:
        if process.stand_in:
            program = os.path.basename(process.program)
            yield f"process {process.identity} of {program} was told {process.stand_in} as its process id"


def _notes(found: EntropyRequests) -> Iterator[str]:
    if found.directory.run.keyed:
        yield "a keyed run: requests are counted by process only"
    unrecorded = sum(process.unrecorded for process in found.asking.processes)
    if unrecorded:
        yield f"{unrecorded} requests were not recorded"
    yield from _first(_stand_ins(found.asking), "were told such numbers")
    yield from _first((f"not covered: {source.text}" for source in found.directory.run.uncovered), "sources")
    yield from (f"warning: {text}" for text in found.warnings)
