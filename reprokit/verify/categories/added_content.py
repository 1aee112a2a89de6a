"""Separates what a recording added to a file from what it found there: rows of a database, the end of a text.

Two recordings that add to one log or database find different content. Then only what each added can be compared.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from reprokit.core.difference import Difference
from reprokit.diff.compare import CompareOptions, FileSide, compare, compare_parts
from reprokit.diff.elements import Format, Limits, Part, Source, Value
from reprokit.diff.formats import HEAD, detect
from reprokit.diff.sources import BLOCK, BytesSource, FileSource, digest, piece
from reprokit.model.outputs import FoundFile, OutputFile
from reprokit.model.plan import RECORD
from reprokit.run_files.rundir import RunDirectory

DATABASE = "sqlite"  # the format whose rows are told apart
TABLES = (".csv", ".tsv")  # of which the first line names the columns
LONGEST_TABLE = 64 << 20  # bytes that are read with the line of names put before them
_ROW = re.compile(r"(.+?)/(\d+)/(.+)", re.DOTALL)
_ROWS = " (rows)"  # behind a table's name: the number of its rows

Row = tuple[tuple[str, str], ...]  # columns and values
Tables = dict[str, list[Row]]


@dataclass(frozen=True)
class FoundContent:
    """What a recording found in the place of an output; nothing for a file that it created."""

    digest: str
    source: Source


def found_content(run: RunDirectory, file: OutputFile, files: ExitStack) -> FoundContent | None:
    """Return what was there before a recording; None where that is not known, as in replays."""
    outputs = run.outputs()
    if run.run.kind != RECORD or outputs is None or outputs.past_the_shim or file.unseen:
        return None
    before = next((found for found in outputs.found if found.path == file.path), FoundFile(path=file.path))
    if before not in outputs.found:
        return FoundContent("", BytesSource(b""))
    if before.kept is None or before.kind != "file" or before.digest is None:
        return None
    source = FileSource(run.open_found(before.kept))
    files.callback(source.close)
    return FoundContent(before.digest, source) if digest(source) == before.digest else None


def compare_added(
    name: str,
    sides: tuple[FileSide, FileSide],
    found: tuple[FoundContent, FoundContent],
    options: CompareOptions,
) -> Difference | None:
    """Compare what both recordings added to a file; None where that cannot be told from what they found."""
    formats = [detect(side.name, side.source.read(0, HEAD)) for side in sides]
    if all(format_ is not None and format_.name == DATABASE for format_ in formats):
        format_ = formats[0]
        assert format_ is not None
        if not all(content.source.size for content in found):
            return None  # the tables of one were made by its run
        added = [
            list(_added_parts(format_, side.source, content.source)) for side, content in zip(sides, found, strict=True)
        ]
        return compare_parts(name, added[0], added[1], options, format_)
    if not all(_begins_with(side.source, content.source) for side, content in zip(sides, found, strict=True)):
        return None
    head = _names_of_columns(name, found)
    left, right = (
        FileSide(_behind(side.source, content.source.size, head), side.name)
        for side, content in zip(sides, found, strict=True)
    )
    return compare(name, left, right, options)


def _begins_with(source: Source, start: Source) -> bool:
    if start.size > source.size:
        return False
    return all(source.read(at, BLOCK)[: start.size - at] == start.read(at, BLOCK) for at in range(0, start.size, BLOCK))


def _names_of_columns(name: str, found: tuple[FoundContent, FoundContent]) -> bytes:
    """Return the first line of a table, if both recordings found the same one."""
    if not name.lower().endswith(TABLES):
        return b""
    first, second = (content.source.read(0, BLOCK).partition(b"\n") for content in found)
    return b"".join(first[:2]) if first[:2] == second[:2] and first[1] else b""


def _behind(source: Source, start: int, head: bytes) -> Source:
    end = piece(source, start, source.size - start)
    return BytesSource(head + end.read(0, end.size)) if head and end.size <= LONGEST_TABLE else end


def _added_parts(format_: Format, source: Source, found: Source) -> Iterator[Part]:
    """Yield the rows of a database that are not among those that were found, then those that are gone or changed."""
    other, tables = _read(format_.read(source, Limits()))
    other_before, tables_before = _read(format_.read(found, Limits()))
    yield from (Value(*value) for value in other.items() - other_before.items())
    for table in sorted({*tables, *tables_before}):
        rows, before = tables.get(table, []), tables_before.get(table, [])
        added = _without(rows, before)
        yield from _parts_of(table, "", added)
        yield from _parts_of(table, "removed ", _without(before, rows))
        yield Value(table + _ROWS, str(len(added)))


def _parts_of(table: str, kind: str, rows: list[Row]) -> Iterator[Value]:
    for number, row in enumerate(rows, 1):
        yield from (Value(f"{table}/{kind}{number}/{column}", text) for column, text in row)


def _without(rows: list[Row], others: list[Row]) -> list[Row]:
    """Return the rows, in their order, that remain when each of the others has taken its like."""
    taken, rest = Counter(others), []
    for row in rows:
        if taken[row]:
            taken[row] -= 1
        else:
            rest.append(row)
    return rest


def _read(parts: Iterable[Part]) -> tuple[dict[str, str], Tables]:
    """Return the rows of a database by table, and what else there is, as its schema."""
    other: dict[str, str] = {}
    rows: dict[str, dict[str, list[tuple[str, str]]]] = defaultdict(lambda: defaultdict(list))
    for part in parts:
        if not isinstance(part, Value) or part.name.endswith(_ROWS):
            continue
        match = _ROW.fullmatch(part.name) if not part.name.startswith("schema/") else None
        if match is None:
            other[part.name] = part.text
        else:
            rows[match[1]][match[2]].append((match[3], part.text))
    return other, {table: list(map(tuple, of_table.values())) for table, of_table in rows.items()}
