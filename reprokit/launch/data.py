"""Digests of what a run read: of the files and directories named by --data, and of files that it was seen to open.

A file up to a size is read whole, of a larger one samples; which of it does not depend on the time there is. What
there was no time for has its size only, and says so.
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

from reprokit import names, rundir, state_files
from reprokit.printable import printable

WHOLE = 64 << 20  # bytes of a file that was seen to be read
DECLARED_WHOLE = 1 << 30  # bytes of one that was named
SAMPLES, SAMPLE = 64, 64 << 10  # of larger files: so many blocks of so many bytes, the first and the last among them
MANY = 100  # files of one directory, from which on they are one entry
MAX_FILES = 10_000  # that are looked at
MAX_NOTED = 12288  # MOST_READ of native/written.c: a process that read more did not note them all
MAX_DEPTH = 32  # directories within a declared one
MAX_TOLD = 20  # changes that are told one by one
LONGEST = 200  # characters of a name, which may come from somebody else's file
PATIENCE = 2.0  # seconds that the start of a replay and the end of a run wait for digests
BLOCK = 1 << 20

_SYSTEM = ("/dev/", "/etc/", "/proc/", "/sys/", *names.SYSTEM)
_NOISE = frozenset(
    {".config", ".git", ".matplotlib", ".nv", ".reprokit", ".triton", "__pycache__", "dist-packages", "fontconfig",
     "pyvenv.cfg", "site-packages"}
)  # fmt: skip


class DataFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file of which the run's results are made, or many of one directory."""

    path: str  # relative to the working directory where it lies below it
    size: int
    digest: str  # "sha256:...", "sampled-sha256:...", of objects "etag:...", or "" where there was no time
    note: str = ""
    files: int = 0  # of an entry for a directory
    version: str = ""  # of an object, where its store keeps versions
    pieces: list[str] = []  # of a pipe: digests of its MiBs
    declared: bool = False


Stop = Callable[[], bool]  # whether the time for reading is over


class OutOfTime(Exception):
    """There is no time to read a file to its end."""


def declared(paths: Iterable[str], directory: Path, stop: Stop) -> list[dict[str, Any]]:
    """Return the named files, and what the named directories hold."""
    here, found = os.path.realpath(directory), list[DataFile]()
    for path in paths:
        place = os.path.join(directory, path)
        files = sorted(_walk(place)) if os.path.isdir(place) else [place]
        entries = [_described(file, here, stop, DECLARED_WHOLE) for file in files[:MAX_FILES]]
        kept = [entry for entry in entries if entry is not None]
        whole = _gathered(kept, len(files) > MAX_FILES)
        found += [msgspec.structs.replace(entry, declared=True) for entry in whole]
    return [msgspec.to_builtins(entry) for entry in found]


def _walk(place: str, depth: int = 0) -> Iterator[str]:
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if depth < MAX_DEPTH and entry.name not in _NOISE:
                    yield from _walk(entry.path, depth + 1)
            elif entry.is_file():
                yield entry.path


def note_given(run: Path) -> None:
    """Note the files that this process hands on open to be read, as its standard input: nobody opens them later."""
    lines = b""
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # it was closed meanwhile
            is_read = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
            if is_read and os.get_inheritable(fd) and stat.S_ISREG(os.fstat(fd).st_mode):
                name = os.fsencode(os.readlink(f"/proc/self/fd/{fd}"))
                lines += name.replace(b"\\", b"\\\\").replace(b"\n", b"\\n") + b"\\@0\n"  # before all else
    if lines:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(run / rundir.READ, "ab", opener=lambda path, _: os.open(path, flags, 0o600)) as file:
            file.write(lines)


def with_seen(
    run: Path, named: list[dict[str, Any]], written: set[str], directory: Path, stop: Stop
) -> tuple[list[dict[str, Any]], int]:
    """Return the named files, with those that the run was seen to read and did not write; how many more there were."""
    here = os.path.realpath(directory)
    known = {os.path.normpath(os.path.join(here, entry["path"].removesuffix("/*"))) for entry in named}
    own = os.path.realpath(run) + "/"
    paths = (path for path in names.read(run) - written if not path.startswith(own))
    files = sorted(path for path in paths if _is_data(path, here) and known.isdisjoint((path, os.path.dirname(path))))
    entries = [_described(path, here, stop, WHOLE) for path in files[:MAX_FILES]]
    entries += _removed(run, files[:MAX_FILES], here)
    more = max(0, len(files) - MAX_FILES)
    incomplete = more > 0 or len(names.read_lines(run)) >= MAX_NOTED
    found = _gathered([entry for entry in entries if entry is not None], incomplete)
    return named + [msgspec.to_builtins(entry) for entry in found], more


def _removed(run: Path, files: list[str], here: str) -> Iterator[DataFile]:
    """Yield what is gone and was not made by the run itself, as far as that was seen: not so of temporary names."""
    gone = {path for path in files if not os.path.lexists(path)}
    for path in gone - state_files.written(run, gone):
        is_below = path.startswith(f"{here}/")
        if is_below or not path.startswith(names.TEMPORARY):
            yield DataFile(os.path.relpath(path, here) if is_below else path, 0, "", "removed before the run ended")


def changes(recorded: Any, directory: Path, since: float) -> list[str]:
    """Return what of a recording's data is different before a replay; only what was touched since then is read."""
    return _first(_changes(recorded, directory, since))


def _changes(recorded: Any, directory: Path, since: float) -> Iterator[str]:
    here, deadline = os.path.realpath(directory), time.monotonic() + PATIENCE

    def has_no_time() -> bool:
        return time.monotonic() > deadline

    for entry in islice(_entries(recorded), MAX_FILES):
        if entry.files or not entry.digest.startswith(("sha256:", "sampled-sha256:")) or has_no_time():
            continue
        path = os.path.join(here, entry.path)
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            yield f"{printable(entry.path, LONGEST)}: it is not there any more"
            continue
        if status.st_size == entry.size:
            if max(status.st_mtime, status.st_ctime) < since:
                continue
            now = _described(path, here, has_no_time, DECLARED_WHOLE if entry.declared else WHOLE)
            if now is None or now.digest in ("", entry.digest):
                continue
        yield f"{printable(entry.path, LONGEST)}: its contents differ"


def changes_between(recorded: Any, now: Any) -> list[str]:
    """Return the data whose digest was known both times and is another one."""
    return _first(_changes_between(recorded, now))


def _changes_between(recorded: Any, now: Any) -> Iterator[str]:
    known = {entry.path: entry for entry in _entries(now)}
    for entry in _entries(recorded):
        other = known.get(entry.path)
        if other and entry.digest and other.digest and entry.digest != other.digest:
            is_object = entry.digest.startswith("etag:")
            what = "it was overwritten since (another ETag)" if is_object else "its contents differ"
            yield f"{printable(entry.path, LONGEST)}: {what}"


def _first(told: Iterable[str]) -> list[str]:
    lines = list(told)
    more = len(lines) - MAX_TOLD
    return [*lines[:MAX_TOLD], f"data: {more} more changes"] if more > 0 else lines


def _entries(listed: Any) -> Iterator[DataFile]:
    for entry in listed if isinstance(listed, list) else ():
        with suppress(msgspec.ValidationError):
            yield msgspec.convert(entry, DataFile)


# Process, its pipe, which MiB, its bytes, their digest, the pipe's name; of lines of the same MiB the last one counts.
PIPE_LINE = re.compile(rb"(\S+) (\d{1,2}) (\d{1,15}) (\d{1,7}) ([0-9a-f]{16}) (.+)")
MAX_PIECES = 65_536  # of a pipe that are compared one by one


def pipes(run: Path, directory: str) -> list[dict[str, Any]]:
    """Return what was read from pipes that came from outside."""
    readers: dict[tuple[bytes, bytes], dict[tuple[int, int], tuple[int, str]]] = {}
    for line in names.lines_of(run / rundir.PIPES):
        if match := PIPE_LINE.fullmatch(line):
            process, pipe, index, size, digest, name = match.groups()
            readers.setdefault((name, process), {})[int(pipe), int(index)] = int(size), digest.decode()
    counts = Counter(name for name, _ in readers)
    found = []
    for (name, process), pieces in sorted(readers.items()):
        path = names.unescaped(name)
        path = os.path.relpath(path, directory) if path.startswith(directory + "/") else path
        path = path if counts[name] == 1 else f"{path} read by {os.fsdecode(process)}"
        found.append(msgspec.to_builtins(_pipe(path, [pieces[place] for place in sorted(pieces)])))
    return found


def _pipe(path: str, pieces: list[tuple[int, str]]) -> DataFile:
    text = "".join(f"{size} {digest}\n" for size, digest in pieces)
    digest = f"pipe-sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    return DataFile(path, sum(size for size, _ in pieces), digest, pieces=[piece for _, piece in pieces[:MAX_PIECES]])


def paths_written(run: Path) -> set[str]:
    """Return what the run itself wrote or put in place: no data of its."""
    return set(names.there(names.written(run), names.Resolver())) - names.unchanged(run)


def _is_data(path: str, here: str) -> bool:
    name = os.path.basename(path)
    is_code = name.endswith((".py", ".pyc", ".so")) or ".so." in name
    is_system = path.startswith(_SYSTEM) and not path.startswith(names.SHARED_MEMORY)
    return not is_code and not is_system and _NOISE.isdisjoint(path.removeprefix(f"{here}/").split("/"))


def _described(path: str, here: str, stop: Stop, whole: int) -> DataFile | None:
    """One file; None if it is gone, or no regular one."""
    name = os.path.relpath(path, here) if path.startswith(here + "/") else path
    try:
        with open(path, "rb", opener=rundir.open_following) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return None
            try:
                return DataFile(name, status.st_size, _digest(file, status.st_size, whole, stop))
            except OutOfTime:
                return DataFile(name, status.st_size, "", "not read: there was no time")
    except FileNotFoundError:
        return None
    except OSError as error:
        return DataFile(name, 0, "", f"not readable: {error.strerror}")


def _digest(file: IO[bytes], size: int, whole: int, stop: Stop) -> str:
    if size > whole:
        return _sampled(file, size, stop)
    digest = hashlib.sha256()
    while True:
        if stop():
            raise OutOfTime
        block = file.read(BLOCK)
        if not block:
            return f"sha256:{digest.hexdigest()}"
        digest.update(block)


def _sampled(file: IO[bytes], size: int, stop: Stop) -> str:
    digest = hashlib.sha256(f"reprokit-sampled-1\0{size}\0".encode())
    for number in range(SAMPLES):
        if stop():
            raise OutOfTime
        file.seek(number * (size - SAMPLE) // (SAMPLES - 1))
        digest.update(file.read(SAMPLE))
    return f"sampled-sha256:{digest.hexdigest()}"


def _gathered(entries: list[DataFile], incomplete: bool) -> list[DataFile]:
    """The entries, those of directories with many files as one: a list of a whole dataset tells nobody anything."""
    by_directory: dict[str, list[DataFile]] = {}
    for entry in entries:
        by_directory.setdefault(os.path.dirname(entry.path), []).append(entry)
    found = []
    for directory, files in by_directory.items():
        found += files if len(files) <= MANY else [_many(directory, files, incomplete)]
    return sorted(found, key=lambda entry: entry.path)


def _many(directory: str, files: list[DataFile], incomplete: bool) -> DataFile:
    """One entry; without a digest where that of a file is missing, as those of another run might be others."""
    size = sum(file.size for file in files)
    name = f"{directory}/*" if directory else "*"
    if incomplete or any(not file.digest for file in files):
        note = next((file.note for file in files if not file.digest), f"not read: more than {MAX_FILES} files")
        return DataFile(name, size, "", note, len(files))
    lines = "".join(f"{os.path.basename(file.path)}\0{file.digest}\n" for file in files)
    digest = hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()
    return DataFile(name, size, f"sha256:{digest}", "", len(files))
