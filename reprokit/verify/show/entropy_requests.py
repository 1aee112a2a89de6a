"""Presents who requested how much entropy in a run, as a document and as a table."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from reprokit import entropy
from reprokit.core.errors import RunError
from reprokit.core.printable import bounded
from reprokit.core.screen import Cells, print_rows
from reprokit.entropy.request_counts import ProcessRequests, Requester, RequestTotals, RunRequests, who_asked
from reprokit.entropy.symbols import ExportedSymbols
from reprokit.model.plan import past_tense
from reprokit.run_files.rundir import ENTROPY, RunDirectory
from reprokit.verify.verdict import NOT_EXACTLY

FORMAT = 1
SHOWN = 20  # rows of each kind on a terminal
MAX_MODULES = 1000  # modules whose symbols are read
TITLES = Cells(("bytes", "requests", "withheld", "source", "call site", "threads", "asked in"))


@dataclass(frozen=True)
class EntropyRequests:
    """A run and its entropy requests."""

    directory: RunDirectory
    asking: RunRequests
    symbols: dict[Requester, str]
    warnings: list[str]


def report(path: Path) -> EntropyRequests:
    """Read a run's entropy files; raise a RunError if that is impossible."""
    directory = RunDirectory(path)
    asking = who_asked(path / ENTROPY)
    return EntropyRequests(directory, asking, _symbols(asking), list(_damage(directory)))


def _damage(directory: RunDirectory) -> Iterator[str]:
    """Yield what is wrong with the random profile, according to its seal."""
    profile = directory.run.profile
    if profile is not None and profile.sealed and directory.run.has_profile:
        try:
            entropy.check(directory.path / ENTROPY, profile)
        except RunError as error:
            yield str(error)


def _symbols(asking: RunRequests) -> dict[Requester, str]:
    """Return the function of each call, if its library still exists and exports it."""
    libraries: dict[str, ExportedSymbols] = {}
    names = {}
    for requester in asking.rows:
        path = requester.module or requester.program
        if path not in libraries and (len(libraries) >= MAX_MODULES or not os.path.isabs(path)):
            continue
        symbols = libraries.setdefault(path, ExportedSymbols(Path(path))) if path not in libraries else libraries[path]
        if name := symbols.name(requester.offset - 1):  # the return address may be in the next function
            names[requester] = name
    return names


def document(found: EntropyRequests) -> dict[str, Any]:
    """Return everything as a JSON document; see reprokit/schemas/show-entropy.schema.json."""
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
        "processes": [_process_entry(process) for process in asking.processes],
        "processes_left_out": asking.processes_left_out,
        "askers": [_requester_entry(requester, totals, found.symbols) for requester, totals in ordered(asking.rows)],
        "proof": msgspec.to_builtins(run.proof),
        "uncovered": [uncovered.text for uncovered in run.uncovered],
        "warnings": found.warnings,
    }


def _process_entry(process: ProcessRequests) -> dict[str, Any]:
    return {
        "identity": process.identity,
        "incarnation": process.incarnation,
        "program": process.program,
        **msgspec.to_builtins(process.asked),
        "unrecorded": process.unrecorded,
        "matches": process.matches or None,
        "stand_in": process.stand_in or None,
        "clock_reads": process.clock_reads,
    }


def _requester_entry(requester: Requester, totals: RequestTotals, symbols: dict[Requester, str]) -> dict[str, Any]:
    facts = {**msgspec.to_builtins(requester), "match": requester.match or None, "symbol": symbols.get(requester)}
    return {**facts, **msgspec.to_builtins(totals)}


def ordered(rows: dict[Requester, RequestTotals]) -> list[tuple[Requester, RequestTotals]]:
    """Return the rows by size, largest first; equal ones by name, so that the order is reproducible."""

    def order(row: tuple[Requester, RequestTotals]) -> tuple[Any, ...]:
        return (-row[1].bytes, -row[1].requests, *msgspec.structs.astuple(row[0]))

    return sorted(rows.items(), key=order)


@dataclass
class _RequestGroup:
    """Requests by the same call in many threads and processes."""

    asker: Requester  # the first one
    symbol: str
    asked: RequestTotals = field(default_factory=RequestTotals)
    threads: int = 0
    processes: set[tuple[str, int]] = field(default_factory=set)


def _groups(found: EntropyRequests) -> list[_RequestGroup]:
    groups: dict[tuple[str, ...], _RequestGroup] = {}
    for requester, totals in found.asking.rows.items():
        key = (requester.program, requester.module, str(requester.offset), requester.source, requester.match)
        group = groups.setdefault(key, _RequestGroup(requester, found.symbols.get(requester, "")))
        group.asked.add(totals.requests, totals.bytes, totals.withheld)
        group.threads += 1
        group.processes.add((requester.process, requester.incarnation))
    return sorted(groups.values(), key=lambda group: (-group.asked.bytes, -group.asked.requests, group.asker.module))


def print_report(found: EntropyRequests) -> None:
    """Print a table: its first rows on a terminal, all rows in a pipe."""
    total, asking = found.asking.total, found.asking
    number = len(asking.processes) + asking.processes_left_out
    headline = (
        f"{found.directory.path}: {total.requests} requests, {total.bytes} bytes, {total.withheld} requests withheld,"
        f" by {asking.threads} threads of {number} processes"
    )
    if found.directory.run.kind == "replay":
        headline = f"{found.directory.path}: a replay; {_match_counts(asking)}; {NOT_EXACTLY}"
    groups = _groups(found)
    rows = [_row(group) for group in (groups[:SHOWN] if sys.stdout.isatty() else groups)]
    footer = [f"and {len(groups) - len(rows)} more (--json has them all)"] if len(rows) < len(groups) else []
    print_rows(
        headline, [TITLES, *rows], [*footer, *_bounded_lines(_process_lines(asking), "processes"), *_notes(found)]
    )


def _row(group: _RequestGroup) -> Cells:
    requester, totals = group.asker, group.asked
    source = f"{requester.source}, {requester.match}" if requester.match else requester.source
    numbers = (str(totals.bytes), str(totals.requests), str(totals.withheld))
    return Cells((*numbers, source, _site(group), str(group.threads), _where(group)))


def _site(group: _RequestGroup) -> str:
    """Return library, offset and, if known, function of the call."""
    path = group.asker.module or group.asker.program
    place = f"{os.path.basename(path)}+{group.asker.offset:#x}" if path else "not told apart"
    return f"{place} ({group.symbol})" if group.symbol else place


def _where(group: _RequestGroup) -> str:
    """Return the process; with its thread if it is a single one."""
    program = os.path.basename(group.asker.program)
    identity, incarnation = group.asker.process, group.asker.incarnation
    if len(group.processes) > 1:
        return f"{len(group.processes)} processes of {program}"
    if not identity:
        return "many processes"
    incarnation_words = f", incarnation {incarnation}" if incarnation else ""
    thread = f", thread {group.asker.thread}" if group.threads == 1 else ""
    return f"process {identity}{incarnation_words} of {program}{thread}"


def _match_counts(asking: RunRequests) -> str:
    names = next((list(process.matches) for process in asking.processes if process.matches), [])
    return ", ".join(f"{sum(process.matches.get(name, 0) for process in asking.processes)} {name}" for name in names)


def _bounded_lines(lines: Iterable[str], noun: str) -> Iterator[str]:
    """Yield the first lines on a terminal, and the number of further ones."""
    all_lines = list(lines)
    yield from bounded(all_lines, SHOWN if sys.stdout.isatty() else len(all_lines), f" {noun} (--json has them all)")


def _process_lines(asking: RunRequests) -> Iterator[str]:
    """Yield how each process of a replay was answered, the least exact first; for keyed runs its requests."""

    def inexact_requests(process: ProcessRequests) -> int:
        return sum(number for match, number in process.matches.items() if match != "exact")

    shown = [process for process in asking.processes if process.matches or (process.asked.requests and not asking.rows)]
    for process in sorted(shown, key=lambda process: (-inexact_requests(process), -process.asked.bytes)):
        counts = ", ".join(f"{number} {match}" for match, number in process.matches.items())
        counts = counts or f"{process.asked.requests} requests, {process.asked.bytes} bytes"
        yield f"process {process.identity} of {os.path.basename(process.program)}: {counts}"


def _stand_ins(asking: RunRequests) -> Iterator[str]:
    """Yield the numbers that replaced process ids with --clock."""
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
    clock_reads = sum(process.clock_reads for process in found.asking.processes)
    if clock_reads and found.directory.run.calendar:
        yield f"{clock_reads} reads of the clock were {past_tense(found.directory.run.kind)}"
    yield from _bounded_lines(_stand_ins(found.asking), "were told such numbers")
    yield from _bounded_lines((f"not covered: {source.text}" for source in found.directory.run.uncovered), "sources")
    yield from (f"warning: {text}" for text in found.warnings)
