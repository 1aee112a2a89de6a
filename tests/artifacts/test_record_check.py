"""Data sets that are checked record by record: every damage is named with file, record and byte."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import uuid
from pathlib import Path
from typing import Any

import pytest

from reprokit import object_stores
from reprokit.artifacts import record_check
from reprokit.artifacts.formats.sstable import crc32c, masked
from reprokit.artifacts.record_check import BadRecord, check
from reprokit.errors import ArtifactNotReadable, StoreUnreachable
from tests.object_store import ObjectStore
from tests.support import Reprokit

SIZES = [0, 10, 200_000, 70]  # of records
STARTS = [sum(size + 16 for size in SIZES[:number]) for number in range(len(SIZES))]


def records() -> bytes:
    """Return a file of TFRecords, made by what TensorFlow's format says."""
    parts = []
    for number, size in enumerate(SIZES):
        length, data = struct.pack("<Q", size), bytes([number]) * size
        parts += [length, struct.pack("<I", masked(crc32c(length))), data, struct.pack("<I", masked(crc32c(data)))]
    return b"".join(parts)


def samples() -> bytes:
    """Return a shard of a WebDataset with three members, of which one has a long name."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in ("0.txt", "1" * 150 + ".txt", "2.txt"):
            member = tarfile.TarInfo(name)
            member.size = 700
            archive.addfile(member, io.BytesIO(b"x" * 700))
    return data.getvalue()


def changed(data: bytes, *places: int) -> bytes:
    """Return data with a bit changed at each place."""
    new = bytearray(data)
    for place in places:
        new[place] ^= 4
    return bytes(new)


DAMAGED = {
    "data": ("a.tfrecord", changed(records(), STARTS[1] + 12, STARTS[2] + 190_000), [(1, STARTS[1]), (2, STARTS[2])]),
    "sum of data": ("a.tfrecord", changed(records(), STARTS[3] - 1), [(2, STARTS[2])]),
    "length": ("a.tfrecord", changed(records(), STARTS[1]), [(1, STARTS[1])]),
    "first length": ("a.tfrecord-00000-of-00001", changed(records(), 0), [(0, 0)]),
    "cut in a record": ("a.tfrecord", records()[:-9], [(3, STARTS[3])]),
    "cut in a length": ("a.tfrecord", records()[: STARTS[3] + 5], [(3, STARTS[3])]),
    "header": ("a.tar", changed(samples(), 1536), [(1, 1536)]),
    "first header": ("a.tar", changed(samples(), 0), [(0, 0)]),
    "cut in a member": ("a.tar", samples()[: 1536 + 512 + 512 + 512 + 600], [(1, 1536)]),
    "no end": ("a.tar", samples()[: 3 * 1536 + 1024], [(3, 3 * 1536 + 1024)]),
    "bytes behind the end": ("a.tar", samples() + b"more", [(3, 3 * 1536 + 1024)]),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_each_damage_is_named(tmp_path: Path, case: str) -> None:
    name, data, places = DAMAGED[case]
    (tmp_path / name).write_bytes(data)
    found = check(str(tmp_path))
    assert [(one.file, one.record, one.offset) for one in found.bad] == [(str(tmp_path / name), *at) for at in places]
    assert all(one.problem for one in found.bad)


def test_tensorflow_reads_what_is_called_good(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    (tmp_path / "own.tfrecord").write_bytes(records())
    assert [len(one.numpy()) for one in tf.data.TFRecordDataset(str(tmp_path / "own.tfrecord"))] == SIZES
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as file:
        for size in SIZES:
            file.write(b"y" * size)
    found = check(str(tmp_path))
    assert (found.files, found.records, found.bad) == (2, 8, [])


def test_what_is_not_checked_is_said(reprokit: Reprokit) -> None:
    data = reprokit.directory / "data"
    (data / "deep").mkdir(parents=True)
    (data / "deep" / "a.tfrecord").write_bytes(records())
    (data / "b.tar").write_bytes(samples())
    (data / "c.parquet").write_bytes(b"PAR1....PAR1")
    (data / "d.tar.gz").write_bytes(b"\x1f\x8b\x08....")
    (data / "e").symlink_to("nothing")
    done = reprokit.run("data", "check", "data", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    size = len(records()) + len(samples())
    assert found == {
        "format": 1,
        "path": "data",
        "files": 2,
        "records": 7,
        "size": size,
        "bad": [],
        "not_checked": {"compressed": 1, "no regular file": 1, "parquet": 1},
    }
    (data / "b.tar").write_bytes(changed(samples(), 1536))
    done = reprokit.run("data", "check", "data")
    assert done.returncode == 1
    assert done.stdout.startswith("bad: data/b.tar: record 1 at byte 1536: ")
    assert "not checked: 1 file (parquet)\n" in done.stdout


def test_nothing_to_check_is_trouble(reprokit: Reprokit) -> None:
    (reprokit.directory / "notes.txt").write_text("nothing")
    for place in ("notes.txt", ".", "missing"):
        assert reprokit.run("data", "check", place).returncode == 2


@pytest.mark.parametrize("place", ["shards", "shards/deep/a.tfrecord"])
def test_objects_are_checked_in_the_store(
    reprokit: Reprokit, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    bucket = f"data-{uuid.uuid4().hex}"
    object_store.bucket(bucket)
    object_store.put(bucket, "shards/deep/a.tfrecord", changed(records(), STARTS[2] + 100_000))
    object_store.put(bucket, "shards/b.tar", samples())
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(record_check, "STORE_BLOCK", 50_000)
    found = check(f"s3://{bucket}/{place}")
    where = f"s3://{bucket}/shards/deep/a.tfrecord"
    assert found.bad == [BadRecord(where, 2, STARTS[2], found.bad[0].problem)]
    assert found.records == (6 if place == "shards" else 3)
    with pytest.raises(ArtifactNotReadable):
        check(f"s3://{bucket}/other")
    done = reprokit.run("data", "check", f"s3://{bucket}/{place}", environment=object_store.environment)
    assert done.returncode == 1, done.stderr


def test_an_object_that_is_overwritten_meanwhile_is_trouble(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = f"data-{uuid.uuid4().hex}"
    object_store.bucket(bucket)
    object_store.put(bucket, "a.tfrecord", records())
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    url = f"s3://{bucket}"
    store = object_stores.open_store(url)
    stored = object_stores.StoredObject(store, url, object_stores.found(store, url, "a.tfrecord"))
    assert stored.read(0, 12) == records()[:12]
    object_store.put(bucket, "a.tfrecord", changed(records(), 5000))
    with pytest.raises(StoreUnreachable):
        stored.read(0, 12)
