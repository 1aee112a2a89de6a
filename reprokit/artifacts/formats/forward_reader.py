"""Reads a source from front to back, within bounds."""

from __future__ import annotations

import io
import sys

from reprokit.artifacts.elements import Source
from reprokit.artifacts.sources import Stream, piece
from reprokit.errors import ArtifactDamaged

BUFFERED = 1 << 16


class ForwardReader:
    """A place in a source; the bytes up to the next one are read, or passed over as a source of their own."""

    def __init__(
        self, source: Source, what: str, at: int = 0, longest_line: int = sys.maxsize - 1, room: int = sys.maxsize
    ):
        """Name the source as errors are to name it; room is how many bytes may be read and not passed over."""
        self.source, self.what, self.longest_line, self.room = source, what, longest_line, room
        self._file = io.BufferedReader(Stream(source), BUFFERED)
        self._file.seek(at)

    @property
    def at(self) -> int:
        return self._file.tell()

    def read(self, length: int) -> bytes:
        """The next bytes, all of them there."""
        self.hold(length)
        found = self._file.read(length)
        if len(found) < length:
            raise ArtifactDamaged(f"{self.what} ends at byte {self.at}, {length - len(found)} bytes too early")
        return found

    def readline(self) -> bytes:
        """The text up to the next end of line, with it."""
        found = self._file.readline(self.longest_line + 1)
        self.hold(len(found))
        if not found.endswith(b"\n"):
            problem = (
                "has a line that is too long before" if len(found) > self.longest_line else "ends within a line at"
            )
            raise ArtifactDamaged(f"{self.what} {problem} byte {self.at}")
        return found

    def skip(self, length: int) -> Source:
        """The next bytes as a source of their own."""
        at, size = self.at, self.source.size
        if length > size - at:
            raise ArtifactDamaged(f"{length} bytes are to follow byte {at} of {self.what}, but {size - at} do")
        self._file.seek(at + length)
        return piece(self.source, at, length)

    def hold(self, length: int) -> None:
        """Count bytes that may stay in memory."""
        self.room -= length
        if self.room < 0:
            raise ArtifactDamaged(f"the strings of {self.what} come to more than are read")
