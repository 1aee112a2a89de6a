"""Reads the names that the shim noted: of files that the run wrote, moved and read."""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path

import msgspec

from reprokit.run_files import rundir

MAX_LIST = 64 << 20  # bytes of written.paths, or of all lists of what was read, that are read
USED = struct.Struct("<Q")  # bytes of a file of lines that are used, with these: native/shim/notes/notes.c
MAX_MOMENT = (1 << 64) - 1  # nanoseconds, or bytes
MAX_BELOW = 1_000_000  # files below one directory that was put in place
ENVIRONMENT = "pyvenv.cfg"  # a virtual environment holds more files than all else, and no results
MAX_DEPTH = 64  # of directories below one that was put in place
ESCAPED = re.compile(rb"\\(.)")  # a backslash and a line feed stand as two characters each, and so does TO
# Names, and when they were noted: by the shim.
LINE = re.compile(rb"((?:[^\\]|\\[^@])*)(?:\\@(\d{1,20}))?")
SHARED_MEMORY = "/dev/shm/"  # where files lie as elsewhere: the shim leaves out what libraries share there by names
# Where the system's programs and libraries are: images have their applications in /usr/src and /usr/local.
SYSTEM = (
    "/bin/", "/lib/", "/lib32/", "/lib64/", "/run/", "/sbin/", "/usr/bin/", "/usr/include/", "/usr/lib/", "/usr/lib32/",
    "/usr/lib64/", "/usr/libexec/", "/usr/local/bin/", "/usr/local/cuda", "/usr/local/lib/", "/usr/local/sbin/",
    "/usr/local/share/", "/usr/sbin/", "/usr/share/",
)  # fmt: skip
TEMPORARY = ("/run/", "/tmp/", "/var/tmp/", SHARED_MEMORY)
TO = b"\0"  # between the two names of a line, when it was read; no name has it

NOISE = frozenset(
    {
        ".cache",
        ".git",
        ".ipynb_checkpoints",
        ".ipython",
        ".jupyter",
        ".keras",
        ".matplotlib",
        ".mypy_cache",
        ".nv",
        ".pytest_cache",
        ".reprokit",
        ".triton",
        "__pycache__",
    }
)  # directories in which programs keep their own things
NOISE_SUFFIXES = (".pyc", ".pyo")
# What compilers and tools keep for themselves: no result of a training, and no state that a training has.
_TOOL_FILES = r""".*/(?:
    __pycache__/[^/]+\.(?:nbc|nbi|pyc|pyo)(?:\.\d+)? | \.keras/keras\.json | torchinductor_[^/]*/.+
    | \.git/(?:[A-Z_]+|config|gc\.log|index|packed-refs)(?:\.lock)?
    | \.git/(?:hooks|info|lfs|logs|modules|objects|refs|worktrees)/.+
    | \.cache/(?:fontconfig|matplotlib|mesa_shader_cache(?:_db)?|nvidia|pip|pre-commit|uv)/.+
    | \.(?:ipynb_checkpoints|ipython|jupyter|matplotlib|mypy_cache|nv/ComputeCache|pytest_cache|triton/cache)/.+
    )"""
# Where libraries keep what they fetched or derived, to be found again by every later run.
_LIBRARY_FILES = r""".*/(?:
    \.keras/(?:datasets|models)
    | \.cache/(?:clip|flashinfer|huggingface|jax|kagglehub|keras|numba|openml|sentence_transformers|tensorflow
        |tfhub_modules|torch|torch_extensions|vllm|whisper)
    )/.+"""
CODE_SUFFIXES = (".py", ".pyc", ".pyo", ".so", ".o", ".a")  # of programs: no data, and no results


def is_tools(path: str) -> bool:
    """Return whether a file is one that compilers and tools keep for themselves."""
    return re.fullmatch(_TOOL_FILES, path, re.VERBOSE | re.DOTALL) is not None  # compiled when it is first needed


def is_libraries(path: str) -> bool:
    """Return whether a file is one that libraries keep for every later run."""
    return re.fullmatch(_LIBRARY_FILES, path, re.VERBOSE | re.DOTALL) is not None


class WrittenNames(msgspec.Struct, frozen=True):
    """The files that a run wrote, by their absolute names at that time."""

    opened: set[str]  # for writing
    placed: set[tuple[str, str]]  # by rename or link: from where (empty: a symbolic link was made), and to where
    is_whole: bool = True


def read(run: Path) -> set[str]:
    """Return what read.paths says."""
    return set(read_at(run))


def read_at(run: Path) -> dict[str, int | None]:
    """Return what was read, and the moment of the first time, as in written_at; None where nobody noted it."""
    moments: dict[str, int | None] = {}
    for name, at in map(_parsed, read_lines(run)):
        if name.startswith(b"/") and TO not in name:
            before = moments.setdefault(os.fsdecode(name), at)
            if before is not None and at is not None:
                moments[os.fsdecode(name)] = min(before, at)
    return moments


def read_lines(run: Path) -> list[bytes]:
    """Return what was read, a line each: in read.paths, and where processes that read much noted it by themselves."""
    data = _data(run / rundir.READ)[0]
    lines, left = data.split(b"\n"), MAX_LIST - len(data)
    with suppress(OSError):
        for name in sorted(os.listdir(run / rundir.READ_BY)):
            data = _data(run / rundir.READ_BY / name)[0][: max(left, 0)]
            lines += _own_lines(data)
            left -= len(data)
    return [line for line in lines if line]


def _own_lines(data: bytes) -> list[bytes]:
    """Return the lines of a mapped file; what stands before a zero byte was torn by a SIGKILL."""
    used = USED.unpack_from(data)[0] if len(data) >= USED.size else 0
    return [line.rpartition(b"\0")[2] for line in data[USED.size : used].split(b"\n")]


def written_at(run: Path) -> dict[str, int]:
    """Return when each name was first opened for writing, or became the name of a file."""
    moments: dict[str, int] = {}
    start = 0
    for line in _data(run / rundir.WRITTEN)[0].split(b"\n"):
        name, at = _parsed(line)
        path = os.fsdecode(name.rpartition(TO)[2])
        if path.startswith("/"):
            moments[path] = min(moments.get(path, MAX_MOMENT), start if at is None else at)
        start += len(line) + 1
    return moments


def written(run: Path) -> WrittenNames:
    """Return what written.paths says."""
    lines, is_whole = _lines(run / rundir.WRITTEN)
    opened, placed = set(), set()
    for line in lines:
        before, is_placed, after = line.partition(TO)
        if not is_placed:
            opened.add(os.fsdecode(line))
        elif after.startswith(b"/"):
            placed.add((os.fsdecode(before), os.fsdecode(after)))
    return WrittenNames(opened, placed, is_whole)


def start_of(run: Path) -> os.stat_result | None:
    """Return the file that the launcher wrote last before the run began: what changed since has a later ctime."""
    for name in (rundir.AGENT_PLAN, rundir.SHIM_PLAN):
        with suppress(OSError):
            return os.stat(run / name)
    return None


def unchanged(run: Path, names: WrittenNames) -> set[str]:
    """Return what the run opened for writing, or meant to rename to, and never changed: databases, mapped arrays."""
    start = start_of(run)
    if start is None or not _notes_mapped_writes(start.st_dev):
        return set()
    return {path for path in (*names.opened, *(after for _, after in names.placed)) if _is_older(path, start)}


def _notes_mapped_writes(device: int) -> bool:
    """Return whether a file system is known to give what is written through a map a new time: one in memory is not."""
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = map(str.split, Path("/proc/self/mountinfo").read_text(errors="replace").splitlines())
    kind = next((fields[fields.index("-") + 1] for fields in mounts if fields[2] == number), "")
    return kind in ("btrfs", "ext2", "ext3", "ext4", "f2fs", "xfs")


def _is_older(path: str, start: os.stat_result) -> bool:
    """Return whether nothing changed a file since; another file system may have another clock."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_dev == start.st_dev and status.st_ctime_ns < start.st_ctime_ns


def _lines(path: Path) -> tuple[set[bytes], bool]:
    """Return the lines of a list without their escapes, and whether these are all."""
    data, is_whole = _data(path)
    lines = {_parsed(line)[0] for line in set(data.split(b"\n")) if TO not in line}
    return {line for line in lines if line.startswith((b"/", TO))}, is_whole


def _parsed(line: bytes) -> tuple[bytes, int | None]:
    """Return a line without its escapes, and the moment that it tells."""
    match = LINE.fullmatch(line)
    name, moment = (line, None) if match is None else match.groups()
    if b"\\" in name:
        name = ESCAPED.sub(_unescaped, name)
    return name, None if moment is None else int(moment)


def lines_of(path: Path) -> list[bytes]:
    """Return the whole lines of a list, as they are written."""
    return _data(path)[0].split(b"\n")[:-1]


def unescaped(name: bytes) -> str:
    """Return a name without its escapes."""
    return os.fsdecode(ESCAPED.sub(_unescaped, name))


def _data(path: Path) -> tuple[bytes, bool]:
    """Return what a list holds, and whether that is all."""
    try:
        with open(path, "rb", opener=rundir.open_regular) as file:
            return file.read(MAX_LIST), not file.read(1)
    except OSError:
        return b"", True


def _unescaped(match: re.Match[bytes]) -> bytes:
    return {b"n": b"\n", b">": TO}.get(match[1], match[1])


class Resolver:
    """Resolves symbolic links in absolute names of many files; each directory is read once."""

    def __init__(self) -> None:
        self._before = cache(lambda directory: os.path.join(os.path.realpath(directory or "/"), ""))

    def entry(self, path: str) -> str:
        """Return the name, but for its last part, which may be a link itself."""
        directory, _, name = path.rpartition("/")
        return self._before(directory) + name

    def file(self, path: str) -> str:
        """Return the name, as os.path.realpath has it."""
        entry = self.entry(path)
        return os.path.realpath(path) if os.path.islink(entry) or entry.endswith(("/", "/.", "/..")) else entry


def there(names: WrittenNames, resolver: Resolver, searched: Callable[[str], bool] = lambda _: True) -> Iterator[str]:
    """All that is there of what the run wrote or put in place: files, symbolic links, and what is below directories.

    A directory is looked into where ``searched`` says so.
    """
    yield from {resolver.file(path) for path in names.opened}
    for path in {resolver.entry(after) for _, after in names.placed}:
        if os.path.isdir(path) and not os.path.islink(path):
            yield from (entry.path for entry in islice(below(path, searched), MAX_BELOW))
        elif os.path.lexists(path):
            yield path


def below(directory: str, searched: Callable[[str], bool], depth: int = MAX_DEPTH) -> Iterator[os.DirEntry[str]]:
    """Yield all but the directories in a directory, and then in those below it, into which ``searched`` lets."""
    if not depth or not searched(directory):
        return
    try:
        with os.scandir(directory) as entries:
            listed = list(entries)
    except OSError:  # gone, or not this user's to read
        return
    directories = [entry.path for entry in listed if entry.is_dir(follow_symlinks=False)]
    yield from (entry for entry in listed if not entry.is_dir(follow_symlinks=False))  # first, as whoever asks may stop
    for path in directories:
        yield from below(path, searched, depth - 1)


def is_environment(directory: str) -> bool:
    """Return whether it is a virtual environment of Python's."""
    return os.path.lexists(os.path.join(directory, ENVIRONMENT))
