"""Reads an SQLite database in a separate process (part_process): the schema, and every value of every table.

Where a table has keys and values, as those of experiment trackers, the path of a value ends with its key. Nothing in
the database is executed: views, triggers and virtual tables are compared by their text.
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import sys
from collections.abc import Iterator
from typing import IO

from reprokit.diff.part_process import PartWriter, RefusedFile, serve

LARGEST = 1 << 30  # bytes of a database
LONGEST = 1 << 20  # characters or bytes of a value that is shown; of longer ones the digest
_ENTRIES = "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY type, name"
_TABLES = (
    "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' ORDER BY name"  # not virtual ones
)
_CONSTRAINT = re.compile(r"(?:CONSTRAINT|CHECK|FOREIGN|PRIMARY|UNIQUE)\b", re.IGNORECASE)
_VALUES = ("value", "value_json")  # columns beside a key
_OF_SYSTEM = "system/"  # metrics of the machine that MLflow measures at any time


def read(file: IO[bytes], parts: PartWriter) -> None:
    """Send the schema, then the rows of each table in their order."""
    database = _opened(file)
    database.text_factory = lambda data: data.decode("utf-8", "backslashreplace")
    for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "query_only=ON"):
        database.execute(f"PRAGMA {pragma}")
    for kind, name, sql in database.execute(_ENTRIES):
        parts.send(
            "value", f"schema/{kind} {name}", text=_with_sorted_constraints(str(sql)) if kind == "table" else str(sql)
        )
    for (name,) in database.execute(_TABLES).fetchall():
        if name != "sqlite_schema":
            _send_rows(database, str(name), parts)


def _opened(file: IO[bytes]) -> sqlite3.Connection:
    """Open a database in memory; Python 3.10 needs the name of a file, which a member of an archive does not have."""
    if sys.version_info >= (3, 11):
        size = file.seek(0, os.SEEK_END)
        if size > LARGEST:
            raise RefusedFile(f"it has {size} bytes, more than the {LARGEST} that are read")
        file.seek(0)
        data = bytearray(file.read(size))
        if data[18:20] == b"\2\2":  # of a log beside it, which no database in memory has
            data[18:20] = b"\1\1"
        database = sqlite3.connect(":memory:")
        database.deserialize(data)
        return database
    return sqlite3.connect(f"file:/proc/self/fd/{file.fileno()}?mode=ro&immutable=1", uri=True)


def _send_rows(database: sqlite3.Connection, table: str, parts: PartWriter) -> None:
    quoted = table.replace('"', '""')
    rows = database.execute(f'SELECT * FROM "{quoted}"')
    columns = [column[0] for column in rows.description]
    key = columns.index("key") if "key" in columns else None
    number = 0
    for row in rows:
        named = str(row[key]) if key is not None else ""
        if named.startswith(_OF_SYSTEM) and "timestamp" in columns:
            continue
        number += 1
        for column, value in zip(columns, row, strict=True):
            below = "/" + named.replace("~", "~0").replace("/", "~1") if named and column in _VALUES else ""
            parts.send("value", f"{table}/{number}/{column}{below}", text=_text(value))
    parts.send("value", f"{table} (rows)", text=str(number))


def _with_sorted_constraints(sql: str) -> str:
    """Return the text of a table with its constraints in order: SQLAlchemy writes them in that of their addresses."""
    head, parenthesis, rest = sql.partition("(")
    inner, end, tail = rest.rpartition(")")
    clauses = list(_clauses(inner))
    columns = [clause for clause in clauses if not _CONSTRAINT.match(clause)]
    constraints = sorted(clause for clause in clauses if _CONSTRAINT.match(clause))
    if len(constraints) < 2 or any(mark in sql for mark in ("--", "/*", "[")):  # comments, and other quotes
        return sql
    return head + parenthesis + ",\n".join([*columns, *constraints]) + end + tail


def _clauses(text: str) -> Iterator[str]:
    """Yield what stands between the commas that are in no parentheses and no quotes."""
    start, depth, quote = 0, 0, ""
    for at, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"`":
            quote = character
        elif character == "," and not depth:
            yield text[start:at].strip()
            start = at + 1
        else:
            depth += (character == "(") - (character == ")")
    yield text[start:].strip()


def _text(value: object) -> str:
    """Return a value as a text that stands for no other."""
    text = value.hex() if isinstance(value, bytes) else repr(value)
    if len(text) > LONGEST:
        return f"{type(value).__name__} of SHA-256 {hashlib.sha256(text.encode()).hexdigest()}"
    return f"x'{text}'" if isinstance(value, bytes) else text


if __name__ == "__main__":
    serve(int(sys.argv[1]), read)
