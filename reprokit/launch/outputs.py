"""Digests of the files that a run wrote: what its training left behind, within bounds.

Small outputs are copied into the run directory, as a replay usually overwrites the files themselves.
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

MAX_FILES = 100_000
MAX_GONE = 100  # names of files that are not there at the end, and of those that were not seen to be written
MAX_BYTES = 64 << 30  # of all files together; past it a file is listed without a digest
MAX_UNPACKED = 16 << 30  # of one container
MAX_MEMBERS = 100_000  # of one container
MAX_METADATA = 1 << 20  # bytes of a .keras file's metadata.json
BLOCK = 1 << 20

SYSTEM = ("/dev", "/proc", "/run", "/sys", "/tmp", "/var/run", "/var/tmp")
BELOW_SYSTEM = tuple(f"{directory}/" for directory in SYSTEM)
WANDB_RUN = re.compile(r"(.*/wandb/(?:offline-)?run-\d{8}_\d{6}-[^/]+)(?:/.*)?", re.DOTALL)
PIECE = 8 << 20  # bytes copied between two looks at whether to stop
MARGIN = 64 << 20  # bytes of the disk that are left free
_NO_COPYING = (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)


class OutputReading(msgspec.Struct):
    """Bounds what is read and copied of the outputs, and says when to stop."""

    run: Path
    interrupted: Callable[[], bool]
    room: int  # bytes of further copies
    left: int  # bytes that may be digested
    number: int = 0  # of the next copy

    def copy(self, file: IO[bytes]) -> IO[bytes] | None:
        """Return a copy that did not change while it was made; None where there is no room, or no use."""
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
        _drop(copy)
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
        return open(directory / str(self.number), "x+b", opener=_private)

    def _copied(self, file: IO[bytes], copy: IO[bytes], size: int) -> bool:
        """Return whether all bytes of a file were copied, and it was the same file all the while."""
        before = _state(file)
        done = 0
        while done < size:
            count = _copy_some(file.fileno(), copy.fileno(), done, min(PIECE, size - done))
            if count == 0 or self.interrupted():
                return False
            done += count
        return _state(file) == before


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _drop(copy: IO[bytes]) -> None:
    copy.close()
    with suppress(OSError):
        os.unlink(copy.name)


def _state(file: IO[bytes]) -> tuple[int, int, int]:
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _copy_some(source: int, target: int, offset: int, count: int) -> int:
    """Copy by the kernel, which shares the blocks where the file system can."""
    try:
        return os.copy_file_range(source, target, count, offset, offset)
    except OSError as error:
        if error.errno not in _NO_COPYING:
            raise
    data = os.pread(source, count, offset)
    return os.pwrite(target, data, offset) if data else 0


class DigestRefused(Exception):
    """Why a file or container has no digest."""


def collect(
    run: Path,
    working_directory: Path,
    interrupted: Callable[[], bool],
    keep: int = 0,
    moved: tuple[Path, Path] | None = None,
    fallback: Path | None = None,
) -> OutputsFile:
    """Return all that is left of what the run wrote, in order of path; copies of at most `keep` bytes are kept.

    What was written below the second directory of `moved` is listed as if it had been below the first. Snapshots in
    the ``fallback`` are no outputs.
    """
    places = PlaceNames((run, fallback or run), working_directory, moved)
    written = names.written(run)
    resolver = names.Resolver()
    left = set(names.there(written, resolver, places.has_results)) - names.unchanged(run)
    there = sorted(_results(left, places), key=places.named)
    temporary = sorted(filter(places.is_temporary, left), key=places.named)
    found = [path for path in there if not os.path.islink(path)]
    links = [path for path in there if os.path.islink(path)]
    gone = sorted(names.gone(written, places.has_lasting_results), key=places.named)
    unseen = sorted(_unseen(run, working_directory, written, resolver, there, places), key=places.named)
    reading = OutputReading(run, interrupted, keep, MAX_BYTES)
    files = [_describe(path, places, reading) for path in found[:MAX_FILES]]
    return OutputsFile(
        files=[file for file in files if file is not None],
        links=[_link(path, places) for path in links[:MAX_FILES]],
        left_out=max(0, len(found) - MAX_FILES) + max(0, len(links) - MAX_FILES) + (not written.is_whole),
        gone=[places.name(path) for path in gone[:MAX_GONE]],
        gone_more=max(0, len(gone) - MAX_GONE),
        unseen=[places.name(path) for path in unseen[:MAX_GONE]],
        unseen_more=max(0, len(unseen) - MAX_GONE),
        temporary=[places.name(path) for path in temporary[:MAX_GONE]],
        temporary_more=max(0, len(temporary) - MAX_GONE),
        more_links=places.more_links,
    )


class PlaceNames:
    """What directories are called that the run worked in."""

    def __init__(self, own: tuple[Path, ...], working_directory: Path, moved: tuple[Path, Path] | None) -> None:
        self._own = list(map(os.path.realpath, own))
        self._moved = None if moved is None else (os.path.realpath(moved[0]), os.path.realpath(moved[1]))
        self._directory = os.path.realpath(working_directory)
        linked, self.more_links = _linked(self._directory)
        self._results = (names.SHARED_MEMORY, *linked)
        self._environments: dict[str, bool] = {}
        self.here = self.named(self._directory)

    def named(self, path: str) -> str:
        """Return the path as the recording would have had it."""
        if self._moved is None or not _below(path, self._moved[1]):
            return path
        return os.path.normpath(os.path.join(self._moved[0], os.path.relpath(path, self._moved[1])))

    def name(self, path: str) -> str:
        """Below the working directory the way from there."""
        named = self.named(path)
        return _from(self.here, named) if _below(named, self.here) else named

    def has_results(self, path: str) -> bool:
        """Return whether a path is where trainings leave results, not where programs keep their own things."""
        if self._is_environment(os.path.dirname(path)):
            return False
        path = self.named(path)
        if any(_below(path, own) for own in self._own) or path.endswith(NOISE_SUFFIXES):
            return False
        if _below(path, self.here):
            return NOISE.isdisjoint(_from(self.here, path).split(os.sep))
        is_result = not f"{path}/".startswith(BELOW_SYSTEM) or f"{path}/".startswith(self._results)
        return is_result and NOISE.isdisjoint(path.split(os.sep))

    def has_lasting_results(self, path: str) -> bool:
        """Return whether nothing that was there ought to be gone: what processes share in memory is removed."""
        return self.has_results(path) and not path.startswith(names.SHARED_MEMORY)

    def is_temporary(self, path: str) -> bool:
        """Return whether a file may be a result that is not looked at, for where it lies."""
        named = self.named(path)
        is_kept = any(part.startswith((".", INDUCTOR)) for part in named.split(os.sep)) or self.has_results(path)
        is_own = any(_below(named, own) for own in self._own)
        return named.startswith(names.TEMPORARY) and not is_kept and not is_own and _is_regular_or_link(path)

    def _is_environment(self, directory: str) -> bool:
        """Return whether a directory below the working directory is a virtual environment, or in one."""
        if not directory.startswith(self._directory + os.sep):
            return False
        known = self._environments.get(directory)
        if known is None:
            is_one = names.is_environment(directory) or self._is_environment(os.path.dirname(directory))
            known = self._environments[directory] = is_one
        return known


def _linked(directory: str) -> tuple[tuple[str, ...], bool]:
    """Return the temporary places to which links in the working directory lead, and whether there may be others."""

    def searched(path: str) -> bool:
        return path == directory or not (os.path.basename(path).startswith(".") or names.is_environment(path))

    files = names.below(directory, searched)
    targets = [os.path.realpath(one.path) for one in islice(files, MAX_LINKS) if one.is_symlink()]
    return tuple(f"{target}/" for target in targets if target.startswith(names.TEMPORARY)), next(
        files, None
    ) is not None


def _results(paths: set[str], places: PlaceNames) -> set[str]:
    """Files and symbolic links that are there."""
    paths = paths | set(_wandb_files(paths))
    return {path for path in paths if places.has_results(path) and _is_regular_or_link(path)}


def _unseen(
    run: Path,
    directory: Path,
    written: names.WrittenNames,
    resolver: names.Resolver,
    known: list[str],
    places: PlaceNames,
) -> Iterator[str]:
    """Files below the working directory that were changed since the start, and not by what the shim saw."""
    here = os.path.realpath(directory)
    try:
        start = os.stat(run / rundir.SHIM_PLAN).st_ctime_ns
    except OSError:  # of a run without the shim, all that changed is written
        return
    seen = {*known, *map(resolver.file, written.opened), *(resolver.entry(path) for _, path in written.placed)}
    own = set(filter(None, map(_identity, range(3))))  # what the caller writes our output to
    for path in names.changed_since(here, start, lambda path: path == here or not _is_left_out(path, places)):
        is_of_tracker = WANDB_RUN.fullmatch(path) or os.path.basename(os.path.dirname(path)) == "wandb"
        if path not in seen and places.has_results(path) and not is_of_tracker and _identity(path) not in own:
            yield path


def _is_left_out(directory: str, places: PlaceNames) -> bool:
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
    """What Weights & Biases keeps of runs whose directories were written to: by a Go program, which no shim sees."""
    for directory in {found[1] for path in paths if (found := WANDB_RUN.fullmatch(path))}:
        with suppress(OSError), os.scandir(directory) as entries:
            yield from (entry.path for entry in islice(entries, MAX_FILES) if entry.name.endswith(".wandb"))
        yield os.path.join(directory, "files", "wandb-summary.json")


def _below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory if directory == "/" else f"{directory}/")


def _from(directory: str, path: str) -> str:
    """Return the way to a path below: os.path.relpath would normalize both, which they are."""
    return path[len(directory.rstrip("/")) + 1 :] or "."


def _is_regular_or_link(path: str) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def _link(path: str, places: PlaceNames) -> OutputLink:
    try:
        target = os.readlink(path)
    except OSError:
        target = ""
    return OutputLink(path=places.name(path), target=places.name(target) if target.startswith("/") else target)


def _describe(path: str, places: PlaceNames, reading: OutputReading) -> OutputFile | None:
    name = places.name(path)
    try:
        with open(path, "rb", opener=rundir.open_regular) as file:
            size = os.fstat(file.fileno()).st_size
            return _read(file, name, size, reading)
    except DigestRefused as refusal:
        return OutputFile(path=name, size=size, digest="", note=str(refusal))
    except FileNotFoundError:
        return None
    except OSError as error:
        return OutputFile(path=name, size=0, digest="", note=f"not readable: {error.strerror}")


def _read(file: IO[bytes], name: str, size: int, reading: OutputReading) -> OutputFile:
    """Return the digests of a file; where a copy of it is kept, of the copy, so that they always belong together."""
    private_key = private_keys.is_private_key(file)
    copy = None if private_key or name.endswith(CODE_SUFFIXES) else reading.copy(file)
    try:
        source = file if copy is None else copy
        digest = _digest(source, reading)
        content, container = _content(source, name, reading)
    except BaseException:
        if copy is not None:
            _drop(copy)
        raise
    if copy is not None:
        copy.close()
    kept = None if copy is None else int(os.path.basename(copy.name))
    return OutputFile(
        path=name, size=size, digest=digest, content=content, container=container, kept=kept, private_key=private_key
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
    """Return a zip container's digest without its timestamps, and the rule that made it; empty for other files."""
    file.seek(0)
    if file.read(4) != b"PK\x03\x04":
        return "", ""
    import zipfile  # few files need it, and it takes long to load
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
    left = MAX_UNPACKED
    with zipfile.ZipFile(file) as container:
        members = container.infolist()
        if len(members) > MAX_MEMBERS:
            raise DigestRefused("too many members")
        for member in members:
            digest.update(member.filename.encode("utf-8", "surrogateescape") + b"\0")
            inner = hashlib.sha256()
            for block in _member_blocks(container, member, is_keras):
                left -= len(block)
                if left < 0 or reading.interrupted():
                    raise DigestRefused("too large")
                inner.update(block)
            digest.update(inner.digest())
    return f"sha256:{digest.hexdigest()}"


def _member_blocks(container: zipfile.ZipFile, member: zipfile.ZipInfo, is_keras: bool) -> Iterator[bytes]:
    with container.open(member) as file:
        if is_keras and member.filename == "metadata.json":
            yield _without_date(file.read(MAX_METADATA))
            return
        while block := file.read(BLOCK):
            yield block


def _without_date(metadata: bytes) -> bytes:
    """Return a .keras file's metadata without the time at which it was saved."""
    try:
        value: Any = json.loads(metadata)
    except (ValueError, RecursionError):
        return metadata
    if not isinstance(value, dict):
        return metadata
    value.pop("date_saved", None)
    return json.dumps(value, sort_keys=True).encode()
