"""Puts files back that the continued run had written before a keyframe, over those that a fast-forward wrote.

A file that is open at the keyframe gets what it held then: its further lines belong behind that.
"""

from __future__ import annotations

import io
import json
import os
import stat
import weakref
from contextlib import suppress
from posix import listdir  # not os.listdir, which the agent replaces to observe the training

from ..core.json_text import to_json
from ..core.live_objects import instances
from ..core.signal_errors import pass_on
from ..operators.files import append

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

FILES = "answers/files"  # in the run directory: a list of EarlierFile
RETURNED = "answers/returned"  # likewise: lines of the files that a process has put back, and of those that it has open
BLOCK = 1 << 24
TAIL = 1 << 16  # bytes of a file that are digested
DESCRIPTORS = "/proc/self/fd"


class OpenFiles:
    """The regular files that this process has open for writing, whose buffers of Python's are written."""

    def __init__(self, run: str) -> None:
        self._run = os.path.realpath(run)  # the launcher pads it, and links may lead to it
        self._descriptors: dict[str, int] = {}
        self._objects: list[weakref.ref[Any]] = []  # of the heap, whose search takes long

    def flushed(self) -> dict[str, int]:
        """Return their descriptors, by path."""
        files = dict(filter(None, (_written(int(number), self._run) for number in listdir(DESCRIPTORS))))
        objects = [reference() for reference in self._objects]
        if files != self._descriptors or not all(each is not None and not each.closed for each in objects):
            found = instances(io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom) if files else []
            objects = [each for each in found if _descriptor_of(each) in files.values()]
            self._descriptors, self._objects = files, [weakref.ref(each) for each in objects]
        for each in objects:
            _flush(each)
        return files

    def sizes(self, digest: Callable[[bytes], int]) -> dict[str, list[int]]:
        """Return the size of each, and the digest of its last bytes."""
        sizes = {}
        for path, descriptor in self.flushed().items():
            with suppress(OSError):  # another thread has closed it meanwhile
                size = os.fstat(descriptor).st_size
                sizes[path] = [size, digest(_tail(f"{DESCRIPTORS}/{descriptor}", size))]
        return sizes


class EarlierFile:
    """A file of the run that is continued: where it is now, and where it was when that run was cut off."""

    def __init__(self, source: str, path: str, is_old: bool, rotated_from: str) -> None:
        self.source, self.path = source, path
        self.is_old = is_old  # whether it was written before the keyframe, and not since
        self.rotated_from = rotated_from  # the name from which it moved on when that was given to a newer file


def put_back_opened(run: str, held: Mapping[str, list[int]], digest: Callable[[bytes], int]) -> None:
    """Give files that this process has open what they held at the keyframe; list them, and all that are open."""
    own, listed = OpenFiles(run).flushed(), _listed(run)
    returned, in_place = [], []
    for path in held.keys() & own.keys():
        # A log may have moved on to another name since: it is known by what it held.
        for file in sorted(listed, key=lambda file: file.path != path):
            if _continued(file.source, own[path], held[path], digest):
                returned.append(path)
                in_place += [path] if file.path == path and held[path][0] else []
                break
    _note(run, returned, list(own), in_place)


def put_back_closed(run: str) -> None:
    """Copy files to their places that were written before the keyframe and that no process has open; list them."""
    with open(f"{run}/{RETURNED}", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    identities = {_identity(path) for line in lines for path in line[1]} | _identities()
    in_place = {path for line in lines for path in line[2]}
    returned = [
        file.path
        for file in _listed(run)
        # Renaming leaves a file as old as it was: if its log did not stay in place, it may have had another name.
        if file.is_old and (not file.rotated_from or file.rotated_from in in_place)
        if _identity(file.path) not in identities and _copied(file.source, file.path)
    ]
    _note(run, returned, [], [])


def _note(run: str, returned: list[str], opened: list[str], in_place: list[str]) -> None:
    """List files that were put back, files that are open, and those of them that have the name that they had."""
    line = to_json([[[path, *(_identity(path) or ())] for path in returned], opened, in_place])
    append(f"{run}/{RETURNED}", line.encode() + b"\n")


def _listed(run: str) -> list[EarlierFile]:
    """Return the launcher's list; an empty one where a question is asked, whose outputs are set aside."""
    if not os.path.exists(f"{run}/{FILES}"):
        return []
    with open(f"{run}/{FILES}", encoding="utf-8") as file:
        return [EarlierFile(*each) for each in json.load(file)]


def _written(descriptor: int, run: str) -> tuple[str, int] | None:
    """Return the path of a file that is open for writing, with its descriptor; None for anything else."""
    try:
        path = os.readlink(f"{DESCRIPTORS}/{descriptor}")
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode) and os.stat(path).st_nlink
        with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file:
            flags = int(next(line for line in file if line.startswith("flags:")).split()[1], 8)
    except (OSError, StopIteration):
        return None
    is_own = descriptor < 3 or path.startswith(run + "/")
    return (path, descriptor) if is_file and flags & os.O_ACCMODE and not is_own else None


def _descriptor_of(file: Any) -> int:
    try:
        return -1 if file.closed else int(file.fileno())
    except Exception as error:  # of an object that is half taken apart
        pass_on(error)
        return -1


def _flush(file: Any) -> None:
    try:
        file.flush()
    except Exception as error:  # a full disk
        pass_on(error)


def _tail(path: str, size: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(max(0, size - TAIL))
        return file.read(min(size, TAIL))


def _continued(source: str, descriptor: int, held: list[int], digest: Callable[[bytes], int]) -> bool:
    """Give an open file the first bytes of another one, behind which it goes on; return whether these are known."""
    size, known = held
    try:
        if os.stat(source).st_size < size or digest(_tail(source, size)) != known:
            return False
        with open(source, "rb") as old, open(f"{DESCRIPTORS}/{descriptor}", "r+b") as new:
            new.truncate(0)
            while new.tell() < size:
                new.write(old.read(min(BLOCK, size - new.tell())))
        os.lseek(descriptor, size, os.SEEK_SET)
    except OSError:
        return False
    return True


def _private(path: str, flags: int) -> int:
    """Open a file that nobody else may read: what is copied may be secret, until it has its own mode."""
    return os.open(path, flags, 0o600)


def _identities() -> set[tuple[int, int] | None]:
    """Return the files that this process has open."""
    return {_identity(f"{DESCRIPTORS}/{number}") for number in listdir(DESCRIPTORS)} - {None}


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _copied(source: str, path: str) -> bool:
    """Copy a file with its times and mode, whole or not at all; return whether that worked."""
    partial = f"{path}.reprokit-{os.getpid()}"
    try:
        status = os.stat(source)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(source, "rb") as old, open(partial, "xb", opener=_private) as new:
            while True:
                block = old.read(BLOCK)
                if not block:
                    break
                new.write(block)
        os.chmod(partial, status.st_mode & 0o7777)
        os.utime(partial, ns=(status.st_atime_ns, status.st_mtime_ns))
        os.replace(partial, path)
    except OSError:
        try:
            os.unlink(partial)
        except OSError:
            pass
        return False
    return True
