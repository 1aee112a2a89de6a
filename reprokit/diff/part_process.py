"""The process that reads a file by a library that is not safe for hostile files: its limits, and its protocol.

Started by formats.library_process with the file as standard input. Each part is written to standard output: the lengths
of header and data, the JSON header, and the data.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import sys
from collections.abc import Callable
from typing import IO, Any

HEAD = struct.Struct("<IQ")
MEMORY, SECONDS = 4 << 30, 300  # bytes of address space, seconds of processor time


class RefusedFile(Exception):
    """Raised if a file is refused, with the reason."""


def limit() -> None:
    """Set resource limits for this process; it may write only a short error file."""
    for kind, wanted in (
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_CPU, SECONDS),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 1 << 16),
        (resource.RLIMIT_NOFILE, 32),
    ):
        hard = resource.getrlimit(kind)[1]
        bound = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (bound, bound))


class PartWriter:
    """Sends the parts of a file, which may unpack to `most` bytes in total."""

    def __init__(self, out: IO[bytes], most: int):
        self.out, self._budget = out, most
        self.has_content = False  # the last part has bytes, of which some may still be due

    def send(self, kind: str, name: str, size: int = 0, **facts: Any) -> None:
        """Write the header of a part; the caller must then write `size` bytes."""
        self.has_content = size > 0
        header = json.dumps({"kind": kind, "name": name, **facts}, ensure_ascii=True).encode()
        self.out.write(HEAD.pack(len(header), size) + header)

    def spend(self, path: str, size: int, stored: int) -> None:
        """Count unpacked bytes; `stored` is their size in the file. Raises RefusedFile beyond the limits."""
        self._budget -= size
        if self._budget < 0 or size > most_of(stored):
            raise RefusedFile(f"{path[:200]!r} unpacks to {size} bytes, more than are read")


def most_of(stored: int) -> int:
    """Return how many bytes are read of so many stored ones."""
    return (256 << 20) + 1100 * stored


def serve(most: int, read: Callable[[IO[bytes], PartWriter], object]) -> None:
    """Read a file from standard input, and write its parts to standard output."""
    limit()
    source = os.fdopen(os.dup(0), "rb", buffering=0)
    source.seek(0)  # it is where it was left by who wrote it
    pipe = os.dup(1)
    os.dup2(2, 1)  # what libraries print goes to standard error
    with os.fdopen(pipe, "wb", buffering=1 << 16) as out:
        writer = PartWriter(out, most)
        try:
            read(source, writer)
            writer.send("end", "")
        except RefusedFile as error:
            writer.send("error", "", text=str(error)[:400])
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".replace(repr(source), "").split())
            if isinstance(error, MemoryError):
                text = f"it needs more than the {MEMORY >> 30} GiB of memory that it may have"
            if writer.has_content:  # behind a part of a tensor no message is one
                sys.exit(text)
            writer.send("failed", "", text=text[:400])
