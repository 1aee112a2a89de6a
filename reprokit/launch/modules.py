"""Sources of entropy in the modules that a run loaded which no call shows: RDRAND and RDSEED in their code."""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from reprokit import rundir
from reprokit.model.states import Uncovered

MAX_LIST = 16 << 20  # bytes of modules.paths that are read: absolute paths, and words of the shim's
MAX_MODULES = 20_000
MAX_CODE = 4 << 30  # bytes of one module that are looked through
MAX_HEADERS = 4096  # sections or segments of one module
BLOCK = 8 << 20
MAX_CACHE = 16 << 20  # bytes

WORDS: dict[bytes, Uncovered] = {
    b"vdso": Uncovered(
        source="vdso",
        text="getrandom of the vDSO could not be made unusable: what a program takes from it past libc is real",
    ),
    b"no-shim": Uncovered(
        source="program",
        text="a program ran without the shim (in another root, or as it gained rights): the supervisor answered it, "
        "but which files it wrote and read is not known",
    ),
    b"cpuid": Uncovered(
        source="cpuid",
        option="--hide-rdrand",
        text="--hide-rdrand: this processor or kernel cannot make CPUID fault; RDRAND and RDSEED were not hidden",
    ),
}
# std::random_device is answered by the shim; cryptographic libraries are left alone (native/site.c).
COVERED = ("libstdc++.so",)
# Native code that reads the clock to seed itself: of libraries, by how the module's file is named. Of others it is only
# known where the code is the training's own, as many libraries read it for their logs.
CLOCK = b"clock "
POLARS = ("_polars_runtime", "polars.abi3")
CALLED_BY_SCRIPTS = ("libffi", "_cffi_backend")  # ctypes, cffi
REMOTE = ("ssh", "rsh", "srun", "qrsh", "blaunch")  # start programs on other hosts
CRYPTOGRAPHIC = (
    "libcrypto", "libssl", "libgnutls", "libgcrypt", "libsodium", "libnettle", "libhogweed", "libnss3", "libsoftokn3",
    "libfreebl", "libmbedcrypto", "libmbedtls", "libwolfssl", "libbotan", "libtomcrypt", "libk5crypto", "libs2n",
    "libaws-c-cal", "libbearssl", "_ssl.", "_hashlib.", "cryptography/hazmat/bindings/_rust.", "_openssl.",
    "_sodium.", "_bcrypt.", "cygrpc.", "_awscrt.",
)  # fmt: skip

INSTALLED = re.compile("/(?:site|dist)-packages/|/lib(?:64)?/|/libpython|/python[0-9.]*$")
_ESCAPED = re.compile(rb"\\([0-7]{3})")  # in /proc/PID/maps
_ELF = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")


class ModuleFindings(msgspec.Struct):
    """What the modules of a run hold and what the shim could not do, a line each; whether the search was cut short."""

    uncovered: list[Uncovered] = msgspec.field(default_factory=list)
    refused: list[Uncovered] = msgspec.field(default_factory=list)
    noted: list[Uncovered] = msgspec.field(default_factory=list)  # what `record` says at its end
    interrupted: bool = False


class SearchInterrupted(Exception):
    """The user does not want to wait."""


class CachedModule(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What was found in a file, as long as it is the same file."""

    size: int
    modified: int  # nanoseconds
    inode: int
    names: list[str]

    def is_of(self, status: os.stat_result) -> bool:
        """Return whether the file is still the one that was looked through."""
        return (self.size, self.modified, self.inode) == (status.st_size, status.st_mtime_ns, status.st_ino)


def collect(run: Path, own: Path, include_crypto: bool, interrupted: Callable[[], bool]) -> ModuleFindings:
    """Look through every module that a process of the run had loaded; own: the directory of the training's code."""
    lines = set(rundir.beginning(run / rundir.MODULES, MAX_LIST).split(b"\n"))
    refused = [words for word, words in WORDS.items() if word in lines]
    found = ModuleFindings(list(refused), refused)
    paths = _paths(lines)
    found.noted.extend(_seeded_by_clock(lines, own))
    found.noted.extend(() if run.parent.name == rundir.HOSTS else _on_other_hosts(paths))
    found.uncovered.extend(found.noted)
    left_out = COVERED if include_crypto else COVERED + CRYPTOGRAPHIC
    known = _read_cache()
    before = dict(known)
    for path in paths:
        try:
            names = _names(path, known, interrupted)
        except SearchInterrupted:
            found.interrupted = True
            break
        if names and not _is_one_of(path, left_out):
            found.uncovered.append(_uncovered(path, names))
    if known != before:
        _write_cache(known)
    return found


def loaded(run: Path) -> list[str]:
    """Return the files of all programs and libraries that processes of the run executed or loaded."""
    return _paths(set(rundir.beginning(run / rundir.MODULES, MAX_LIST).split(b"\n")))


def _paths(lines: set[bytes]) -> list[str]:
    """Return the modules' files, each once: the loader knows them by links, and the kernel escapes line feeds."""
    listed = (_ESCAPED.sub(lambda found: bytes([int(found[1], 8) & 255]), line) for line in lines if line[:1] == b"/")
    return sorted({os.path.realpath(os.fsdecode(line)) for line in listed if b"\0" not in line})[:MAX_MODULES]


def _on_other_hosts(paths: list[str]) -> Iterator[Uncovered]:
    """Yield the programs that start others where no shim reaches; in a part of several hosts each has its own."""
    for path in paths:
        if os.path.basename(path) in REMOTE:
            text = f"{path} was run: what it starts on other hosts is not recorded (docs/clusters.md)"
            yield Uncovered(source="program", text=text, module=path)


def _seeded_by_clock(lines: set[bytes], own: Path) -> Iterator[Uncovered]:
    """Yield the native code that read the clock, where that may be for a seed."""
    readers = _paths({line.removeprefix(CLOCK) for line in lines if line.startswith(CLOCK)})
    for path in readers:
        is_own = path.startswith(f"{os.path.realpath(own)}/") and not INSTALLED.search(path)
        if _is_one_of(path, POLARS):
            what = "polars seeds its hash tables from the clock: the order of groups and unique values may not repeat"
            text = f"{what}; record with --clock --patch threads=1"
        elif is_own or _is_one_of(path, CALLED_BY_SCRIPTS):
            what = f"native code reads the clock ({path}): what it seeds from it does not repeat"
            text = f"{what}; record with --clock"
        else:
            continue
        yield Uncovered(source="clock", text=text, module=path)


def _is_one_of(path: str, libraries: tuple[str, ...]) -> bool:
    """By how the file's name begins; by a part of its path where that is listed."""
    name = os.path.basename(path)
    return any(library in path if "/" in library else name.startswith(library) for library in libraries)


def _uncovered(path: str, names: list[str]) -> Uncovered:
    verb = "it gives" if len(names) == 1 else "they give"
    text = f"{' and '.join(names)} in {os.path.basename(path)} ({path}): what {verb} is real in every run"
    return Uncovered(source="instructions", text=text, module=path)


def _names(path: str, known: dict[str, CachedModule], interrupted: Callable[[], bool]) -> list[str]:
    """Names of the instructions in a module, out of the cache where it knows this file."""
    with suppress(OSError, ValueError, struct.error):
        status = os.stat(path)
        entry = known.get(path)
        if entry is not None and entry.is_of(status):
            return entry.names
        with open(path, "rb", opener=rundir.open_regular) as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode):
                names = sorted(_scan(file, interrupted))
                known[path] = CachedModule(status.st_size, status.st_mtime_ns, status.st_ino, names)
                return names
    return []


def _scan(file: BinaryIO, interrupted: Callable[[], bool]) -> set[str]:
    """Names of the instructions in an ELF file of 64 bits; of any other file there are none."""
    from reprokit.launch.machine_code import SCANNERS  # for new modules only: those of the cache are looked up

    head = file.read(_ELF.size)
    if len(head) < _ELF.size or head[:6] != b"\x7fELF\x02\x01":
        return set()
    scanner = SCANNERS.get(_ELF.unpack(head)[2])
    names: set[str] = set()
    left = MAX_CODE
    for start, size in _code(file, _ELF.unpack(head)) if scanner else ():
        for code, begin, end in _blocks(file, start, min(size, left)):
            if interrupted():
                raise SearchInterrupted
            names.update(scanner(code, begin, end) if scanner else ())
        left -= min(size, left)
    return names


def _code(file: BinaryIO, head: tuple[int, ...]) -> list[tuple[int, int]]:
    """Offset and size of what is code: the sections that say so, else the segments that can be executed."""
    segments, sections, (segment_count, section_count) = head[5], head[6], (head[10], head[12])
    found = [
        (offset, size)
        for _, kind, flags, _, offset, size, *_ in _table(file, sections, section_count, _SECTION)
        if flags & 4 and kind != 8  # SHF_EXECINSTR, SHT_NOBITS
    ]
    found = found or [
        (offset, size)
        for kind, flags, offset, _, _, size, *_ in _table(file, segments, segment_count, _SEGMENT)
        if kind == 1 and flags & 1  # PT_LOAD, PF_X
    ]
    end = os.fstat(file.fileno()).st_size
    return [(offset, min(size, end - offset)) for offset, size in found if offset < end]


def _table(file: BinaryIO, offset: int, count: int, entry: struct.Struct) -> Iterator[tuple[int, ...]]:
    data = os.pread(file.fileno(), min(count, MAX_HEADERS) * entry.size, offset) if 0 < offset < 1 << 62 else b""
    yield from entry.iter_unpack(data[: len(data) // entry.size * entry.size])


def _blocks(file: BinaryIO, start: int, size: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield the code in blocks with what is around them, and where in that the block begins and ends.

    Read and not mapped: a file that becomes shorter meanwhile would end the launcher by SIGBUS.
    """
    from reprokit.launch.machine_code import AROUND

    for at in range(start, start + size, BLOCK):
        begin = min(AROUND, at - start)
        length = min(BLOCK, start + size - at)
        code = os.pread(file.fileno(), begin + length + AROUND, at - begin)
        if len(code) <= begin:
            return
        yield code, begin, min(begin + length + 2, len(code))  # an instruction may go on in the next block


# ---- what was found before ---------------------------------------------------------------------------------------


def _cache_path() -> Path | None:
    """Return a file in the user's cache; None where there is no such place, or it is somebody else's."""
    place = os.environ.get("XDG_CACHE_HOME", "")
    try:
        directory = (Path(place) if os.path.isabs(place) else Path.home() / ".cache") / "reprokit"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return directory / "modules.json" if directory.stat().st_uid == os.geteuid() else None
    except (OSError, RuntimeError):
        return None


def _read_cache() -> dict[str, CachedModule]:
    path = _cache_path()
    try:
        return msgspec.json.decode(rundir.beginning(path, MAX_CACHE), type=dict[str, CachedModule]) if path else {}
    except (ValueError, RecursionError):
        return {}


def _write_cache(known: dict[str, CachedModule]) -> None:
    """The newest of what is known, in one go: two runs may end at the same time."""
    path = _cache_path()
    if path is None:
        return
    entries = {path: entry for path, entry in list(known.items())[-MAX_MODULES:] if path.isprintable()}
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with suppress(OSError):
        try:
            with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(msgspec.json.encode(entries))
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
