"""Writes the observations of a process to RUN/profile: one file a process, always rewritten as a whole.

Lines are serialized when the file is written: their owners may go on counting in them.
A rename replaces the previous file: neither SIGKILL nor a full disk damages it.
"""

from __future__ import annotations

import os
import time

from ..core.json_text import to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

DIRECTORY = "profile"
MAX_FILES = 512  # processes of a run with a file; further ones are only counted
MAX_LINES = 20_000
MAX_LINE = 64 << 10
MAX_BYTES = 32 << 20
SHARE = 50  # writing takes at most one part in so many of the time
_listdir = os.listdir  # the original: this listing must not be recorded as the training's
_NEW = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


class CallRecord:
    """A distinct call of an operator, with its line in the profile."""

    __slots__ = ("is_tried", "key", "kind", "line", "operator")

    def __init__(self, operator: Any, line: dict[str, Any], key: tuple[Any, ...], kind: str = "operator") -> None:
        self.operator = operator
        self.line = line
        self.key = key
        self.kind = kind
        self.is_tried = False  # whether such a call was prepared to be repeated


class ProfileFile:
    """The lines of one process, by kind and key."""

    def __init__(self, run: str) -> None:
        self._directory = f"{run}/{DIRECTORY}"
        self.forget()
        self._due = time.monotonic() + 1

    def forget(self) -> None:
        """In a forked child: start a new file; write it soon, as the child may be killed soon."""
        self._lines: dict[tuple[str, object], Mapping[str, object]] = {}
        self._path: str | None = None
        self._refused = False
        self.is_busy = False  # a write is in progress
        self.left_out = 0  # lines for which there was no room
        self._due = 0.0

    def put(self, kind: str, key: object, line: Mapping[str, object]) -> None:
        """Add a line, or replace the one of the same kind and key."""
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
        """Write all lines; if that fails, the next write retries."""
        if self._refused or not self._lines:
            return
        try:
            if self._path is None:
                self._path = self._reserve()
            if self._path is not None:
                self._replace(self._path, self._text())
        except OSError:
            pass

    def schedule_next(self, seconds: float) -> None:
        """Schedule the next write, by the seconds that the last one took."""
        self._due = time.monotonic() + min(max(1.0, SHARE * seconds), 60.0)

    def _text(self) -> bytes:
        parts: list[bytes] = []
        bytes_left = MAX_BYTES
        for number, ((kind, _), line) in enumerate(list(self._lines.items())):
            text = f'{{"kind":"{kind}","key":{number},{to_json(dict(line))[1:]}\n'.encode()
            if len(text) <= MAX_LINE and bytes_left >= len(text):
                parts.append(text)
                bytes_left -= len(text)
            else:
                self.left_out += 1
        return b"".join(parts)

    def is_full(self) -> bool:
        """Return whether MAX_FILES processes have files already; then this process is only counted."""
        if self._path is None and not self._refused and os.path.isdir(self._directory):
            self._refused = len(_listdir(self._directory)) >= MAX_FILES
            if self._refused:
                append(self._directory + "/more", b".")
        return self._refused

    def _reserve(self) -> str | None:
        """Create an empty file with a new name, even if an earlier process had the same id; return its path."""
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
            is_complete = os.write(descriptor, text) == len(text)
        except OSError:
            is_complete = False
        finally:
            os.close(descriptor)
        if is_complete:
            os.replace(new, path)
        else:
            os.unlink(new)


def append(path: str, text: bytes) -> None:
    """Append to a file that processes share."""
    descriptor = os.open(path, _NEW | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, text)
    finally:
        os.close(descriptor)
