"""What a process does that reads a file by a library which was not made for hostile files: bounds, and how it tells.

Started by formats.library_process with the file as standard input; each part goes to standard output as a JSON header
behind its length and the length of the bytes that follow it.
"""

from __future__ import annotations

import json
import os
import resource
import struct
from collections.abc import Callable
from typing import IO, Any

HEAD = struct.Struct("<IQ")
MEMORY, SECONDS = 4 << 30, 300  # of address space, of processor time


class RefusedFile(Exception):
    """Why the file is not read on."""


def limit() -> None:
    """Bound what a damaged or hostile file can use up; of the files, only a short message of the end can grow."""
    for kind, most in (
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_CPU, SECONDS),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 1 << 16),
        (resource.RLIMIT_NOFILE, 32),
    ):
        hard = resource.getrlimit(kind)[1]
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (bound, bound))


class PartWriter:
    """Sends the parts of a file, which may unpack to so many bytes."""

    def __init__(self, out: IO[bytes], most: int):
        self.out, self._left = out, most

    def send(self, kind: str, name: str, size: int = 0, **facts: Any) -> None:
        """The header of a part; so many bytes must follow."""
        header = json.dumps({"kind": kind, "name": name, **facts}, ensure_ascii=True).encode()
        self.out.write(HEAD.pack(len(header), size) + header)

    def spend(self, path: str, size: int, stored: int) -> None:
        """Count bytes that are unpacked from what takes so many in the file."""
        self._left -= size
        if self._left < 0 or size > (256 << 20) + 1100 * stored:
            raise RefusedFile(f"{path[:200]!r} unpacks to {size} bytes, more than are read")


def serve(most: int, read: Callable[[IO[bytes], PartWriter], object]) -> None:
    """Read standard input, write parts to standard output."""
    limit()
    source = os.fdopen(os.dup(0), "rb", buffering=0)
    own = os.dup(1)
    os.dup2(2, 1)  # libraries may print
    with os.fdopen(own, "wb", buffering=1 << 16) as out:
        writer = PartWriter(out, most)
        try:
            read(source, writer)
            writer.send("end", "")
        except Exception as error:
            text = str(error) if isinstance(error, RefusedFile) else f"{type(error).__name__}: {error}"
            writer.send("error", "", text=text[:400])
