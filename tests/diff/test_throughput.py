"""How fast data sets are read: every record of every kind is read once for each number of threads."""

from __future__ import annotations

import gzip
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from reprokit.diff import throughput
from tests.diff.test_record_check import PARQUET, changed, records, samples
from tests.object_store import ObjectStore
from tests.support import Reprokit


def files() -> dict[str, bytes]:
    """Return eleven batches of two records in files of each kind, and one that is none."""
    return {
        "a.tfrecord": records(),
        "b.tar.gz": gzip.compress(samples()),
        "c.tar": samples(),
        "e.txt": b"text",
    }


def test_each_pass_reads_all(reprokit: Reprokit) -> None:
    for name, data in files().items():
        path = reprokit.directory / "data" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    command = ["data", "throughput", "data", "--batch", "2", "--threads", "1", "--threads", "3"]
    done = reprokit.run(*command, "--json", "--plot", "plot.svg")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert (found["files"], found["not_read"]) == (3, {".txt": 1})
    for one in found["passes"]:
        assert (one["records"], one["batches"], one["bad"]) == (4 + 3 + 3, 2 + 2 + 2, 0)
        assert one["size"] == sum(len(data) for name, data in files().items() if name != "e.txt")
        assert one["seconds"] >= one["longest_gap"] >= one["gap_p99"] >= 0
    assert (reprokit.directory / "plot.svg").read_text().startswith("<svg xmlns=")
    (reprokit.directory / "data" / "a.tfrecord").write_bytes(changed(records(), 10_000))
    done = reprokit.run(*command)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("3 files of ")
    assert [line.split()[0] for line in lines[1:4]] == ["threads", "1", "3"]
    assert lines[4:] == ["not read: 1 file (.txt)", "1 bad record: see 'reprokit data check'"]


def test_rows_of_parquet_are_read_by_arrow(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(PARQUET)
    (one,) = throughput.measure(str(tmp_path), [1], 2).passes
    assert (one.records, len(one.batches), one.bad, one.size) == (300, 150, 0, len(PARQUET))


def test_the_order_of_one_thread_is_that_of_the_files_and_is_told_from_another(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.tfrecord").write_bytes(records())
    first, again = throughput.measure(str(tmp_path), [1, 1], 2).passes
    assert [(file, batch) for _, file, batch in first.batches] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert first.order == again.order
    again.batches.reverse()
    assert first.order != again.order


def test_objects_are_read_from_the_store(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = f"data-{uuid.uuid4().hex}"
    object_store.bucket(bucket)
    for name, data in files().items():
        object_store.put(bucket, name, data)
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    for one in throughput.measure(f"s3://{bucket}", [1, 2], 2).passes:
        assert (one.records, one.bad) == (10, 0)
