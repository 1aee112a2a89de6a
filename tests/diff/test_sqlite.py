"""SQLite databases: values that differ are named by table, row and column; hostile files are refused."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Limits
from reprokit.diff.formats.library_process import ParsingLibrary
from reprokit.diff.sources import BytesSource
from tests.diff.objects import meaning, named, same, shown

READER = ParsingLibrary("SQLite", "sqlite3", "reprokit.diff.sqlite_process")
TABLE = "CREATE TABLE trials (id INTEGER PRIMARY KEY, value FLOAT, name TEXT, data BLOB)"


def database(path: Path, *statements: str, page: int = 4096) -> bytes:
    file = path / "made.db"
    file.unlink(missing_ok=True)
    connection = sqlite3.connect(file)
    connection.execute(f"PRAGMA page_size={page}")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return file.read_bytes()


def test_every_value_has_its_own_text(tmp_path: Path) -> None:
    rows = "INSERT INTO trials VALUES (1, 0.1, 'x''y', x'00ff'), (2, NULL, '1', NULL), (7, 1, 1, 'x')"
    found = shown(READER.read, database(tmp_path, TABLE, rows))
    assert found["schema/table trials"] == TABLE
    assert [found[f"trials/1/{column}"] for column in ("id", "value", "name", "data")] == [
        *("1", "0.1", '"x\'y"', "x'00ff'")
    ]
    assert (found["trials/2/value"], found["trials/2/name"], found["trials/3/data"]) == ("None", "'1'", "'x'")
    assert found["trials (rows)"] == "3"


def test_what_differs_is_named(tmp_path: Path) -> None:
    left, right = (
        database(tmp_path, TABLE, f"INSERT INTO trials VALUES (1, {value}, 'a', NULL)") for value in (0.5, 0.25)
    )
    assert named(left, right, "study.db") == {"trials/1/value": "0.5 | 0.25 | 0.25 apart, relative 0.5"}
    assert "trials (rows)" in named(database(tmp_path, TABLE), left, "study.db")


def test_other_pages_are_the_same(tmp_path: Path) -> None:
    rows = TABLE, "INSERT INTO trials VALUES (1, 0.5, 'a', NULL)"
    assert same(database(tmp_path, *rows), database(tmp_path, *rows, page=8192), "study.db")
    removed = "INSERT INTO trials VALUES (2, 0.5, 'b', NULL)", "DELETE FROM trials WHERE id = 2"
    assert same(database(tmp_path, *rows), database(tmp_path, *rows, *removed), "study.db")


def test_a_database_with_a_log_beside_it_is_read_as_it_is(tmp_path: Path) -> None:
    rows = TABLE, "INSERT INTO trials VALUES (1, 0.5, 'a', NULL)"
    with_log = database(tmp_path, "PRAGMA journal_mode=WAL", *rows)
    assert with_log[18:20] == b"\2\2"
    assert shown(READER.read, with_log) == shown(READER.read, database(tmp_path, *rows))


def test_views_and_triggers_are_never_executed(tmp_path: Path) -> None:
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"
    data = database(tmp_path, TABLE, f"CREATE VIEW endless AS {endless}")
    found = shown(READER.read, data)
    assert found["schema/view endless"].endswith(endless)
    assert not any(name.startswith("endless") for name in found)


@pytest.mark.parametrize("at", [16, 100, 4096, 4100, 8000])
def test_a_damaged_database_is_refused_or_read_as_it_is(tmp_path: Path, at: int) -> None:
    rows = [f"INSERT INTO trials VALUES ({number}, 0.5, '{'a' * 400}', NULL)" for number in range(1, 40)]
    whole = database(tmp_path, TABLE, *rows)
    damaged = bytearray(whole)
    damaged[at : at + 60] = b"\xff" * 60
    found = meaning(READER.read, bytes(damaged))
    assert found is None or found != shown(READER.read, whole) or at == 8000


def test_a_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    data = database(tmp_path, TABLE, *[f"INSERT INTO trials VALUES ({n}, 1, '{'a' * 900}', NULL)" for n in range(20)])
    with pytest.raises(ArtifactDamaged):
        list(READER.read(BytesSource(data[:6000]), Limits()))
