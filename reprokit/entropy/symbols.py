"""Names the function at an offset of a library, by the library's dynamic symbols.

The library is read from this machine; it need not be the run's, nor an ELF file at all. Every length is
checked against the file's size, and an unreadable file has no symbols.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from bisect import bisect_right
from pathlib import Path

from reprokit.run_files import rundir

MAX_FILE = 8 << 30  # bytes
MAX_SYMBOLS = 2_000_000
MAX_NAME = 4096
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_HEADER_SIZE = 64
_DYNSYM, _FUNCTION, _INDIRECT = 11, 2, 10  # SHT_DYNSYM, STT_FUNC, STT_GNU_IFUNC


class ExportedSymbols:
    """The functions that a library exports, sorted by address."""

    def __init__(self, path: Path):
        self._functions: list[tuple[int, int, int]] = []  # address, size, offset of the name
        self._names = b""
        try:
            with open(path, "rb", opener=rundir.open_following) as file:
                self._read(file.fileno())
        except (OSError, ValueError, struct.error, OverflowError):
            self._functions = []
        self._places = [place for place, _, _ in self._functions]

    def _read(self, fd: int) -> None:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or not _HEADER_SIZE <= status.st_size <= MAX_FILE:
            return
        with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as data:
            if data[:6] != b"\x7fELF\x02\x01":
                return
            sections = _sections(data)
            for kind, offset, size, link in sections:
                if kind == _DYNSYM and link < len(sections) and size <= MAX_SYMBOLS * _SYMBOL.size:
                    _, names, length, _ = sections[link]
                    self._names = data[names : names + length]
                    self._functions = _functions(data[offset : offset + size])
                    return

    def name(self, offset: int) -> str:
        """Return the exported function at this offset; empty if there is none."""
        position = bisect_right(self._places, offset) - 1
        if position < 0:
            return ""
        place, size, name = self._functions[position]
        if offset >= place + size:
            return ""
        end = self._names.find(b"\0", name, name + MAX_NAME)
        return self._names[name:end].decode("utf-8", "replace") if end >= 0 else ""


def _sections(data: mmap.mmap) -> list[tuple[int, int, int, int]]:
    """Return kind, offset, size and link of each section."""
    start = struct.unpack_from("<Q", data, 40)[0]
    entry, number = struct.unpack_from("<HH", data, 58)
    if entry != _SECTION.size:
        return []
    sections = []
    for position in range(start, start + entry * number, entry):
        _, kind, _, _, offset, size, link, _, _, _ = _SECTION.unpack_from(data, position)
        sections.append((kind, offset, size, link))
    return sections


def _functions(table: bytes) -> list[tuple[int, int, int]]:
    table = table[: len(table) // _SYMBOL.size * _SYMBOL.size]
    kinds = (_FUNCTION, _INDIRECT)
    return sorted(
        (place, size, name)
        for name, info, _, section, place, size in _SYMBOL.iter_unpack(table)
        if info & 15 in kinds and section and size
    )
