"""What checkpoints and messages are made of: sums, packed blocks, keys, numbers; and files beside others."""

from __future__ import annotations

import random
import struct
import zipfile
from pathlib import Path

import pytest

from reprokit.core import native
from reprokit.core.difference import Verdict
from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Limits, Part, TensorPart, Value
from reprokit.diff.files import diff as diff_files
from reprokit.diff.formats import checkpoint, messages, sstable
from reprokit.diff.formats.messages import MessageWalker
from reprokit.diff.formats.sstable import crc32c, decoded, masked, unmasked
from reprokit.diff.sources import BytesSource
from tests.diff.objects import leaves, meaning

SCHEMA = messages.schema("""
Top 1=number:int64 2=zigzag:sint32 3=list:int32* 4=text:string 5=named:Item*name|other 6=map:{string:Item}
    7=loose:Item*name~ 8=floats:float* 9=inner:Top 10=fixed:fixed64
Item 1=name:string 2=other:string* 3=value:double
""")


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def number(place: int, value: int) -> bytes:
    return varint(8 * place) + varint(value)


def content(place: int, data: bytes) -> bytes:
    return varint(8 * place + 2) + varint(len(data)) + data


def parts(data: bytes, limits: Limits | None = None) -> dict[str, Part]:
    return {part.name: part for part in MessageWalker(BytesSource(data), limits or Limits(), SCHEMA).message("", "Top")}


def texts(data: bytes) -> dict[str, str]:
    return {name: part.text for name, part in parts(data).items() if isinstance(part, Value)}


def test_numbers_and_texts() -> None:
    data = number(1, -5) + number(2, 3) + content(4, "é".encode()) + content(4, b"\xff") + content(3, b"\x01\x02")
    found = list(MessageWalker(BytesSource(data + number(77, 1)), Limits(), SCHEMA).message("", "Top"))
    assert [(part.name, part.text) for part in found if isinstance(part, Value)] == [
        ("number", "-5"),
        ("zigzag", "-2"),
        ("text", "'é'"),
        ("text", "b'\\xff'"),
        ("field 77", "1 of 64 bits"),
        ("list", "[1, 2]"),
    ]


def test_packed_and_single_numbers_of_a_list_are_the_same() -> None:
    assert texts(number(3, 1) + content(3, b"\x02\x03")) == texts(content(3, b"\x01\x02\x03"))
    long = parts(content(8, struct.pack("<100f", *range(100))))["floats"]
    assert isinstance(long, TensorPart)
    assert (long.dtype, long.shape) == ("float32", (100,))


def item(name: str, value: float, *others: str) -> bytes:
    found = content(1, name.encode()) if name else b""
    return found + b"".join(content(2, other.encode()) for other in others) + b"\x19" + struct.pack("<d", value)


def test_named_messages_and_maps() -> None:
    def entry(name: str, value: float) -> bytes:
        return content(6, content(1, name.encode()) + content(2, item("", value)))

    left = content(5, item("a", 1.0)) + content(5, item("", 2.0, "out")) + entry("k", 3.0) + entry("l", 4.0)
    found = texts(left)
    assert found["named/a/value"] == "1.0"
    assert found["named/out/value"] == "2.0"
    assert found["map/k/value"] == "3.0"
    assert texts(entry("k", 3.0) + entry("l", 4.0)) == texts(entry("l", 4.0) + entry("k", 3.0))
    one, other = content(5, item("a", 1.0)), content(5, item("b", 2.0))
    assert texts(one + other)["named/(order)"] != texts(other + one)["named/(order)"]
    one, other = content(7, item("a", 1.0)), content(7, item("b", 2.0))
    assert texts(one + other) == texts(other + one)


@pytest.mark.parametrize(
    "data",
    [b"\x80", b"\x80" * 11, b"\xff" * 9 + b"\x02", b"\x00\x00", b"\x0b", b"\x0c", b"\x0e", b"\x22\x05ab", b"\x51\x01"],
)
def test_damaged_messages_are_refused(data: bytes) -> None:
    with pytest.raises(ArtifactDamaged):
        parts(data)


def test_deep_and_many_messages_are_refused() -> None:
    deep = b""
    for _ in range(101):
        deep = content(9, deep)
    with pytest.raises(ArtifactDamaged, match="nested"):
        parts(deep)
    with pytest.raises(ArtifactDamaged, match="more fields"):
        parts(b"\x08\x01" * 2000, Limits(parts=10))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 1000, 12_287, 12_296, 30_001])
def test_sums_by_the_processor_and_by_tables(size: int) -> None:
    data = random.Random(size).randbytes(size)
    ffi, library = native.artifacts()
    expected = 0xFFFFFFFF
    for byte in data:
        expected ^= byte
        for _ in range(8):
            expected = expected >> 1 ^ (0x82F63B78 if expected & 1 else 0)
    assert crc32c(data) == expected ^ 0xFFFFFFFF == library.rka_crc32c_by_tables(0, ffi.from_buffer(data), size)
    assert crc32c(data[3:], crc32c(data[:3])) == crc32c(data)
    assert unmasked(masked(crc32c(data))) == crc32c(data)


def test_the_sum_of_the_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (b"\0v/w\0\x01\x01\x02\x80\xb2\x80\x83", "v/w[0:50, 0:3]"),
        (b"\0w\0\xff\0\x01\x01\x01\x80\x7f", "w\0[:]"),
        (b"\0w\0\x01\x01\x01\xc1\x2c\xe0\x40\x00", "w[300:16684]"),
        (b"\0w\0\x01\x01", repr(b"\0w\0\x01\x01")),
        (b"\0", repr(b"\0")),
        (b"\xff\0\x01", repr(b"\xff\0\x01")),
    ],
)
def test_keys_of_slices(key: bytes, name: str) -> None:
    assert decoded(key) == name


def block(entries: list[tuple[bytes, bytes]], kind: int = 0) -> bytes:
    data = b"".join(b"\0" + varint(len(key)) + varint(len(value)) + key + value for key, value in entries)
    data += struct.pack("<2I", 0, 1)
    return data + bytes([kind]) + struct.pack("<I", masked(crc32c(data + bytes([kind]))))


def index(entries: list[tuple[bytes, bytes]], kind: int = 0) -> bytes:
    """A table of one block, as TensorFlow has it; its block of values says that it is packed in this way."""
    values, more = block(entries, kind), block([])
    places = block([(b"\xff", varint(0) + varint(len(values) - 5))])
    handles = varint(len(values)) + varint(len(more) - 5) + varint(len(values) + len(more)) + varint(len(places) - 5)
    return values + more + places + handles.ljust(40, b"\0") + sstable.MAGIC


def bundle(data: bytes, *, crc: int | None = None, size: int = 8, shape: int = 2) -> list[tuple[bytes, bytes]]:
    dimensions = content(2, content(2, number(1, shape)))
    entry = number(1, 1) + dimensions + number(4, 4) + number(5, size)
    sum_ = masked(crc32c(data[4:]) if crc is None else crc)
    return [(b"", number(1, 1)), (b"weight" * 9, entry + b"\x35" + struct.pack("<I", sum_))]


DATA = bytes(4) + struct.pack("<2f", 1.0, 2.0)
SHARD = "model.data-00000-of-00001"


def test_a_checkpoint_in_an_archive_is_read_with_its_shard(tmp_path: Path) -> None:
    other = DATA[:-1] + b"\x41"
    for name, data in (("a", DATA), ("b", other)):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("run/model.index", index(bundle(data)))
            archive.writestr(f"run/{SHARD}", data)
    found = {leaf.name: leaf.detail for leaf in leaves(diff_files(tmp_path / "a.zip", tmp_path / "b.zip"))}
    assert "first at [1]" in found[f"a.zip/run/model.index/{'weight' * 9}"]
    assert f"a.zip/run/{SHARD}" in found


def test_a_packed_block_is_refused() -> None:
    with pytest.raises(ArtifactDamaged, match="compressed by method 1"):
        list(checkpoint.read(BytesSource(index(bundle(DATA), kind=1)), Limits()))


def test_bytes_of_no_tensor_are_compared(tmp_path: Path) -> None:
    for name, data in (("a", DATA), ("b", b"\1" + DATA[1:]), ("c", DATA)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.index").write_bytes(index(bundle(data)))
        (tmp_path / name / SHARD).write_bytes(data)
    [leaf] = leaves(diff_files(tmp_path / "a", tmp_path / "b"))
    assert leaf.name == "model.index/(bytes of no tensor in shard 0)"
    assert diff_files(tmp_path / "a", tmp_path / "c").verdict is Verdict.IDENTICAL


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [(b"x", b"")],
        [(b"", b"")],
        [(b"", number(1, 1 << 40))],
        [(b"", number(1, -1))],
        [(b"", number(1, 1)), (b"b", number(3, 5)), (b"a", b"")],
        [(b"", number(1, 1)), (b"b", number(3, 1))],
        [(b"", number(1, 1)), (b"b", number(4, -1))],
    ],
)
def test_damaged_tables_are_refused(entries: list[tuple[bytes, bytes]]) -> None:
    assert meaning(checkpoint.read, index(entries)) is None


@pytest.mark.parametrize("change", [{"size": 9}, {"size": 1 << 62}, {"shape": 3}, {"shape": -2}, {"shape": 1 << 61}])
def test_entries_beyond_their_shard_are_no_tensors(tmp_path: Path, change: dict[str, int]) -> None:
    for name, data in (("a", DATA), ("b", DATA[:-1] + b"\x41")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.index").write_bytes(index(bundle(data, **change)))
        (tmp_path / name / SHARD).write_bytes(data)
    found = {leaf.name: leaf.detail for leaf in leaves(diff_files(tmp_path / "a", tmp_path / "b"))}
    assert "cannot be read as checkpoint" in found["model.index"]
    assert SHARD in found
