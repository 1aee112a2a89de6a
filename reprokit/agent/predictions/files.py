"""Writes RUN/evaluation: predictions and true values row by row, in .npy files that grow during the run.

A file is opened and closed for each write, as the journal does. Rows are written before the header that counts them,
so that a kill at any moment leaves a valid file.
"""

from __future__ import annotations

import hashlib
import os

from ..core.buffered_lines import make_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NamedTuple

    from .samples import Bytes, Rows

    class RowPlace(NamedTuple):
        """Where rows are stored: the file, and the number of their first row."""

        file: str
        row: int


DIRECTORY = "evaluation"
MAX_BYTES = 256 << 20  # of all files of a run
MAX_FILES = 1000  # of one process
HEAD = 192  # bytes of a header, unless its shape has many dimensions
_DIGITS = 20  # width of the number of rows in the header
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_CLOEXEC
_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class RowFile:
    """One .npy file: the type of its rows, and their count."""

    def __init__(self, name: str, rows: Rows) -> None:
        self.name = name
        self.count = 0
        self._descr, self._row = rows.descr, rows.shape[1:]
        self.width = len(rows.data) // rows.count if rows.count else 0
        self.head = len(self.header())

    def header(self) -> bytes:
        """Return the header of the .npy format, version 1; its length does not depend on the number of rows."""
        shape = ", ".join([str(self.count).rjust(_DIGITS), *map(str, self._row)])
        text = f"{{'descr': '{self._descr}', 'fortran_order': False, 'shape': ({shape},), }}"
        size = max(HEAD, -(-(len(text) + 11) // 64) * 64)
        return b"\x93NUMPY\x01\x00" + (size - 10).to_bytes(2, "little") + text.encode().ljust(size - 11) + b"\n"


class PredictionFiles:
    """The files with predictions and true values of one process."""

    def __init__(self, run: str, identity: Callable[[], str]) -> None:
        self._directory = f"{run}/{DIRECTORY}"
        self._identity = identity
        self.forget()

    def forget(self) -> None:
        """Start new files, in a forked child."""
        self._files: dict[tuple[object, ...], RowFile] = {}
        self._file_count = 0
        self._bytes_left = -1  # -1: not known yet

    def append(self, stream: str, rows: Rows) -> RowPlace | None:
        """Append rows to those of the same stream and type; return their place, None if a limit is reached."""
        key = (stream, rows.descr, *rows.shape[1:])
        if not rows.count or not self._reserve(len(rows.data)):
            return None
        file = self._files.get(key)
        if file is None:
            file = self._create(rows)
            if file is None:
                return None
            self._files[key] = file
        first = file.count
        self._write(file, rows.data, rows.count)
        return (file.name, first)  # type: ignore[return-value]

    def _reserve(self, size: int) -> bool:
        if self._bytes_left < 0:
            self._bytes_left = MAX_BYTES - _size(self._directory)
        self._bytes_left -= size
        if self._bytes_left < 0:
            self._bytes_left = 0  # later rows may be small enough, but would leave a gap in the stream
            return False
        return True

    def _create(self, rows: Rows) -> RowFile | None:
        """Create a file named by the process and a number; a process of the same name gets other numbers."""
        make_directory(self._directory)
        prefix = hashlib.sha256(self._identity().encode("utf-8", "backslashreplace")).hexdigest()[:16]
        while self._file_count < MAX_FILES:
            name = f"{prefix}-{self._file_count}.npy"
            self._file_count += 1
            try:
                os.close(os.open(f"{self._directory}/{name}", _CREATE | _SAFE, 0o600))
            except FileExistsError:
                continue
            return RowFile(name, rows)
        return None

    def _write(self, file: RowFile, data: Bytes, count: int) -> None:
        """Append rows; if writing fails, the header still counts only the earlier rows."""
        descriptor = os.open(f"{self._directory}/{file.name}", _APPEND | _SAFE)
        try:
            _write_all(descriptor, data, file.head + file.count * file.width)
            file.count += count
            _write_all(descriptor, file.header(), 0)
        finally:
            os.close(descriptor)


def _write_all(descriptor: int, data: Bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def _size(directory: str) -> int:
    """Return the number of bytes that the processes of this run have written so far."""
    scandir = getattr(os.scandir, "__wrapped__", os.scandir)  # past the agent's own, which notes what scripts list
    try:
        with scandir(directory) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    except OSError:
        return 0
