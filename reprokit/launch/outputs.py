"""Computes digests of the files that a run wrote and left behind, within bounds.

Small outputs are copied into the run directory, as a replay usually overwrites the original files.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from reprokit import names, private_keys, rundir
from reprokit.model.outputs import MAX_LINKS, OutputFile, OutputLink, OutputsFile
from reprokit.names import CODE_SUFFIXES, NOISE, NOISE_SUFFIXES
from reprokit.state_files import INDUCTOR

if TYPE_CHECKING:
    import zipfile

# Memory of Open MPI and NCCL, which other ranks may still use when this one ends.
SEGMENTS = tuple(names.SHARED_MEMORY + name for name in ("nccl-", "sm_segment.", "vader_segment."))
MAX_FILES = 100_000
MAX_GONE = 100  # listed names of files missing at the end, and of files that nothing was seen to write
MAX_BYTES = 64 << 30  # of all files together; past it a file is listed without a digest
MAX_UNPACKED = 16 << 30  # of one container
MAX_MEMBERS = 100_000  # of one container
MAX_METADATA = 1 << 20  # bytes of a .keras file's metadata.json
BLOCK = 1 << 20

SYSTEM = ("/dev", "/proc", "/run", "/sys", "/tmp", "/var/run", "/var/tmp")
BELOW_SYSTEM = tuple(f"{directory}/" for directory in SYSTEM)
WANDB_RUN = re.compile(r"(.*/wandb/(?:offline-)?run-\d{8}_\d{6}-[^/]+)(?:/.*)?", re.DOTALL)
PIECE = 8 << 20  # bytes copied between two checks for an interruption
MARGIN = 64 << 20  # bytes left free on the disk
_NO_COPYING = (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)


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
    fallback: Path | None = None,
) -> OutputsFile:
    """Return what is left of the files that the run wrote, sorted by path; copies of at most `keep` bytes are kept.

    Files below the second directory of `moved` are listed as if they were below the first. Snapshots in
    the `fallback` directory are no outputs.
    """
    places = PlaceNames((run, fallback or run), working_directory, moved)
    written = names.written(run)
    resolver = names.Resolver()
    remaining = set(names.there(written, resolver, places.has_results)) - names.unchanged(run)
    results = sorted(_results(remaining, places), key=places.recorded_path)
    temporary = sorted(filter(places.is_temporary, remaining), key=places.recorded_path)
    regular_files = [path for path in results if not os.path.islink(path)]
    links = [path for path in results if os.path.islink(path)]
    missing = sorted(names.gone(written, places.has_lasting_results), key=places.recorded_path)
    unseen_writes = sorted(
        _unseen_writes(run, working_directory, written, resolver, results, places), key=places.recorded_path
    )
    renamed = _renamed(unseen_writes, results, missing)
    unseen_writes = [path for path in unseen_writes if path not in renamed]
    regular_files = sorted([*regular_files, *renamed], key=places.recorded_path)
    reading = OutputReading(run, interrupted, keep, MAX_BYTES)
    files = [_output_file(path, places, reading) for path in regular_files[:MAX_FILES]]
    return OutputsFile(
        files=[file for file in files if file is not None],
        links=[_output_link(path, places) for path in links[:MAX_FILES]],
        left_out=max(0, len(regular_files) - MAX_FILES) + max(0, len(links) - MAX_FILES) + (not written.is_whole),
        gone=[places.name(path) for path in missing[:MAX_GONE]],
        gone_more=max(0, len(missing) - MAX_GONE),
        unseen=[places.name(path) for path in unseen_writes[:MAX_GONE]],
        unseen_more=max(0, len(unseen_writes) - MAX_GONE),
        temporary=[places.name(path) for path in temporary[:MAX_GONE]],
        temporary_more=max(0, len(temporary) - MAX_GONE),
        more_links=places.more_links,
    )


class PlaceNames:
    """Classifies and names paths relative to the directories that the run worked in."""

    def __init__(self, own: tuple[Path, ...], working_directory: Path, moved: tuple[Path, Path] | None) -> None:
        self._own = list(map(os.path.realpath, own))
        self._moved = None if moved is None else (os.path.realpath(moved[0]), os.path.realpath(moved[1]))
        self._directory = os.path.realpath(working_directory)
        link_targets, self.more_links = _temporary_link_targets(self._directory)
        self._results = (names.SHARED_MEMORY, *link_targets)
        self._environments: dict[str, bool] = {}
        self.here = self.recorded_path(self._directory)

    def recorded_path(self, path: str) -> str:
        """Return the path that this file had in the recording, if the run's directory was moved."""
        if self._moved is None or not _is_below(path, self._moved[1]):
            return path
        return os.path.normpath(os.path.join(self._moved[0], os.path.relpath(path, self._moved[1])))

    def name(self, path: str) -> str:
        """Return the path relative to the working directory, if it is below it."""
        recorded_path = self.recorded_path(path)
        return _relative_path(self.here, recorded_path) if _is_below(recorded_path, self.here) else recorded_path

    def has_results(self, path: str) -> bool:
        """Return whether trainings leave results at this path, rather than programs their caches and state."""
        if self._is_environment(os.path.dirname(path)):
            return False
        path = self.recorded_path(path)
        if any(_is_below(path, own) for own in self._own) or path.endswith(NOISE_SUFFIXES) or path.startswith(SEGMENTS):
            return False
        if _is_below(path, self.here):
            return NOISE.isdisjoint(_relative_path(self.here, path).split(os.sep))
        is_result = not f"{path}/".startswith(BELOW_SYSTEM) or f"{path}/".startswith(self._results)
        return is_result and NOISE.isdisjoint(path.split(os.sep))

    def has_lasting_results(self, path: str) -> bool:
        """Return whether a result at this path should exist at the end: shared memory is usually removed."""
        return self.has_results(path) and not path.startswith(names.SHARED_MEMORY)

    def is_temporary(self, path: str) -> bool:
        """Return whether a file may be a result that is ignored because it lies in a temporary directory."""
        recorded_path = self.recorded_path(path)
        is_excluded = any(part.startswith((".", INDUCTOR)) for part in recorded_path.split(os.sep)) or self.has_results(
            path
        )
        is_own = any(_is_below(recorded_path, own) for own in self._own)
        return (
            recorded_path.startswith(names.TEMPORARY) and not is_excluded and not is_own and _is_regular_or_link(path)
        )

    def _is_environment(self, directory: str) -> bool:
        """Return whether this directory of the working directory is a virtual environment, or within one."""
        if not directory.startswith(self._directory + os.sep):
            return False
        cached = self._environments.get(directory)
        if cached is None:
            is_environment = names.is_environment(directory) or self._is_environment(os.path.dirname(directory))
            cached = self._environments[directory] = is_environment
        return cached


def _temporary_link_targets(directory: str) -> tuple[tuple[str, ...], bool]:
    """Return the temporary directories that links in the working directory point to, and whether more may exist."""

    def is_searched(path: str) -> bool:
        return path == directory or not (os.path.basename(path).startswith(".") or names.is_environment(path))

    files = names.below(directory, is_searched)
    targets = [os.path.realpath(entry.path) for entry in islice(files, MAX_LINKS) if entry.is_symlink()]
    return tuple(f"{target}/" for target in targets if target.startswith(names.TEMPORARY)), next(
        files, None
    ) is not None


def _results(paths: set[str], places: PlaceNames) -> set[str]:
    """Return the existing regular files and symbolic links that are results."""
    paths = paths | set(_wandb_files(paths))
    return {path for path in paths if places.has_results(path) and _is_regular_or_link(path)}


def _unseen_writes(
    run: Path,
    directory: Path,
    written: names.WrittenNames,
    resolver: names.Resolver,
    results: list[str],
    places: PlaceNames,
) -> Iterator[str]:
    """Yield files of the working directory that changed since the start, and that the shim did not see written."""
    here = os.path.realpath(directory)
    try:
        start = os.stat(run / rundir.SHIM_PLAN).st_ctime_ns
    except OSError:  # without the shim every changed file is already in `written`
        return
    known_writes = {
        *results,
        *map(resolver.file, written.opened),
        *(resolver.entry(path) for _, path in written.placed),
    }
    own_output = set(filter(None, map(_identity, range(3))))  # the caller may have redirected our output to a file
    for path in names.changed_since(here, start, lambda path: path == here or not _is_ignored_directory(path, places)):
        is_of_tracker = WANDB_RUN.fullmatch(path) or os.path.basename(os.path.dirname(path)) == "wandb"
        if (
            path not in known_writes
            and places.has_results(path)
            and not is_of_tracker
            and _identity(path) not in own_output
        ):
            yield path


def _renamed(unseen_writes: list[str], results: list[str], missing: list[str]) -> set[str]:
    """Return the files that the run wrote by other names: a direct system call, as of Rust's safetensors, renamed them.

    Beside each the run wrote a file that is gone, and all others in its directory are the run's.
    """
    known = {*unseen_writes, *results}
    directories = {
        directory for directory in {os.path.dirname(path) for path in missing} if known.issuperset(_files_in(directory))
    }
    return {path for path in unseen_writes if os.path.dirname(path) in directories and not os.path.islink(path)}


def _files_in(directory: str) -> list[str]:
    return [entry.path for entry in names.below(directory, lambda path: path == directory)]


def _is_ignored_directory(directory: str, places: PlaceNames) -> bool:
    if directory in SYSTEM or os.path.basename(directory).startswith("."):
        return True
    is_run = os.path.lexists(os.path.join(directory, rundir.RUN))
    return is_run or names.is_environment(directory) or not places.has_results(directory)


def _identity(file: str | int) -> tuple[int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _wandb_files(paths: set[str]) -> Iterator[str]:
    """Yield the files of Weights & Biases runs: a Go program writes them, which no shim sees."""
    for directory in {match[1] for path in paths if (match := WANDB_RUN.fullmatch(path))}:
        with suppress(OSError), os.scandir(directory) as entries:
            yield from (entry.path for entry in islice(entries, MAX_FILES) if entry.name.endswith(".wandb"))
        yield os.path.join(directory, "files", "wandb-summary.json")


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory if directory == "/" else f"{directory}/")


def _relative_path(directory: str, path: str) -> str:
    """Return the path relative to a directory above it: os.path.relpath would normalize both again."""
    return path[len(directory.rstrip("/")) + 1 :] or "."


def _is_regular_or_link(path: str) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def _output_link(path: str, places: PlaceNames) -> OutputLink:
    try:
        target = os.readlink(path)
    except OSError:
        target = ""
    return OutputLink(path=places.name(path), target=places.name(target) if target.startswith("/") else target)


def _output_file(path: str, places: PlaceNames, reading: OutputReading) -> OutputFile | None:
    name = places.name(path)
    try:
        with open(path, "rb", opener=rundir.open_regular) as file:
            size = os.fstat(file.fileno()).st_size
            return _read(file, name, size, reading)
    except DigestRefused as reason:
        return OutputFile(path=name, size=size, digest="", note=str(reason))
    except FileNotFoundError:
        return None
    except OSError as error:
        return OutputFile(path=name, size=0, digest="", note=f"not readable: {error.strerror}")


def _read(file: IO[bytes], name: str, size: int, reading: OutputReading) -> OutputFile:
    """Return the digests of a file, computed from its kept copy if there is one, so that both always match."""
    private_key = private_keys.is_private_key(file)
    copy = None if private_key or name.endswith(CODE_SUFFIXES) else reading.copy(file)
    try:
        source = file if copy is None else copy
        digest = _digest(source, reading)
        content, container = _content(source, name, reading)
    except BaseException:
        if copy is not None:
            _discard_copy(copy)
        raise
    if copy is not None:
        copy.close()
    copy_number = None if copy is None else int(os.path.basename(copy.name))
    return OutputFile(
        path=name,
        size=size,
        digest=digest,
        content=content,
        container=container,
        kept=copy_number,
        private_key=private_key,
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
