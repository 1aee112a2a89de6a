"""Files that are made to hurt whoever opens them, in pairs that differ, and what must be said of each."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.diff import samples

ZEROS = 20 << 20
Pair = tuple[str, bytes, bytes, str]  # name of the file, both, and a piece of what is said


def _npy(header: str, length: int | None = None) -> bytes:
    data = header.encode("latin-1")
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(data) if length is None else length) + data


def _safetensors(header: Any, body: bytes = b"", length: int | None = None) -> bytes:
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(data) if length is None else length) + data + body


def _tensor(start: int, end: int, shape: list[int] | None = None, dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - start] if shape is None else shape, "data_offsets": [start, end]}


def _nested(levels: int, core: bytes, pack: Callable[[bytes], bytes]) -> bytes:
    for _ in range(levels):
        core = pack(core)
    return core


def _overlapping() -> bytes:
    """Two entries of the directory for the bytes of one member."""
    data = samples.zipped({"a": b"x" * 100})
    start = data.rindex(b"PK\x01\x02")
    entry = data[start : data.rindex(b"PK\x05\x06")]
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 2, 2, 2 * len(entry), start, 0)
    return data[:start] + entry * 2 + end


def _patched(data: bytes, old: bytes, new: bytes) -> bytes:
    assert old in data
    return data.replace(old, new, 1)


def _tar_with_long_head() -> bytes:
    member = tarfile.TarInfo("x")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 1 << 33
    return member.tobuf(tarfile.GNU_FORMAT) + bytes(3 << 20)


def with_other_end(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def zipped_later() -> bytes:
    """An archive whose sizes stand after the data, as a stream that cannot seek back has it."""
    file = io.BytesIO()
    file.seekable = lambda: False  # type: ignore[method-assign]
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo("a"), b"1" * 1000)
    return file.getvalue()


def zip_files() -> Iterator[Pair]:
    bomb = samples.zipped({"a": bz2.compress(bytes(ZEROS))})
    yield "bomb.zip", bomb, samples.zipped({"a": bz2.compress(b"1" + bytes(ZEROS))}), "times as many"
    said = samples.zipped({"a": b"1" * 1000}, zipfile.ZIP_DEFLATED)
    size, huge = struct.pack("<L", 1000), struct.pack("<L", (1 << 32) - 2)
    yield "said.zip", said.replace(size, huge), said, "times as many"
    yield "two-sizes.zip", _patched(said, size, struct.pack("<L", 999)), said, "contradict"
    later = zipped_later()
    yield "sizes-after.zip", later[:16] + b"\1" + later[17:], later, "contradict"
    yield "overlap.zip", _overlapping(), samples.zipped({"a": b"y"}), "overlap"
    nested = [_nested(12, core, lambda data: samples.zipped({"inner.zip": data})) for core in (b"one", b"two")]
    yield "deep.zip", nested[0], nested[1], "deeper"
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 65_000, 65_000, 100, 1 << 31, 0)
    yield "absurd.zip", b"PK\x03\x04" + bytes(100) + end, said, "does not stand before its end"
    yield "encrypted.zip", said[:6] + b"\1" + said[7:], said, "contradict"
    yield "unended.zip", said[:-5], said, "no directory"


def packed_files() -> Iterator[Pair]:
    zeros = bytes(ZEROS)
    yield "bomb.bz2", bz2.compress(zeros), bz2.compress(b"1" + zeros), "times as many"
    yield "bomb.xz", lzma.compress(zeros, preset=0), lzma.compress(b"1" + zeros, preset=0), "times as many"
    text = gzip.compress(b"text" * 100)
    yield "cut.gz", text[:-9], text, "end early"
    yield "more.gz", text + b"junk", text, "damaged"
    yield "sum.gz", text[:-8] + bytes(8), text, "damaged"
    many = [_nested(12, core, gzip.compress) for core in (b"one", b"two")]
    yield "deep.gz.gz", many[0], many[1], "deeper"


def tar_files() -> Iterator[Pair]:
    good = samples.tarred({"a": b"1" * 600})
    yield "cut.tar", good[:900], good, "beyond the end"
    yield "unended.tar", good[:1536], good, "no end"
    yield "hidden.tar", good + samples.tarred({"b": b"2"}), good, "behind its end"
    second = samples.tarred({"a": b"1" * 600, "b": b"2"})
    yield "flipped.tar", second[:1540] + b"!" + second[1541:], second, "next member's header"
    yield "head.tar", _tar_with_long_head(), good, "head of a member"
    yield "absurd.tar", good[:124] + b"77777777777\0" + good[136:], good, "damaged"


def arrays() -> Iterator[Pair]:
    good = samples.npy(samples.arrays()["weights"])
    shape = "{'descr': '<f4', 'fortran_order': False, 'shape': (%s,), }\n"
    yield "huge.npy", _npy(shape % (1 << 62)), good, "needs"
    yield "negative.npy", _npy(shape % -1), good, "damaged"
    yield "deep.npy", _npy("(" * 60_000), good, "damaged"
    yield "signs.npy", _npy("-" * 60_000 + "1"), good, "damaged"
    yield "long.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(100), good, "more than the"
    yield "code.npy", _npy("__import__('os').abort()"), good, "damaged"
    yield "type.npy", _npy("{'descr': '<f3', 'fortran_order': False, 'shape': (1,), }"), good, "not known"
    yield "record.npy", _npy("{'descr': [], 'fortran_order': False, 'shape': (1,), }"), good, "not known"


def safetensors_files() -> Iterator[Pair]:
    good = _safetensors({"a": _tensor(0, 4)}, b"1234")
    yield "long.safetensors", _safetensors({}, length=(1 << 62) + 1), good, "is said to have"
    yield "beyond.safetensors", _safetensors({"a": _tensor(0, 5)}, b"1234"), good, "ends at byte"
    yield "overlap.safetensors", _safetensors({"a": _tensor(0, 4), "b": _tensor(2, 4)}, b"1234"), good, "overlap"
    yield "hole.safetensors", _safetensors({"a": _tensor(0, 1), "b": _tensor(2, 4)}, b"1234"), good, "a hole"
    yield "rest.safetensors", _safetensors({"a": _tensor(0, 3)}, b"1234"), good, "its tensors end"
    yield "shape.safetensors", _safetensors({"a": _tensor(0, 4, [1 << 60, 1 << 60])}, b"1234"), good, "another size"
    yield "type.safetensors", _safetensors({"a": _tensor(0, 4, dtype="F128")}, b"1234"), good, "not known"
    yield "negative.safetensors", _safetensors({"a": _tensor(-4, 0, [4])}, b"1234"), good, "no sizes"
    twice = b'{"a": %s, "a": %s}' % ((json.dumps(_tensor(0, 4)).encode(),) * 2)
    yield "twice.safetensors", _safetensors(twice, b"1234"), good, "twice"
    yield "deep.safetensors", _safetensors(b'{"a":' + b"[" * 200_000), good, "damaged"
    yield "wide.safetensors", _safetensors(b'{"a":[' + b"[]," * 8_000_000), good, "more than are read"


def texts() -> Iterator[Pair]:
    yield "deep.json", b"[" * 300_000, b"[" * 300_001, "damaged"
    yield "deeper.json", b"[" * 300 + b"]" * 300, b"[" * 301 + b"]" * 301, "nested too deep"
    yield "wide.json", b"[" + b"{}," * 9_000_000 + b"1]", b"[" + b"{}," * 9_000_000 + b"2]", "more than are read"
    yield "open.json", b'{"a": 1', b'{"a": 2', "damaged"
    yield "row.csv", b"a," * 2_000_000, b"a," * 2_000_000 + b"b", "a row has more than"
    yield "quote.csv", b'a,"b', b'a,"c', "no table"
    yield "line.txt", b"x" * (20 << 20), b"y" * (20 << 20), "a line has more than"


def pairs() -> Iterator[Pair]:
    """All of them."""
    for family in (zip_files, packed_files, tar_files, arrays, safetensors_files, texts):
        yield from family()


def main(memory: int) -> None:
    """Compare each pair with little memory, and print what is said of it."""
    import resource

    from reprokit.diff import decompression

    decompression.HARMLESS = 16 << 20  # so that the bombs can be small

    found = [(name, left, right, phrase) for name, left, right, phrase in pairs()]
    status = Path("/proc/self/status").read_text()
    used = int(status.split("VmSize:")[1].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
    for name, left, right, phrase in found:
        tree = samples.diff(left, right, name)
        texts = [node.detail for node in [tree, *tree.leaves()]]
        print(json.dumps([name, phrase, tree.verdict.value, texts]))


if __name__ == "__main__":
    main(int(sys.argv[1]))
