"""Checks data sets record by record and lists the damaged records."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import click

from reprokit.core.printable import printable
from reprokit.diff import records

FORMAT = 1  # of the JSON document


@dataclass(frozen=True)
class BadRecord:
    """A damaged record: its location and the problem."""

    file: str
    record: int  # the first is 0
    offset: int  # in compressed files: in the unpacked data
    problem: str


@dataclass
class CheckedData:
    """The result of a check: counts, damaged records, and files that were not checked."""

    path: str
    files: int = 0
    records: int = 0  # intact ones
    size: int = 0
    bad: list[BadRecord] = field(default_factory=list)
    not_checked: Counter[str] = field(default_factory=Counter)  # files by kind


def check(path: str) -> CheckedData:
    """Check a file, or all files below a directory or a store's URL."""
    result, missing = CheckedData(path), ""
    for file in records.files(path):
        if file is None:
            result.not_checked["no regular file"] += 1
            continue
        try:
            _check_file(file, result)
        except records.NotARecordFile as kind:
            result.not_checked[str(kind)] += 1
            missing = missing or kind.library
    if not result.files:
        raise records.none_known(path, missing)
    return result


def _check_file(file: records.RecordFile, result: CheckedData) -> None:
    source, unchecked = file.open(), set[str]()
    for number, batch in records.numbered(records.read(file.name, source)):
        unchecked |= {batch.unchecked} - {""}
        if batch.problem:
            result.bad.append(BadRecord(file.name, number, batch.offset, batch.problem))
        else:
            result.records += batch.amount
    result.files += 1
    result.size += source.size
    result.not_checked.update(unchecked)


def document(result: CheckedData) -> dict[str, Any]:
    """Return the JSON document that --json prints."""
    return {
        "format": FORMAT,
        "path": result.path,
        "files": result.files,
        "records": result.records,
        "size": result.size,
        "bad": [vars(record) for record in result.bad],
        "not_checked": dict(sorted(result.not_checked.items())),
    }


def print_check(result: CheckedData) -> None:
    """Print each damaged record and a summary."""
    for bad in result.bad:
        click.echo(f"bad: {printable(bad.file)}: record {bad.record} at byte {bad.offset}: {printable(bad.problem)}")
    records = f"{len(result.bad)} bad and {result.records} good records"
    click.echo(f"{records} in {result.files} {files_word(result.files)} of {result.size} bytes")
    for kind, count in sorted(result.not_checked.items()):
        click.echo(f"not checked: {count} {files_word(count)} ({printable(kind)})")


def files_word(count: int) -> str:
    """Return "file" or "files" for a count."""
    return "file" if count == 1 else "files"
