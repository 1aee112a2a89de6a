"""Small files of every format of the core, and what other programs read out of them."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from reprokit.core.difference import Difference
from reprokit.diff.compare import FileSide, compare
from reprokit.diff.sources import BytesSource

Arrays = dict[str, np.ndarray[Any, Any]]
DATE = (2024, 5, 6, 7, 8, 10)


def diff(left: bytes, right: bytes, name: str = "file") -> Difference:
    """The comparison of two files of one name."""
    return compare(name, FileSide(BytesSource(left), name), FileSide(BytesSource(right), name))


def arrays() -> Arrays:
    generator = np.random.default_rng(7)
    return {
        "weights": generator.normal(size=(3, 4)).astype(np.float32),
        "fortran": np.asfortranarray(generator.normal(size=(2, 3))),
        "big": np.arange(5, dtype=">i4"),
        "flags": np.array([True, False]),
        "complex": np.array([1 + 2j, 3 - 4j], np.complex64),
        "names": np.array([b"ab", b"cd"]),
    }


def npy(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(content: Arrays, *, compressed: bool = False) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **content)  # type: ignore[arg-type]
    return file.getvalue()


def cbm(facts: dict[str, str], trees: bytes, version: str = "FlabuffersModel_v1") -> bytes:
    """A model in CatBoost's order: tables, version, facts, trees."""
    data = bytearray()

    def put(form: str, *numbers: int) -> int:
        data.extend(struct.pack("<" + form, *numbers))
        return len(data) - struct.calcsize("<" + form)

    def table(fields: int) -> int:
        put(f"{2 + fields}H", 4 + 2 * fields, 4 + 4 * fields, *range(4, 4 + 4 * fields, 4))
        return put(f"i{fields}I", 4 + 2 * fields, *[0] * fields)

    def refer(place: int, to: int) -> None:
        struct.pack_into("<I", data, place, to - place)

    def refer_to_text(place: int, text: str) -> None:
        refer(place, len(data))
        put("I", len(text.encode()))
        data.extend(text.encode())

    put("I", 0)
    root = table(3)
    refer(0, root)
    refer_to_text(root + 4, version)
    refer(root + 12, len(data))
    vector = put(f"I{len(facts)}I", len(facts), *[0] * len(facts))
    for number, fact in enumerate(facts.items()):
        entry = table(2)
        refer(vector + 4 + 4 * number, entry)
        for field, text in enumerate(fact):
            refer_to_text(entry + 4 + 4 * field, text)
    refer(root + 8, len(data))
    return b"CBM1" + struct.pack("<I", len(data) + len(trees)) + data + trees


def safetensors(content: Arrays, metadata: dict[str, str] | None = None, *, indent: int | None = None) -> bytes:
    names = {"float32": "F32", "float64": "F64", "int64": "I64", "bool": "BOOL", "complex64": "C64", "uint16": "BF16"}
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, array in content.items():
        offsets = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": names[array.dtype.name], "shape": list(array.shape), "data_offsets": offsets}
        data += array.tobytes()
    text = json.dumps(header, indent=indent).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED, date: tuple[int, ...] = DATE) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name, date), data, method)  # type: ignore[arg-type]
    return file.getvalue()


def tarred(members: dict[str, bytes], mtime: int = 1, owner: str = "me", form: int = tarfile.PAX_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uname = len(data), mtime, owner
            archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


def plain(array: np.ndarray[Any, Any]) -> Any:
    return array.dtype.newbyteorder("=").str, array.shape, array.astype(array.dtype.newbyteorder("<")).tobytes()


def read_npy(data: bytes) -> Any:
    file = io.BytesIO(data)
    return plain(np.load(file, allow_pickle=False)), file.read()


def read_npz(data: bytes) -> Any:
    with np.load(io.BytesIO(data), allow_pickle=False) as found:
        return {name: plain(found[name]) for name in found.files}


def read_zip(data: bytes) -> Any:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return sorted((member.filename, archive.read(member)) for member in archive.infolist())


def read_tar(data: bytes) -> Any:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        members = archive.getmembers()
        found = [(m.name, m.type, m.linkname, (archive.extractfile(m) or io.BytesIO()).read()) for m in members]
    return sorted(found)


def read_safetensors(data: bytes) -> Any:
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    body = data[8 + length :]
    metadata = header.pop("__metadata__", None)
    tensors = {}
    for name, facts in header.items():
        start, end = facts["data_offsets"]
        tensors[name] = (facts["dtype"], facts["shape"], body[start:end])
    return metadata, tensors


def read_json(data: bytes) -> Any:
    text = data.decode()
    return json.loads(text, object_pairs_hook=lambda pairs: sorted(map(repr, pairs)), parse_float=str, parse_int=str)


@dataclass(frozen=True)
class Sample:
    """A file, and a reader that says what it holds; one that raises has found it damaged."""

    name: str
    data: bytes
    read: Callable[[bytes], Any]


def samples() -> list[Sample]:
    content = arrays()
    members = {"a.txt": b"one\ntwo\n", "b.bin": content["weights"].tobytes(), "c.bin": bytes(range(40))}
    for_safetensors = {"w": content["weights"], "b": np.arange(4), "z": np.zeros(0, np.float32)}
    document = b'{"loss": [0.1, 2e-3, -0, 17], "name": "x\\u00e9", "deep": {"a/b": null, "t": true}}\n'
    table = b'step,loss\n1,0.5\n2,0.25\n3,"a,b"\n'
    found = [Sample(f"{name}.npy", npy(array), read_npy) for name, array in content.items()]
    return [
        *found,
        Sample("stored.npz", npz(content), read_npz),
        Sample("packed.npz", npz(content, compressed=True), read_npz),
        Sample("model.safetensors", safetensors(for_safetensors, {"format": "pt"}), read_safetensors),
        Sample("stored.zip", zipped(members), read_zip),
        Sample("packed.zip", zipped(members, zipfile.ZIP_DEFLATED), read_zip),
        Sample("bzip2.zip", zipped(members, zipfile.ZIP_BZIP2), read_zip),
        Sample("pax.tar", tarred(members), read_tar),
        Sample("gnu.tar", tarred(members, form=tarfile.GNU_FORMAT), read_tar),
        Sample("table.csv.gz", gzip.compress(table, mtime=0), gzip.decompress),
        Sample("members.tgz", gzip.compress(tarred(members), mtime=0), lambda data: read_tar(gzip.decompress(data))),
        Sample("members.tar.xz", lzma.compress(tarred(members)), lambda data: read_tar(lzma.decompress(data))),
        Sample("text.bz2", bz2.compress(b"some\ntext\n"), bz2.decompress),
        Sample("values.json", document, read_json),
        Sample("table.csv", table, lambda data: list(csv.reader(io.StringIO(data.decode(), newline=""), strict=True))),
        Sample("log.txt", b"first\nsecond\n\nthird", bytes),
        Sample("unknown.bin", bytes(range(200, 256)) * 3, bytes),
    ]
