"""Reads lines of metrics.jsonl that a process had not written out when it was killed, or when the run is read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

DIRECTORY = "pending"  # as agent/core/buffered_lines.py has it, as well as the size
SIZE = 16 << 10  # bytes of a file
MAX_FILES = 4096
TRIES = 100  # to read a file that is being written to, each a few microseconds
BLOCK = 1 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read(run: Path) -> dict[bytes, None]:
    """Return the whole lines that wait. Some may be in metrics.jsonl by the time that it is read."""
    lines: dict[bytes, None] = {}
    for path in _files(run):
        with suppress(OSError):
            lines.update(dict.fromkeys(_lines(_steady(path))))
    return lines


def gather(run: Path, metrics: Path) -> None:
    """Append the lines of killed processes to metrics.jsonl, once no process of the run is left."""
    lines = read(run)
    if not lines or _append(metrics, lines):
        for path in _files(run):
            with suppress(OSError):
                path.unlink()
        with suppress(OSError):
            (run / DIRECTORY).rmdir()


def _files(run: Path) -> Iterator[Path]:
    """Yield the files in order of their names; symbolic links are not followed."""
    directory = run / DIRECTORY
    with suppress(OSError):
        if stat.S_ISDIR(os.lstat(directory).st_mode):
            with os.scandir(directory) as entries:
                names = sorted(entry.name for entry, _ in zip(entries, range(MAX_FILES), strict=False))
            yield from (directory / name for name in names)


def _steady(path: Path) -> bytes:
    """Return what the file holds; read twice the same, it was not written to in between."""
    descriptor = os.open(path, _READ)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b""
        before = os.pread(descriptor, SIZE, 0)
        for _ in range(TRIES):
            now = os.pread(descriptor, SIZE, 0)
            if now == before:
                break
            before = now
        return before
    finally:
        os.close(descriptor)


def _lines(data: bytes) -> list[bytes]:
    """Return the whole lines before the first zero byte."""
    return [line + b"\n" for line in data.partition(b"\0")[0].split(b"\n")[:-1]]


def _append(metrics: Path, lines: dict[bytes, None]) -> bool:
    """Add those lines that are not there, unless the file ends in the middle of one."""
    with open(os.open(metrics, os.O_RDWR | os.O_CREAT | os.O_APPEND | _READ, 0o600), "r+b", buffering=0) as file:
        rest = b""
        while block := file.read(BLOCK):
            *whole, rest = (rest + block).split(b"\n")
            for line in whole:
                lines.pop(line + b"\n", None)
            rest = rest[: SIZE + 1]
        text = b"".join(lines)
        return not rest and file.write(text) == len(text)
