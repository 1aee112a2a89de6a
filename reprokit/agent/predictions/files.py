"""RUN/evaluation: predictions and true values row for row, in .npy files that grow while the run goes on.

A file is opened and closed for every piece, as the journal does it. Rows come before the header that counts
them, so that a kill at any moment leaves a whole file.
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
        """Where rows stand: the file, and the number of the first of them."""

        file: str
        row: int


DIRECTORY = "evaluation"
MAX_BYTES = 256 << 20  # of all files of a run
MAX_FILES = 1000  # of one process
HEAD = 192  # bytes of a header whose shape has not more than five dimensions or so
_DIGITS = 20  # room for the number of rows
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_CLOEXEC
_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class RowFile:
    """One file: what its rows are, and how many it has."""

    def __init__(self, name: str, rows: Rows) -> None:
        self.name = name
        self.count = 0
        self._descr, self._row = rows.descr, rows.shape[1:]
        self.width = len(rows.data) // rows.count if rows.count else 0
        self.head = len(self.header())

    def header(self) -> bytes:
        """Return the header of the .npy format, version 1; as long for any number of rows."""
        shape = ", ".join([str(self.count).rjust(_DIGITS), *map(str, self._row)])
        text = f"{{'descr': '{self._descr}', 'fortran_order': False, 'shape': ({shape},), }}"
        size = max(HEAD, -(-(len(text) + 11) // 64) * 64)
        return b"\x93NUMPY\x01\x00" + (size - 10).to_bytes(2, "little") + text.encode().ljust(size - 11) + b"\n"


class Files:
    """The files of one process."""

    def __init__(self, run: str, identity: Callable[[], str]) -> None:
        self._directory = f"{run}/{DIRECTORY}"
        self._identity = identity
        self.forget()

    def forget(self) -> None:
        """In a forked child: the parent's files are the parent's."""
        self._files: dict[tuple[object, ...], RowFile] = {}
        self._made = 0
        self._room = -1  # not known yet

    def append(self, stream: str, rows: Rows) -> RowPlace | None:
        """Write rows behind those of the same stream and type; None where there is no room for them."""
        key = (stream, rows.descr, *rows.shape[1:])
        if not rows.count or not self._takes(len(rows.data)):
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

    def _takes(self, size: int) -> bool:
        if self._room < 0:
            self._room = MAX_BYTES - _size(self._directory)
        self._room -= size
        if self._room < 0:
            self._room = 0  # what comes later may be small enough, but would leave a gap in its stream
            return False
        return True

    def _create(self, rows: Rows) -> RowFile | None:
        """Return a new file, named by the process and a number; another process of the same name has its own."""
        make_directory(self._directory)
        prefix = hashlib.sha256(self._identity().encode("utf-8", "backslashreplace")).hexdigest()[:16]
        while self._made < MAX_FILES:
            name = f"{prefix}-{self._made}.npy"
            self._made += 1
            try:
                os.close(os.open(f"{self._directory}/{name}", _CREATE | _SAFE, 0o600))
            except FileExistsError:
                continue
            return RowFile(name, rows)
        return None

    def _write(self, file: RowFile, data: Bytes, count: int) -> None:
        """Append; a file that could not be written whole has the rows that it had before."""
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
    """Bytes that the processes of this run have written so far."""
    scandir = getattr(os.scandir, "__wrapped__", os.scandir)  # past the agent's own, which notes what scripts list
    try:
        with scandir(directory) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    except OSError:
        return 0
