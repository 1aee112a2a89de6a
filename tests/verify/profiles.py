"""Writes entropy files from docs/format.md, so that readers are tried on every shape of them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

from reprokit.core import native

CHUNK_ROOM = 4096


@dataclass
class Writing:
    """The entropy file of one process in the making."""

    identity: str = "0"
    program: str = "/usr/bin/train"
    mode: int = 1
    incarnation: int = 0
    pid: int = 2**22
    matches: tuple[int, int, int, int] = (0, 0, 0, 0)
    given: tuple[int, int, int, int] = (0, 0, 0, 0)
    uncounted: int = 0
    gave_up: tuple[int, int] = (0, 0)  # why, and with which errno
    chunks: list[bytes] = field(default_factory=list)
    ordinals: dict[int, int] = field(default_factory=dict)
    previous: dict[int, int] = field(default_factory=dict)

    def chunk(self, thread: str, *records: tuple[int, bytes], rest: bytes = b"") -> None:
        """A chunk of this thread; the first of a thread begins with its name."""
        stream = native.check_in_python(thread.encode())
        ordinal = self.ordinals.get(stream, 0)
        self.ordinals[stream] = ordinal + 1
        names = [] if ordinal else [(1, bytes([len(thread.encode())]) + thread.encode())]
        content = b"".join(self._record(stream, tag, body) for tag, body in (*names, *records)) + rest
        units = -(-(48 + len(content)) // 64)
        head = struct.pack("<IIQQ", 0x4B4E4843, units, stream, ordinal)
        head += struct.pack("<QQQ", native.check_in_python(head), 0, 0)
        self.chunks.append((head + content).ljust(64 * units, b"\0"))

    def _record(self, stream: int, tag: int, body: bytes) -> bytes:
        seed = self.previous.get(stream, 0) << 8 | tag
        self.previous[stream] = native.check_in_python(body, seed) & 0xFFFFFFFF
        return bytes([tag]) + body + struct.pack("<I", self.previous[stream])

    def content(self) -> bytes:
        chunks = b"".join(self.chunks)
        head = struct.pack(
            "<8sIIQII256s256s", b"RKENTROP", 2, self.mode, 0, self.pid, self.incarnation,
            self.identity.encode(), self.program.encode(),
        )  # fmt: skip
        head += struct.pack("<QQII", native.check_in_python(head), 1024 + len(chunks), *self.gave_up)
        head += struct.pack("<4Q4QQQ", *self.matches, *self.given, 0, self.uncounted)
        return head.ljust(1024, b"\0") + chunks

    def write(self, path: Path) -> Path:
        path.write_bytes(self.content())
        return path


def site(number: int, module: str, offset: int) -> tuple[int, bytes]:
    name = module.encode()
    return 2, struct.pack("<HQB", number, offset, len(name)) + name


def event(
    source: int, number: int, data: bytes, *, withheld: bool = False, given: int | None = None
) -> tuple[int, bytes]:
    size = len(data) if given is None else given
    return 3, struct.pack("<BHBQQ", source, number, withheld, size, size) + data


def repeat(data: bytes) -> tuple[int, bytes]:
    return 4, data


def mismatch(source: int, number: int, match: int, asked: int) -> tuple[int, bytes]:
    return 5, struct.pack("<BHBQ", source, number, match, asked)
