"""Computes digests of the files that a run wrote and left behind, within bounds.

Small outputs are copied into the run directory, as a replay usually overwrites the original files.
"""

from __future__ import annotations

import errno
import hashlib
import heapq
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from reprokit.core import private_keys
from reprokit.model.outputs import OutputFile, OutputLink, OutputsFile
from reprokit.run import found_files
from reprokit.run.file_times import born
from reprokit.run.output_places import WANDB_RUN, PlaceNames, is_regular_or_link
from reprokit.run_files import names, rundir
from reprokit.run_files.names import CODE_SUFFIXES

if TYPE_CHECKING:
    import zipfile

MAX_FILES = 100_000
MAX_TEMPORARY = 100  # listed names of files in temporary places
MAX_BYTES = 64 << 30  # of all files together; past it a file is listed without a digest
MAX_UNPACKED = 16 << 30  # of one container
MAX_MEMBERS = 100_000  # of one container
MAX_METADATA = 1 << 20  # bytes of a .keras file's metadata.json
BLOCK = 1 << 20
TICK = 10_000_000  # nanoseconds by which times of file systems may be late
PIECE = 8 << 20  # bytes copied between two checks for an interruption
MARGIN = 64 << 20  # bytes left free on the disk
_NO_COPYING = (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)
MAX_PROGRAMS = 100  # of a pipeline
FLAGS = re.compile(r"^flags:\s*([0-7]+)$", re.MULTILINE)
Identity = tuple[int, int]  # device and inode
MAX_LOOKED_AT = 1_000_000  # files
MAX_SECONDS = 2.0
OFTEN = 512  # files between two looks at the time
MAX_DIRECTORIES = 10_000  # that are listed
MAX_DEPTH = 64


class OutputReading(msgspec.Struct):
    """The bounds for reading and copying outputs, and the check for interruptions."""

    run: Path
    interrupted: Callable[[], bool]
    room: int  # bytes left for further copies
    left: int  # bytes that may still be digested
    number: int = 0  # the name of the next copy

    def copy(self, file: IO[bytes]) -> IO[bytes] | None:
        """Return a copy of a file that did not change meanwhile; None if it does not fit or failed."""
        size = os.fstat(file.fileno()).st_size
        if not 0 < size <= self.room or not self._has_room(size):
            return None
        try:
            copy = self._new()
        except OSError:
            return None
        with suppress(OSError):
            if self._copied(file, copy, size):
                self.room -= size
                self.number += 1
                return copy
        _discard_copy(copy)
        return None

    def _has_room(self, size: int) -> bool:
        try:
            disk = os.statvfs(self.run)
        except OSError:
            return False
        return disk.f_bavail * disk.f_frsize >= size + MARGIN

    def _new(self) -> IO[bytes]:
        directory = self.run / rundir.KEPT
        with suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        return open(directory / str(self.number), "x+b", opener=_open_private)

    def _copied(self, file: IO[bytes], copy: IO[bytes], size: int) -> bool:
        """Copy all bytes of a file; return False if it changed meanwhile or the user interrupted."""
        state_before = _file_state(file)
        offset = 0
        while offset < size:
            count = _copy_some(file.fileno(), copy.fileno(), offset, min(PIECE, size - offset))
            if count == 0 or self.interrupted():
                return False
            offset += count
        return _file_state(file) == state_before


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _discard_copy(copy: IO[bytes]) -> None:
    copy.close()
    with suppress(OSError):
        os.unlink(copy.name)


def _file_state(file: IO[bytes]) -> tuple[int, int, int]:
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _copy_some(source: int, target: int, offset: int, count: int) -> int:
    """Copy up to `count` bytes in the kernel, which shares blocks if the file system can."""
    try:
        return os.copy_file_range(source, target, count, offset, offset)
    except OSError as error:
        if error.errno not in _NO_COPYING:
            raise
    data = os.pread(source, count, offset)
    return os.pwrite(target, data, offset) if data else 0


class DigestRefused(Exception):
    """The reason why a file or container has no digest."""


def collect(
    run: Path,
    working_directory: Path,
    interrupted: Callable[[], bool],
    keep: int = 0,
    moved: tuple[Path, Path] | None = None,
    command: Sequence[str] = (),
    other: Iterable[Path] = (),
    intervals: Sequence[tuple[int, int]] = (),
    *,
    is_shared: bool = False,
) -> OutputsFile:
    """Return what is left of the files that the run wrote, sorted by path; copies of at most `keep` bytes are kept.

    Files below the second directory of `moved` are listed as if they were below the first. Nothing in the `other`
    directories is an output: snapshots, and what a study writes itself. Nor is what nothing was seen to write, and that
    changed in one of the `intervals`, in which commands of the user ran beside the training. Into a shared directory
    other hosts of the run write too.
    """
    places = PlaceNames((run, *other), working_directory, moved)
    written = names.written(run)
    resolver = names.Resolver()
    remaining = set(names.there(written, resolver, places.is_counted_below)) - names.unchanged(run, written)
    seen = _results(remaining, places)
    start = None if is_shared else names.start_of(run)
    changed = _changed_files(start, os.path.realpath(working_directory), command, places, written, interrupted)
    changed.files -= {path for path in changed.files - seen if _has_changed_in(path, intervals)}
    results = sorted(seen | changed.files, key=places.recorded_path)
    temporary = sorted(filter(places.is_temporary, remaining), key=places.recorded_path)
    regular_files = [path for path in results if not os.path.islink(path)]
    links = [path for path in results if os.path.islink(path)]
    hidden = sorted(_hidden(remaining, written, places), key=places.recorded_path)
    attributed = [path for path in regular_files[:MAX_FILES] if _has_attributes(path)]
    empty = [path for path in sorted(changed.directories) if _is_empty(path)]
    reading = OutputReading(run, interrupted, keep, MAX_BYTES)
    return OutputsFile(
        files=[_output_file(path, places, reading, unseen=path not in seen) for path in regular_files[:MAX_FILES]],
        links=[_output_link(path, places, unseen=path not in seen) for path in links[:MAX_FILES]],
        left_out=max(0, len(regular_files) - MAX_FILES) + max(0, len(links) - MAX_FILES) + (not written.is_whole),
        directories=sorted(map(places.name, changed.directories)),
        past_the_shim=found_files.has_program_past_the_shim(run),
        found=found_files.collect(run, set(results), places, written),
        cut=changed.cut and places.name(changed.cut),
        temporary=[places.name(path) for path in temporary[:MAX_TEMPORARY]],
        temporary_more=max(0, len(temporary) - MAX_TEMPORARY),
        hidden=[places.name(path) for path in hidden[:MAX_TEMPORARY]],
        hidden_more=max(0, len(hidden) - MAX_TEMPORARY),
        attributed=[places.name(path) for path in attributed[:MAX_TEMPORARY]],
        attributed_more=max(0, len(attributed) - MAX_TEMPORARY),
        empty=[places.name(path) for path in empty[:MAX_TEMPORARY]],
        empty_more=max(0, len(empty) - MAX_TEMPORARY),
        more_links=places.more_links,
    )


def _results(paths: set[str], places: PlaceNames) -> set[str]:
    """Return the existing regular files and symbolic links that are results."""
    paths = paths | set(_wandb_files(paths))
    return {path for path in paths if places.has_results(path) and is_regular_or_link(path)}


def _hidden(paths: set[str], written: names.WrittenNames, places: PlaceNames) -> set[str]:
    """Return what lies in caches and hidden places: files, and directories that were put in place there."""
    directories = {after for _, after in written.placed if os.path.isdir(after) and not os.path.islink(after)}
    files = {path for path in paths if is_regular_or_link(path)}
    return set(filter(places.is_hidden, files | directories))


def _has_attributes(path: str) -> bool:
    """Return whether a file has extended attributes, but for those of the system."""
    with suppress(OSError):
        return any(name.startswith("user.") for name in os.listxattr(path, follow_symlinks=False))
    return False


def _is_empty(directory: str) -> bool:
    with suppress(OSError), os.scandir(directory) as entries:
        return next(entries, None) is None
    return False


def _changed_files(
    start: os.stat_result | None,
    here: str,
    command: Sequence[str],
    places: PlaceNames,
    written: names.WrittenNames,
    interrupted: Callable[[], bool],
) -> ChangedFiles:
    """Return what changed where results are looked for, whoever wrote it, and the directories that were created."""
    if start is None:
        return ChangedFiles()
    named = list(places.named_by(command[1:]))  # the program itself lies among others
    whole = [here, *(directory for directory, is_directory in named if is_directory)]
    results = list(filter(places.has_results, (*written.opened, *(after for _, after in written.placed))))
    # In shared memory lie files of many programs.
    above = {os.path.realpath(os.path.dirname(path)) for path in filter(places.has_lasting_results, results)}
    search = ChangeSearch(start.st_ctime_ns, places.is_searched, interrupted)
    changed = search.run(whole, [*(directory for directory, _ in named), *sorted(above)])
    changed.files = set(filter(places.may_be_written_unseen, changed.files))
    if changed.files:
        copies = identities()
        changed.files = {path for path in changed.files if _identity(path) not in copies}
    changed.directories |= set(created_above(map(os.path.realpath, results), start.st_ctime_ns))
    changed.directories = {path for path in changed.directories if places.has_results(path)}
    return changed


def _wandb_files(paths: set[str]) -> Iterator[str]:
    """Yield the files of Weights & Biases runs: a Go program writes them, which no shim sees."""
    for directory in {match[1] for path in paths if (match := WANDB_RUN.fullmatch(path))}:
        with suppress(OSError), os.scandir(directory) as entries:
            yield from (entry.path for entry in islice(entries, MAX_FILES) if entry.name.endswith(".wandb"))
        yield os.path.join(directory, "files", "wandb-summary.json")


def _output_link(path: str, places: PlaceNames, *, unseen: bool) -> OutputLink:
    try:
        target = os.readlink(path)
    except OSError:
        target = ""
    text = places.name(target) if target.startswith("/") else target
    return OutputLink(path=places.name(path), target=text, unseen=unseen)


def _has_changed_in(path: str, intervals: Sequence[tuple[int, int]]) -> bool:
    with suppress(OSError):
        changed = os.lstat(path).st_ctime_ns
        return any(began - TICK <= changed <= ended for began, ended in intervals)
    return False


def _identity(path: str) -> Identity | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _output_file(path: str, places: PlaceNames, reading: OutputReading, *, unseen: bool) -> OutputFile:
    bare = OutputFile(path=places.name(path), size=0, digest="", unseen=unseen)
    try:
        status = os.stat(path)
        bare = msgspec.structs.replace(bare, size=status.st_size, modified=max(0, status.st_mtime_ns))
        with open(path, "rb", opener=rundir.open_regular) as file:
            return _read(file, bare, reading)
    except DigestRefused as reason:
        return msgspec.structs.replace(bare, note=str(reason))
    except FileNotFoundError:
        return msgspec.structs.replace(bare, note="it vanished while it was read")
    except OSError as error:
        return msgspec.structs.replace(bare, note=f"not readable: {error.strerror}")


def _read(file: IO[bytes], bare: OutputFile, reading: OutputReading) -> OutputFile:
    """Return the digests of a file, computed from its kept copy if there is one, so that both always match."""
    private_key = private_keys.is_private_key(file)
    copy = None if private_key or bare.path.endswith(CODE_SUFFIXES) else reading.copy(file)
    state_before = _file_state(file)
    try:
        source = file if copy is None else copy
        digest = _digest(source, reading)
        content, container = _content(source, bare.path, reading)
        if copy is None and _file_state(file) != state_before:
            raise DigestRefused("it changed while it was read")
    except BaseException:
        if copy is not None:
            _discard_copy(copy)
        raise
    if copy is not None:
        copy.close()
    copy_number = None if copy is None else int(os.path.basename(copy.name))
    return msgspec.structs.replace(
        bare, digest=digest, content=content, container=container, kept=copy_number, private_key=private_key
    )


def _digest(file: IO[bytes], reading: OutputReading) -> str:
    digest = hashlib.sha256()
    while block := file.read(BLOCK):
        if reading.interrupted():
            raise DigestRefused("not read: interrupted")
        reading.left -= len(block)
        if reading.left < 0:
            raise DigestRefused("not read: more was written than is digested")
        digest.update(block)
    return f"sha256:{digest.hexdigest()}"


def _content(file: IO[bytes], path: str, reading: OutputReading) -> tuple[str, str]:
    """Return the digest of a zip container without its timestamps and the rule's name; empty for other files."""
    file.seek(0)
    if file.read(4) != b"PK\x03\x04":
        return "", ""
    import zipfile  # imported late: slow to load, and rarely needed
    import zlib

    is_keras = path.endswith(".keras")
    with suppress(
        zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError, zlib.error, DigestRefused
    ):
        return _zip_content(file, is_keras, reading), "keras" if is_keras else "zip"
    return "", ""


def _zip_content(file: IO[bytes], is_keras: bool, reading: OutputReading) -> str:
    import zipfile

    digest = hashlib.sha256(b"reprokit-zip-1\0")
    remaining = MAX_UNPACKED
    with zipfile.ZipFile(file) as container:
        members = container.infolist()
        if len(members) > MAX_MEMBERS:
            raise DigestRefused("too many members")
        for member in members:
            digest.update(member.filename.encode("utf-8", "surrogateescape") + b"\0")
            member_digest = hashlib.sha256()
            for block in _member_blocks(container, member, is_keras):
                remaining -= len(block)
                if remaining < 0 or reading.interrupted():
                    raise DigestRefused("too large")
                member_digest.update(block)
            digest.update(member_digest.digest())
    return f"sha256:{digest.hexdigest()}"


def _member_blocks(container: zipfile.ZipFile, member: zipfile.ZipInfo, is_keras: bool) -> Iterator[bytes]:
    with container.open(member) as file:
        if is_keras and member.filename == "metadata.json":
            yield _without_date(file.read(MAX_METADATA))
            return
        while block := file.read(BLOCK):
            yield block


def _without_date(metadata: bytes) -> bytes:
    """Return the metadata of a .keras file without the time at which it was saved."""
    try:
        value: Any = json.loads(metadata)
    except (ValueError, RecursionError):
        return metadata
    if not isinstance(value, dict):
        return metadata
    value.pop("date_saved", None)
    return json.dumps(value, sort_keys=True).encode()


def identities() -> set[Identity]:
    """Return the files behind the standard streams of all processes, and those that readers of our pipes write to."""
    found: set[Identity] = set()
    pipes: set[Identity] = set()
    for descriptor in range(3):
        with suppress(OSError):
            status = os.fstat(descriptor)
            (pipes if stat.S_ISFIFO(status.st_mode) and descriptor else found).add((status.st_dev, status.st_ino))
    return found | set(_printed_into()) | (_written_by_readers(pipes) if pipes else set())


def _printed_into() -> Iterator[Identity]:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for descriptor in (1, 2):
            with suppress(OSError):
                status = os.stat(f"/proc/{pid}/fd/{descriptor}")
                if stat.S_ISREG(status.st_mode):
                    yield status.st_dev, status.st_ino


def _written_by_readers(pipes: set[Identity]) -> set[Identity]:
    """Return the files that programs write which read one of these pipes, or a pipe that one of them writes."""
    programs = {pid: list(_open_files(pid)) for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid()}
    written: set[Identity] = set()
    waiting, known = list(pipes), set(pipes)
    while waiting and len(known) < MAX_PROGRAMS:
        pipe = waiting.pop()
        for files in programs.values():
            if (pipe, True, False) not in files:
                continue
            own = {identity for identity, is_pipe, is_written in files if is_written and not is_pipe}
            further = {identity for identity, is_pipe, is_written in files if is_written and is_pipe} - known
            written |= own
            known |= further
            waiting += further
    return written


def _open_files(pid: str) -> Iterator[tuple[Identity, bool, bool]]:
    """Yield the open files and pipes of a process: identity, whether it is a pipe, and whether it may be written."""
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                status = os.stat(f"/proc/{pid}/fd/{number}")
                is_pipe = stat.S_ISFIFO(status.st_mode)
                if not (is_pipe or stat.S_ISREG(status.st_mode)):
                    continue
                with open(f"/proc/{pid}/fdinfo/{number}", encoding="ascii") as file:
                    flags = FLAGS.search(file.read())
                yield (
                    (status.st_dev, status.st_ino),
                    is_pipe,
                    flags is not None and bool(int(flags[1], 8) & os.O_ACCMODE),
                )


class ChangedFiles(msgspec.Struct):
    """The regular files and symbolic links that changed, and the directories that were created."""

    files: set[str] = msgspec.field(default_factory=set)
    directories: set[str] = msgspec.field(default_factory=set)
    cut: str = ""  # the first directory that was not looked through; empty if all were


class SearchedDirectory(msgspec.Struct, frozen=True, order=True):
    """A directory to be looked through, in the order of the search."""

    is_old: bool  # nothing was created, renamed or removed in it
    depth: int
    path: str
    is_whole: bool  # also what did not change itself below it


class ChangeSearch:
    """A search through directories; each is looked through once."""

    def __init__(self, start: int, is_searched: Callable[[str], bool], interrupted: Callable[[], bool]) -> None:
        self._start, self._is_searched, self._interrupted = start, is_searched, interrupted
        self._deadline = time.monotonic() + MAX_SECONDS
        self._whole: tuple[str, ...] = ()
        self._seen: set[str] = set()
        self._waiting: list[SearchedDirectory] = []
        self._looked_at = 0
        self._changed = ChangedFiles()

    def run(self, whole: Sequence[str], partly: Iterable[str]) -> ChangedFiles:
        """Look through directories: the first with all below them, the others where they changed themselves."""
        self._whole = tuple(os.path.join(path, "") for path in whole)
        for path in (*whole, *partly):
            with suppress(OSError):
                self._add(path, os.stat(path), 0)
        while self._waiting:
            directory = heapq.heappop(self._waiting)
            if not self._look_through(directory):
                self._changed.cut = directory.path
                break
        return self._changed

    def _add(self, path: str, status: os.stat_result, depth: int) -> None:
        if path in self._seen or not stat.S_ISDIR(status.st_mode) or depth > MAX_DEPTH:
            return
        self._seen.add(path)
        is_old = status.st_ctime_ns <= self._start
        self._add_created(path, status)
        is_whole = os.path.join(path, "").startswith(self._whole)
        heapq.heappush(self._waiting, SearchedDirectory(is_old, depth, path, is_whole))

    def _add_created(self, path: str, status: os.stat_result) -> None:
        """Add a directory to those that were created since."""
        is_old = status.st_ctime_ns <= self._start
        if not is_old and len(self._changed.directories) < MAX_DIRECTORIES and born(path) > self._start:
            self._changed.directories.add(path)

    def _look_through(self, directory: SearchedDirectory) -> bool:
        """Look at each entry of a directory; return False if the bounds were reached."""
        with suppress(OSError), os.scandir(directory.path) as entries:  # gone, or not this user's to read
            for entry in entries:
                if not self._goes_on():
                    return False
                with suppress(OSError):
                    self._look_at(entry, directory)
        return True

    def _goes_on(self) -> bool:
        self._looked_at += 1
        if self._looked_at % OFTEN:
            return True
        is_late = time.monotonic() > self._deadline or self._looked_at > MAX_LOOKED_AT
        return not (is_late or self._interrupted())

    def _look_at(self, entry: os.DirEntry[str], directory: SearchedDirectory) -> None:
        status = entry.stat(follow_symlinks=False)
        has_changed = status.st_ctime_ns > self._start
        if stat.S_ISDIR(status.st_mode):
            if (directory.is_whole or has_changed) and self._is_searched(entry.path):
                self._add(entry.path, status, directory.depth + 1)
            elif has_changed and _is_empty(entry.path):  # as MLflow's .trash: nothing that would have to be searched
                self._add_created(entry.path, status)
            return
        if has_changed and (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
            self._changed.files.add(entry.path)
        if stat.S_ISLNK(status.st_mode) and os.path.isdir(entry.path):
            target = os.path.realpath(entry.path)
            if self._is_searched(target):
                self._add(target, os.stat(target), directory.depth + 1)


def created_above(paths: Iterable[str], start: int) -> Iterator[str]:
    """Yield the directories above files that were created since, as far as the file system knows."""
    seen: set[str] = set()
    for path in paths:
        while (path := os.path.dirname(path)) not in seen and path != "/":
            seen.add(path)
            if born(path) <= start:
                break
            yield path
