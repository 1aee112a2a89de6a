"""Keeps what a process observed in RUN/profile: one file a process, written anew as a whole, so that none is ever half.

A line is as its owner has it when the file is written, so that counts may go on in a line that was handed in.
The file takes the place of its predecessor by a rename: neither SIGKILL nor a full disk damages what there was.
"""

from __future__ import annotations

import os
import time

from ..core.json_text import to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

DIRECTORY = "profile"
MAX_FILES = 512  # processes of a run that have a file; of the others only the number is known
MAX_LINES = 20_000
MAX_LINE = 64 << 10
MAX_BYTES = 32 << 20
SHARE = 50  # at most one part in this of the time goes into writing
_listdir = os.listdir  # as it is before listings are watched: this one is none of the training's
_NEW = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


class ProfileFile:
    """The lines of one process, by kind and key."""

    def __init__(self, run: str) -> None:
        self._directory = f"{run}/{DIRECTORY}"
        self.forget()
        self._due = time.monotonic() + 1

    def forget(self) -> None:
        """In a forked child: begin anew, with a file of its own; it may be ended soon, so it writes soon."""
        self._lines: dict[tuple[str, object], Mapping[str, object]] = {}
        self._path: str | None = None
        self._refused = False
        self.is_busy = False  # it is being written
        self.left_out = 0  # lines for which there was no room
        self._due = 0.0

    def put(self, kind: str, key: object, line: Mapping[str, object]) -> None:
        """Take in a line, which replaces the one of the same kind and key."""
        name = (kind, key)
        if name in self._lines or len(self._lines) < MAX_LINES:
            self._lines[name] = line
        else:
            self.left_out += 1

    def __bool__(self) -> bool:
        return bool(self._lines)

    def is_due(self) -> bool:
        """Return whether enough time has passed to write again."""
        return time.monotonic() >= self._due

    def write(self) -> None:
        """Write all lines; what cannot be written is tried again the next time."""
        if self._refused or not self._lines:
            return
        try:
            if self._path is None:
                self._path = self._reserve()
            if self._path is not None:
                self._replace(self._path, self._text())
        except OSError:
            pass

    def took(self, seconds: float) -> None:
        """So long took it to put the lines together and to write them: leave the training some time now."""
        self._due = time.monotonic() + min(max(1.0, SHARE * seconds), 60.0)

    def _text(self) -> bytes:
        parts: list[bytes] = []
        room = MAX_BYTES
        for number, ((kind, _), line) in enumerate(list(self._lines.items())):
            text = f'{{"kind":"{kind}","key":{number},{to_json(dict(line))[1:]}\n'.encode()
            if len(text) <= MAX_LINE and room >= len(text):
                parts.append(text)
                room -= len(text)
            else:
                self.left_out += 1
        return b"".join(parts)

    def is_full(self) -> bool:
        """Whether other processes have all the files that there may be; then this one is counted and has none."""
        if self._path is None and not self._refused and os.path.isdir(self._directory):
            self._refused = len(_listdir(self._directory)) >= MAX_FILES
            if self._refused:
                append(self._directory + "/more", b".")
        return self._refused

    def _reserve(self) -> str | None:
        """Return a name that no other process has, also not one that had the same number before."""
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        for number in range(MAX_FILES):
            path = f"{self._directory}/{os.getpid()}-{number}.jsonl"
            try:
                os.close(os.open(path, _NEW | os.O_EXCL, 0o600))
            except FileExistsError:
                continue
            return path
        self._refused = True
        return None

    def _replace(self, path: str, text: bytes) -> None:
        new = path[: -len("jsonl")] + "new"
        descriptor = os.open(new, _NEW | os.O_TRUNC, 0o600)
        try:
            whole = os.write(descriptor, text) == len(text)
        except OSError:
            whole = False
        finally:
            os.close(descriptor)
        if whole:
            os.replace(new, path)
        else:
            os.unlink(new)


def append(path: str, text: bytes) -> None:
    """Add to a file that processes share."""
    descriptor = os.open(path, _NEW | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, text)
    finally:
        os.close(descriptor)
