"""Data sets that are checked record by record: every damage is named with file, record and byte."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import struct
import subprocess
import sys
import tarfile
import uuid
import zlib
from pathlib import Path
from typing import Any

import pytest

from reprokit.core import native
from reprokit.core.errors import ArtifactNotReadable, ExtraMissing, StoreUnreachable
from reprokit.core.numpy_comparison import NumpyComparison
from reprokit.diff import records as record_files
from reprokit.diff import throughput
from reprokit.diff.formats.sstable import crc32c, masked
from reprokit.diff.record_check import BadRecord, check
from reprokit.diff.sources import BytesSource
from reprokit.run_files import object_stores
from tests.object_store import ObjectStore
from tests.support import Reprokit, imported

SIZES = [0, 10, 200_000, 70]  # of records
PARQUET = (Path(__file__).parent / "pages.parquet").read_bytes()  # with checksums, as pyarrow writes them
CODEC = 3596  # of a column, in the footer: Snappy, and with a bit changed LZO
GROUPS = {0: (4, 800, 932), 150: (1718, 2501, 2634)}  # first rows, and where their columns begin
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
    "gzip, data": ("a.tfrecord.gz", gzip.compress(changed(records(), STARTS[2] + 190_000)), [(2, STARTS[2])]),
    "gzip, cut": ("a.tfrecord.gz", gzip.compress(records())[:-5], [(4, len(records()))]),
    "gzip, cut in a record": ("a.tfrecord.gz", gzip.compress(records(), 0)[:150_000], [(2, STARTS[2])]),
    "zlib": ("a.tfrecord", zlib.compress(changed(records(), STARTS[3])), [(3, STARTS[3])]),
    "xz, header": ("a.tar.xz", lzma.compress(changed(samples(), 1536)), [(1, 1536)]),
    "gzip, cut in a member": ("a.tgz", gzip.compress(samples()[:4700]), [(2, 2 * 1536 + 1024)]),
    "gzip, packed bytes": ("a.tar.gz", changed(gzip.compress(samples(), 0), 9000), [(3, 7665)]),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_each_damage_is_named(tmp_path: Path, case: str) -> None:
    name, data, places = DAMAGED[case]
    (tmp_path / name).write_bytes(data)
    found = check(str(tmp_path))
    assert [(one.file, one.record, one.offset) for one in found.bad] == [(str(tmp_path / name), *at) for at in places]
    assert all(one.problem for one in found.bad)


@pytest.mark.slow
def test_tensorflow_reads_what_is_called_good(tmp_path: Path) -> None:
    tf = imported("tensorflow")
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
    (data / "c.zst").write_bytes(b"\x28\xb5\x2f\xfd....")
    (data / "d.txt.gz").write_bytes(gzip.compress(b"text"))
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
        "not_checked": {"compressed": 2, "no regular file": 1},
    }
    (data / "b.tar").write_bytes(changed(samples(), 1536))
    done = reprokit.run("data", "check", "data")
    assert done.returncode == 1
    assert done.stdout.startswith("bad: data/b.tar: record 1 at byte 1536: ")
    assert "not checked: 2 files (compressed)\n" in done.stdout


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
    monkeypatch.setattr(record_files, "STORE_BLOCK", 50_000)
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


# Parquet, which Arrow reads


def parquet(tmp_path: Path, data: bytes) -> Path:
    """Write a Parquet file; skips where there is nothing to read it."""
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(data)
    return tmp_path / "a.parquet"


def test_what_arrow_cannot_say_of_parquet_is_said(tmp_path: Path) -> None:
    found = check(str(parquet(tmp_path, PARQUET)))
    assert (found.records, found.bad, dict(found.not_checked)) == (300, [], {record_files.UNSUMMED: 1})


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("column", [0, 1, 2])
def test_a_damaged_column_of_parquet_is_named(tmp_path: Path, group: int, column: int) -> None:
    start = GROUPS[group][column]
    path = parquet(tmp_path, changed(PARQUET, start + 120))
    found = check(str(path))
    assert [(one.record, one.offset) for one in found.bad] == [(group, start)]
    assert found.bad[0].problem.startswith(f"column {('image', 'text', 'tags.list.element')[column]}: ")
    assert found.records == 150


@pytest.mark.parametrize("damage", [0, 4, 1720, 4000, len(PARQUET) - 6, len(PARQUET) - 1])
def test_parquet_damaged_in_its_heads_or_footer_is_bad(tmp_path: Path, damage: int) -> None:
    assert check(str(parquet(tmp_path, changed(PARQUET, damage)))).bad


def test_a_compression_that_arrow_lacks_is_not_checked(tmp_path: Path) -> None:
    found = check(str(parquet(tmp_path, changed(PARQUET, CODEC))))
    assert (found.records, found.bad) == (150, [])
    assert set(found.not_checked) == {record_files.UNSUMMED, "parquet: column text: Arrow cannot unpack LZO"}


def test_parquet_without_arrow_is_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(PARQUET)
    for read in (check, lambda path: throughput.measure(path, [1], 2)):
        with pytest.raises(ExtraMissing, match="reading Parquet files needs pyarrow: pip install pyarrow"):
            read(str(tmp_path))
    (tmp_path / "b.tar").write_bytes(samples())
    found = check(str(tmp_path))
    assert (found.files, found.records, dict(found.not_checked)) == (1, 3, {"parquet, needs pyarrow": 1})


@pytest.mark.extended
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd"])
def test_any_damage_in_pages_of_arrow_is_found(tmp_path: Path, codec: str, version: str) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    program = Path(__file__).parent.parent / "trainings" / "parquet_pages.py"
    done = subprocess.run([sys.executable, program, path, codec, version], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    places = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]  # of columns: record, start, end
    data = path.read_bytes()
    assert check(str(path)).bad == []
    for record, start, end in places:
        path.write_bytes(changed(data, end - 1))  # of a page's bytes, not of its head
        assert [(one.record, one.offset) for one in check(str(path)).bad] == [(record, start)]


@pytest.mark.parametrize("size", [7, 1000])
@pytest.mark.parametrize("library", ["native", "numpy"])
def test_records_are_the_same_however_they_come_in_pieces(
    monkeypatch: pytest.MonkeyPatch, library: str, size: int
) -> None:
    if library == "numpy":
        ffi, _ = native.artifacts()
        monkeypatch.setattr(native, "artifacts", lambda: (ffi, NumpyComparison(ffi)))
    monkeypatch.setattr(record_files, "BLOCK", size)
    for case in ("data", "length", "cut in a record", "cut in a length"):
        name, data, places = DAMAGED[case]
        found = list(record_files.numbered(record_files.read(name, BytesSource(data))))
        assert [(number, some.offset) for number, some in found if some.problem] == places
        good = sum(some.amount for _, some in found if not some.problem)
        assert good == {"data": 2, "length": 1, "cut in a record": 3, "cut in a length": 3}[case]
