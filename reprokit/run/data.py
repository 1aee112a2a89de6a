"""Computes digests of what a run read: files and directories named by --data, and files that it was seen to open.

Files up to a size limit are read whole, larger ones in samples; the choice does not depend on the time available.
A file for which there was no time is listed with its size only, and a note says so.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any

import msgspec

from reprokit.core.errors import ReprokitError
from reprokit.core.printable import printable
from reprokit.run_files import names, rundir, state_files

WHOLE = 64 << 20  # bytes up to which a file that was seen opened is read whole
DECLARED_WHOLE = 1 << 30  # bytes up to which a file named by --data is read whole
SAMPLES, SAMPLE = 64, 64 << 10  # blocks read of larger files, and bytes of each; first and last are included
MANY = 100  # more files of one directory than this become one entry
MAX_FILES = 10_000  # files that are read
MAX_NOTED = 12288  # MOST_READ of native/shim/notes/written.c: a process that opened more did not record all
MAX_DEPTH = 32  # nested directories searched within a declared one
MAX_TOLD = 20  # changes reported one by one
LONGEST = 200  # characters of a name, which may come from an untrusted file
PATIENCE = 2.0  # seconds that the start of a replay and the end of a run spend on digests
BLOCK = 1 << 20

_SYSTEM = ("/dev/", "/etc/", "/proc/", "/sys/", *names.SYSTEM)
_NOISE = frozenset(
    {".config", ".git", ".matplotlib", ".nv", ".reprokit", ".triton", "__pycache__", "dist-packages", "fontconfig",
     "pyvenv.cfg", "site-packages"}
)  # fmt: skip


class DataFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that the run's results depend on, or an entry for many files of one directory."""

    path: str  # relative to the working directory if it lies below it
    size: int
    digest: str  # "sha256:...", "sampled-sha256:...", "etag:..." for objects, or "" if there was no time
    note: str = ""
    files: int = 0  # number of files, for an entry of a directory
    version: str = ""  # of an object, if its store keeps versions
    pieces: list[str] = []  # of a pipe: a digest for each MiB
    declared: bool = False


Stop = Callable[[], bool]  # returns True once reading must stop


class OutOfTime(Exception):
    """Raised when there is no time to read a file to its end."""


def declared(paths: Iterable[str], directory: Path, stop: Stop) -> list[dict[str, Any]]:
    """Return entries for the files named by --data, and for the files below the directories named there."""
    real_directory, data_files = os.path.realpath(directory), list[DataFile]()
    for path in paths:
        place = os.path.join(directory, path)
        files = sorted(_walk(place)) if os.path.isdir(place) else [place]
        entries = [_data_file(file, real_directory, stop, DECLARED_WHOLE) for file in files[:MAX_FILES]]
        existing = [entry for entry in entries if entry is not None]
        grouped = _grouped_by_directory(existing, len(files) > MAX_FILES)
        data_files += [msgspec.structs.replace(entry, declared=True) for entry in grouped]
    return [msgspec.to_builtins(entry) for entry in data_files]


def _walk(place: str, depth: int = 0) -> Iterator[str]:
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if depth < MAX_DEPTH and entry.name not in _NOISE:
                    yield from _walk(entry.path, depth + 1)
            elif entry.is_file():
                yield entry.path


def record_inherited_files(run: Path) -> None:
    """Record the files that the child inherits open for reading, such as standard input: no open call shows them."""
    lines = b""
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the descriptor was closed meanwhile
            is_read = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
            if is_read and os.get_inheritable(fd) and stat.S_ISREG(os.fstat(fd).st_mode):
                name = os.fsencode(os.readlink(f"/proc/self/fd/{fd}"))
                lines += name.replace(b"\\", b"\\\\").replace(b"\n", b"\\n") + b"\\@0\n"  # time 0: before any other
    if lines:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(run / rundir.READ, "ab", opener=lambda path, _: os.open(path, flags, 0o600)) as file:
            file.write(lines)


def with_read_files(
    run: Path, declared_entries: list[dict[str, Any]], written_paths: set[str], directory: Path, stop: Stop
) -> tuple[list[dict[str, Any]], int]:
    """Return declared entries plus files that the run read but did not write, and the number of files left out."""
    real_directory = os.path.realpath(directory)
    declared_paths = {
        os.path.normpath(os.path.join(real_directory, entry["path"].removesuffix("/*"))) for entry in declared_entries
    }
    runs = tuple(f"{os.path.realpath(path)}/" for path in (str(run), *_continued(run)))
    paths = (path for path in names.read(run) - written_paths if not path.startswith(runs))
    files = sorted(
        path
        for path in paths
        if _is_data(path, real_directory) and declared_paths.isdisjoint((path, os.path.dirname(path)))
    )
    entries = [_data_file(path, real_directory, stop, WHOLE) for path in files[:MAX_FILES]]
    entries += _removed_files(run, files[:MAX_FILES], real_directory)
    more = max(0, len(files) - MAX_FILES)
    incomplete = more > 0 or len(names.read_lines(run)) >= MAX_NOTED
    seen_files = _grouped_by_directory([entry for entry in entries if entry is not None], incomplete)
    return declared_entries + [msgspec.to_builtins(entry) for entry in seen_files], more


def _continued(run: Path) -> Iterator[str]:
    """Yield the path of the run that this one continues, whose keyframes its agent reads."""
    with suppress(ReprokitError):
        continued = rundir.RunDirectory(run).run.continues
        if continued is not None:
            yield continued.path


def _removed_files(run: Path, files: list[str], real_directory: str) -> Iterator[DataFile]:
    """Yield files that the run read and that are gone, unless the run made them or they were temporary."""
    missing = {path for path in files if not os.path.lexists(path)}
    for path in missing - state_files.written(run, missing):
        is_below = path.startswith(f"{real_directory}/")
        if is_below or not path.startswith(names.TEMPORARY):
            yield DataFile(
                os.path.relpath(path, real_directory) if is_below else path, 0, "", "removed before the run ended"
            )


def changes(recorded: Any, directory: Path, since: float) -> list[str]:
    """Return what differs from a recording's data before a replay; only files modified since then are read."""
    return _limited(_changes(recorded, directory, since))


def _changes(recorded: Any, directory: Path, since: float) -> Iterator[str]:
    real_directory, deadline = os.path.realpath(directory), time.monotonic() + PATIENCE

    def has_no_time() -> bool:
        return time.monotonic() > deadline

    for entry in islice(_entries(recorded), MAX_FILES):
        if entry.files or not entry.digest.startswith(("sha256:", "sampled-sha256:")) or has_no_time():
            continue
        path = os.path.join(real_directory, entry.path)
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            yield f"{printable(entry.path, LONGEST)}: it is not there any more"
            continue
        if status.st_size == entry.size:
            if max(status.st_mtime, status.st_ctime) < since:
                continue
            current = _data_file(path, real_directory, has_no_time, DECLARED_WHOLE if entry.declared else WHOLE)
            if current is None or current.digest in ("", entry.digest):
                continue
        yield f"{printable(entry.path, LONGEST)}: its contents differ"


def changes_between(recorded: Any, now: Any) -> list[str]:
    """Return the data files whose digests are known in both runs and differ."""
    return _limited(_changes_between(recorded, now))


def _changes_between(recorded: Any, current: Any) -> Iterator[str]:
    current_by_path = {entry.path: entry for entry in _entries(current)}
    for entry in _entries(recorded):
        current_entry = current_by_path.get(entry.path)
        if current_entry and entry.digest and current_entry.digest and entry.digest != current_entry.digest:
            is_object = entry.digest.startswith("etag:")
            change = "it was overwritten since (another ETag)" if is_object else "its contents differ"
            yield f"{printable(entry.path, LONGEST)}: {change}"


def _limited(changes: Iterable[str]) -> list[str]:
    lines = list(changes)
    left_out = len(lines) - MAX_TOLD
    return [*lines[:MAX_TOLD], f"data: {left_out} more changes"] if left_out > 0 else lines


def _entries(entries: Any) -> Iterator[DataFile]:
    for entry in entries if isinstance(entries, list) else ():
        with suppress(msgspec.ValidationError):
            yield msgspec.convert(entry, DataFile)


# Process, pipe number, MiB index, size in bytes, digest, pipe name; of lines for the same MiB the last one counts.
PIPE_LINE = re.compile(rb"(\S+) (\d{1,2}) (\d{1,15}) (\d{1,7}) ([0-9a-f]{16}) (.+)")
MAX_PIECES = 65_536  # MiBs of a pipe that are compared one by one


def pipes(run: Path, directory: str) -> list[dict[str, Any]]:
    """Return entries for the pipes that the run read from and that other programs wrote to."""
    readers: dict[tuple[bytes, bytes], dict[tuple[int, int], tuple[int, str]]] = {}
    for line in names.lines_of(run / rundir.PIPES):
        if match := PIPE_LINE.fullmatch(line):
            process, pipe, index, size, digest, name = match.groups()
            readers.setdefault((name, process), {})[int(pipe), int(index)] = int(size), digest.decode()
    counts = Counter(name for name, _ in readers)
    entries = []
    for (name, process), pieces in sorted(readers.items()):
        path = names.unescaped(name)
        path = os.path.relpath(path, directory) if path.startswith(directory + "/") else path
        path = path if counts[name] == 1 else f"{path} read by {os.fsdecode(process)}"
        entries.append(msgspec.to_builtins(_pipe_entry(path, [pieces[place] for place in sorted(pieces)])))
    return entries


def _pipe_entry(path: str, pieces: list[tuple[int, str]]) -> DataFile:
    text = "".join(f"{size} {digest}\n" for size, digest in pieces)
    digest = f"pipe-sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    return DataFile(path, sum(size for size, _ in pieces), digest, pieces=[piece for _, piece in pieces[:MAX_PIECES]])


def paths_written(run: Path) -> set[str]:
    """Return the files that the run itself wrote or moved into place: they are not its input data."""
    written = names.written(run)
    return set(names.there(written, names.Resolver())) - names.unchanged(run, written)


def _is_data(path: str, real_directory: str) -> bool:
    name = os.path.basename(path)
    is_code = name.endswith((".py", ".pyc", ".so")) or ".so." in name
    is_system = path.startswith(_SYSTEM) and not path.startswith(names.SHARED_MEMORY)
    return not is_code and not is_system and _NOISE.isdisjoint(path.removeprefix(f"{real_directory}/").split("/"))


def _data_file(path: str, real_directory: str, stop: Stop, whole_limit: int) -> DataFile | None:
    """Return the entry for one file; None if it is missing or no regular file."""
    name = os.path.relpath(path, real_directory) if path.startswith(real_directory + "/") else path
    try:
        with open(path, "rb", opener=rundir.open_following) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return None
            try:
                return DataFile(name, status.st_size, _digest(file, status.st_size, whole_limit, stop))
            except OutOfTime:
                return DataFile(name, status.st_size, "", "not read: there was no time")
    except FileNotFoundError:
        return None
    except OSError as error:
        return DataFile(name, 0, "", f"not readable: {error.strerror}")


def _digest(file: IO[bytes], size: int, whole_limit: int, stop: Stop) -> str:
    if size > whole_limit:
        return _sampled_digest(file, size, stop)
    digest = hashlib.sha256()
    while True:
        if stop():
            raise OutOfTime
        block = file.read(BLOCK)
        if not block:
            return f"sha256:{digest.hexdigest()}"
        digest.update(block)


def _sampled_digest(file: IO[bytes], size: int, stop: Stop) -> str:
    digest = hashlib.sha256(f"reprokit-sampled-1\0{size}\0".encode())
    for number in range(SAMPLES):
        if stop():
            raise OutOfTime
        file.seek(number * (size - SAMPLE) // (SAMPLES - 1))
        digest.update(file.read(SAMPLE))
    return f"sampled-sha256:{digest.hexdigest()}"


def _grouped_by_directory(entries: list[DataFile], incomplete: bool) -> list[DataFile]:
    """Return the entries; a directory with many files becomes one entry, as a list of a whole dataset helps nobody."""
    by_directory: dict[str, list[DataFile]] = {}
    for entry in entries:
        by_directory.setdefault(os.path.dirname(entry.path), []).append(entry)
    grouped = []
    for directory, files in by_directory.items():
        grouped += files if len(files) <= MANY else [_directory_entry(directory, files, incomplete)]
    return sorted(grouped, key=lambda entry: entry.path)


def _directory_entry(directory: str, files: list[DataFile], incomplete: bool) -> DataFile:
    """Return one entry for many files, without a digest if one is missing: another run may lack another file."""
    size = sum(file.size for file in files)
    name = f"{directory}/*" if directory else "*"
    if incomplete or any(not file.digest for file in files):
        note = next((file.note for file in files if not file.digest), f"not read: more than {MAX_FILES} files")
        return DataFile(name, size, "", note, len(files))
    lines = "".join(f"{os.path.basename(file.path)}\0{file.digest}\n" for file in files)
    digest = hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()
    return DataFile(name, size, f"sha256:{digest}", "", len(files))
