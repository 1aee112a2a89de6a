"""Finds entropy sources that no call shows, in the files of the modules that a run loaded.

They are RDRAND and RDSEED in machine code, and the seeds of programs in Go.
"""

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

from reprokit import entropy
from reprokit.core.errors import RunError
from reprokit.core.printable import listed
from reprokit.model.states import Uncovered
from reprokit.run import elf
from reprokit.run_files import rundir

MAX_LIST = 16 << 20  # bytes read of modules.paths: absolute paths, and keywords of the shim (WORDS)
MAX_MODULES = 20_000
MAX_CODE = 4 << 30  # bytes scanned of one module
BLOCK = 8 << 20
MAX_CACHE = 16 << 20  # bytes
MAX_NAMED = 6  # programs in one line
WORDS: dict[bytes, Uncovered] = {
    b"vdso": Uncovered(
        source="vdso",
        text="getrandom of the vDSO could not be made unusable: what a program takes from it past libc is real",
    ),
    b"no-shim": Uncovered(
        source="program",
        text="a program ran without the shim (in another root, with an older glibc, or as it gained rights): the "
        "supervisor answered it, but which files it wrote and read is not known",
    ),
    b"cpuid": Uncovered(
        source="cpuid",
        option="--hide-rdrand",
        text="--hide-rdrand: this processor or kernel cannot make CPUID fault; RDRAND and RDSEED were not hidden",
    ),
}
# The shim answers std::random_device; cryptographic libraries keep their real entropy (native/recorder/site.c).
COVERED = ("libstdc++.so",)
# Native code that may seed itself from the clock: known libraries by file name, and the training's own code.
# Other libraries are ignored, as many read the clock only for their logs.
CLOCK = b"clock "
# A Go program that the supervisor has seen: its release, where that is known, and its path.
GO = re.compile(rb"go(\d+\.\d+[\d.]*)? (/.*)", re.DOTALL)
SEEDED_BY_CLOCK = ("libR.so", "libperl.so", "gawk", "mawk", "perl")  # of interpreters, beside the training's own code
POLARS = ("_polars_runtime", "polars.abi3")
CALLED_BY_SCRIPTS = ("libffi", "_cffi_backend")  # ctypes, cffi
ELSEWHERE = "what it starts on other hosts is not recorded"
QUEUED = "a job that begins after this run is no part of it; record inside of the job"
REMOTE = {  # programs that have others started, and what is not recorded of these
    **dict.fromkeys(("ssh", "rsh", "qrsh", "blaunch"), ELSEWHERE),
    "srun": "what it starts on other hosts, or without this environment (--export), is not recorded",
    **dict.fromkeys(("sbatch", "qsub", "bsub"), QUEUED),
}
UNSUPERVISED = b"unsupervised"  # written by the shim of a process that the supervisor does not reach
CRYPTOGRAPHIC = (
    "libcrypto", "libssl", "libgnutls", "libgcrypt", "libsodium", "libnettle", "libhogweed", "libnss3", "libsoftokn3",
    "libfreebl", "libmbedcrypto", "libmbedtls", "libwolfssl", "libbotan", "libtomcrypt", "libk5crypto", "libs2n",
    "libaws-c-cal", "libbearssl", "_ssl.", "_hashlib.", "cryptography/hazmat/bindings/_rust.", "_openssl.",
    "_sodium.", "_bcrypt.", "cygrpc.", "_awscrt.",
)  # fmt: skip
INSTALLED = re.compile("/(?:site|dist)-packages/|/lib(?:64)?/|/libpython|/python[0-9.]*$")
_ESCAPED = re.compile(rb"\\([0-7]{3})")  # in /proc/PID/maps
REPEATS = (1, 22)  # the first release whose seeds repeat
UNKNOWN = "?"  # release of a program that is one of Go's, and does not say more
NAMED = 3  # programs in a sentence
_SECTION = b".go.buildinfo"
_MAGIC = b"\xff Go buildinf:"
_AREA = 64 << 10  # bytes of the data that have it, as Go's own debug/buildinfo looks
_LONGEST = 256  # bytes of a release's name
_IN_PLACE = 2  # flag: the texts follow (Go 1.18 and later), instead of addresses of them
_RELEASE = re.compile(rb"\bgo(\d{1,3}\.\d{1,3}(?:\.\d{1,3})?)")


class ModuleFindings(msgspec.Struct):
    """Findings about a run's modules and about what the shim could not do, and whether the search was complete."""

    uncovered: list[Uncovered] = msgspec.field(default_factory=list)
    refused: list[Uncovered] = msgspec.field(default_factory=list)
    noted: list[Uncovered] = msgspec.field(default_factory=list)  # reported when `record` ends
    interrupted: bool = False


class SearchInterrupted(Exception):
    """Raised when the user interrupts the search."""


class CachedModule(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What was found in a file, valid as long as the file is unchanged."""

    size: int
    modified: int  # nanoseconds
    inode: int
    names: list[str]  # of instructions
    go: str | None = None  # release of Go that built it, else empty; None: an older reprokit did not look

    def matches(self, status: os.stat_result) -> bool:
        """Return whether the file is unchanged since it was scanned, for all that is looked for today."""
        is_same = (self.size, self.modified, self.inode) == (status.st_size, status.st_mtime_ns, status.st_ino)
        return is_same and self.go is not None


NOTHING = CachedModule(0, 0, 0, [], "")


def collect(
    run: Path,
    code_directory: Path,
    include_crypto: bool,
    interrupted: Callable[[], bool],
    *,
    is_supervised: bool = False,
    calendar: bool = False,
    may_use: Callable[[str], bool] = lambda _package: True,
) -> ModuleFindings:
    """Scan every module that a process of the run loaded; `code_directory` holds the training's own code.

    With a calendar only threads that Python does not know are among the readers of the clock. `may_use` returns
    whether the training's code may use a package, which others import as soon as it is installed.
    """
    lines = _lines(run)
    refused = [uncovered for keyword, uncovered in WORDS.items() if keyword in lines]
    findings = ModuleFindings(list(refused), refused)
    paths = sorted({*_module_files(lines), *_programs(run)})
    findings.noted.extend(_clock_readers(lines, code_directory, calendar, may_use))
    findings.noted.extend(() if run.parent.name == rundir.HOSTS else _remote_launchers(paths))
    if is_supervised and UNSUPERVISED in lines:
        text = (
            "processes of this run were started by a daemon, such as Slurm's, past the supervisor:"
            " static and Go programs in them are not recorded (docs/clusters.md)"
        )
        findings.noted.append(Uncovered(source="program", text=text))
    findings.uncovered.extend(findings.noted)
    ignored_libraries = COVERED if include_crypto else COVERED + CRYPTOGRAPHIC
    cache = _read_cache()
    cache_before = dict(cache)
    releases = _go_releases(lines)
    for path in paths:
        try:
            module = _scanned(path, cache, interrupted)
        except SearchInterrupted:
            findings.interrupted = True
            break
        if module.go:
            releases[path] = module.go
        if module.names and not _matches_library(path, ignored_libraries):
            findings.uncovered.append(_uncovered(path, module.names))
    if ticks := uncovered(releases):
        findings.noted.append(ticks)
        findings.uncovered.append(ticks)
    if cache != cache_before:
        _write_cache(cache)
    return findings


def _programs(run: Path) -> set[str]:
    """Return the programs that left entropy files: Go's list no modules as they end, also with the shim."""
    with suppress(RunError):
        return {program for program in entropy.programs(run / rundir.ENTROPY) if program.startswith("/")}
    return set()


def loaded(run: Path) -> list[str]:
    """Return the files of all programs and libraries that processes of the run executed or loaded."""
    return _module_files(_lines(run))


def _lines(run: Path) -> set[bytes]:
    return set(rundir.beginning(run / rundir.MODULES, MAX_LIST).split(b"\n"))


def _go_releases(lines: set[bytes]) -> dict[str, str]:
    """Return the releases of Go that built the programs that the supervisor has seen, by path."""
    matches = filter(None, map(GO.fullmatch, lines))
    return {path: (match[1] or UNKNOWN.encode()).decode() for match in matches for path in _files({match[2]})}


def _module_files(lines: set[bytes]) -> list[str]:
    """Return the file of each module, Go programs included."""
    return _files({match[2] if (match := GO.fullmatch(line)) else line for line in lines})


def _files(lines: set[bytes]) -> list[str]:
    """Return each file once: the loader lists them by links, and the kernel escapes line feeds."""
    unescaped = (
        _ESCAPED.sub(lambda match: bytes([int(match[1], 8) & 255]), line) for line in lines if line[:1] == b"/"
    )
    return sorted({os.path.realpath(os.fsdecode(line)) for line in unescaped if b"\0" not in line})[:MAX_MODULES]


def _remote_launchers(paths: list[str]) -> Iterator[Uncovered]:
    """Yield the programs that start others out of the shim's reach; a part of a multi-host run has its own shim."""
    for path in paths:
        what = REMOTE.get(os.path.basename(path))
        if what is not None:
            text = f"{path} was run: {what} (docs/clusters.md)"
            yield Uncovered(source="program", text=text, module=path)


def _clock_readers(
    lines: set[bytes], code_directory: Path, calendar: bool, may_use: Callable[[str], bool]
) -> Iterator[Uncovered]:
    """Yield the native code that read the clock unrecorded, if it may have seeded itself from it."""
    where, option = (" in threads of its own", "with --clock") if calendar else ("", "without --no-calendar")
    readers = _files({line.removeprefix(CLOCK) for line in lines if line.startswith(CLOCK)})
    programs = [] if calendar else [path for path in readers if _is_other_program(path)]
    if programs:
        names = listed(list(dict.fromkeys(map(os.path.basename, programs))), MAX_NAMED)
        text = f"the clock is read by {names}: what is seeded or named by it does not repeat; record {option}"
        yield Uncovered(source="clock", text=text, module=programs[0])
    for path in (path for path in readers if path not in programs):
        is_own = path.startswith(f"{os.path.realpath(code_directory)}/") and not INSTALLED.search(path)
        is_known = _matches_library(path, CALLED_BY_SCRIPTS) or _matches_library(path, SEEDED_BY_CLOCK)
        if _matches_library(path, POLARS):
            if not may_use("polars"):
                continue
            problem = f"polars seeds hash tables from the clock{where}: the order of groups and unique values may vary"
            text = f"{problem}; record with --clock --patch threads=1"
        elif is_own or is_known:
            problem = f"native code reads the clock{where} ({path}): what it seeds from it does not repeat"
            text = f"{problem}; record {option}"
        else:
            continue
        yield Uncovered(source="clock", text=text, module=path)


def _is_other_program(path: str) -> bool:
    """Return whether a file is neither a library nor an interpreter of Python, by its name."""
    return ".so" not in os.path.basename(path) and not entropy.is_python(path)


def _matches_library(path: str, libraries: tuple[str, ...]) -> bool:
    """Return whether the file name begins with a listed name, or the path contains one that has a slash."""
    name = os.path.basename(path)
    return any(library in path if "/" in library else name.startswith(library) for library in libraries)


def _uncovered(path: str, names: list[str]) -> Uncovered:
    verb = "it gives" if len(names) == 1 else "they give"
    text = f"{' and '.join(names)} in {os.path.basename(path)} ({path}): what {verb} is real in every run"
    return Uncovered(source="instructions", text=text, module=path)


def _scanned(path: str, cache: dict[str, CachedModule], interrupted: Callable[[], bool]) -> CachedModule:
    """Return what a module holds, from the cache if the file is unchanged."""
    with suppress(OSError, ValueError):
        status = os.stat(path)
        entry = cache.get(path)
        if entry is not None and entry.matches(status):
            return entry
        with open(path, "rb", opener=rundir.open_regular) as file:
            status = os.fstat(file.fileno())
            head = elf.header(file) if stat.S_ISREG(status.st_mode) else None
            if head is not None:
                names, go = sorted(_instruction_names(file, head, interrupted)), release(file, head)
                cache[path] = CachedModule(status.st_size, status.st_mtime_ns, status.st_ino, names, go)
                return cache[path]
    return NOTHING


def _instruction_names(file: BinaryIO, head: elf.ElfHeader, interrupted: Callable[[], bool]) -> set[str]:
    """Return the names of the entropy instructions in a file; none for processors that have none."""
    from reprokit.run.machine_code import SCANNERS  # imported late: needed only for modules that are not cached

    scanner = SCANNERS.get(head.machine)
    names: set[str] = set()
    remaining = MAX_CODE
    for start, size in _code_ranges(file, head) if scanner else ():
        for code, begin, end in _blocks(file, start, min(size, remaining)):
            if interrupted():
                raise SearchInterrupted
            names.update(scanner(code, begin, end) if scanner else ())
        remaining -= min(size, remaining)
    return names


def _code_ranges(file: BinaryIO, head: elf.ElfHeader) -> list[tuple[int, int]]:
    """Return offset and size of executable sections; of executable segments if there are no such sections."""
    ranges = [
        (section.offset, section.size)
        for section in elf.sections(file, head)
        if section.flags & 4 and section.kind != 8  # SHF_EXECINSTR, SHT_NOBITS
    ]
    ranges = ranges or [
        (segment.offset, segment.size)
        for segment in elf.segments(file, head)
        if segment.kind == elf.LOADED and segment.flags & 1  # PF_X
    ]
    end = os.fstat(file.fileno()).st_size
    return [(offset, min(size, end - offset)) for offset, size in ranges if offset < end]


def _blocks(file: BinaryIO, start: int, size: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield the code in blocks with some bytes around them, and the block's begin and end in those bytes.

    The file is read, not mapped: if it became shorter meanwhile, SIGBUS would end the launcher.
    """
    from reprokit.run.machine_code import AROUND

    for at in range(start, start + size, BLOCK):
        begin = min(AROUND, at - start)
        length = min(BLOCK, start + size - at)
        code = os.pread(file.fileno(), begin + length + AROUND, at - begin)
        if len(code) <= begin:
            return
        yield code, begin, min(begin + length + 2, len(code))  # an instruction may continue in the next block


def _cache_path() -> Path | None:
    """Return the cache file in the user's cache directory; None if there is none or another user owns it."""
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


def _write_cache(cache: dict[str, CachedModule]) -> None:
    """Write the newest entries of the cache atomically: two runs may end at the same time."""
    path = _cache_path()
    if path is None:
        return
    entries = {path: entry for path, entry in list(cache.items())[-MAX_MODULES:] if path.isprintable()}
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with suppress(OSError):
        try:
            with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(msgspec.json.encode(entries))
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def release(file: BinaryIO, head: elf.ElfHeader) -> str:
    """Return the release of Go that built a program or library: "1.19.8", or UNKNOWN; empty if Go did not."""
    for offset, size in _areas(file, head):
        data = os.pread(file.fileno(), min(size, _AREA), offset)
        at = data.find(_MAGIC)
        if at >= 0:
            match = _RELEASE.search(_release_text(file, head, data[at:]))
            return match[1].decode() if match else UNKNOWN
    return ""


def _areas(file: BinaryIO, head: elf.ElfHeader) -> Iterator[tuple[int, int]]:
    """Yield offset and size of the section with Go's facts; of stripped programs, of what may hold it."""
    section = elf.section_named(file, head, _SECTION)
    if section is not None:
        yield section.offset, section.size
    elif not head.section_count:
        for segment in elf.segments(file, head):
            if segment.kind == elf.LOADED and segment.flags & elf.WRITABLE:
                yield segment.offset, segment.size


def _release_text(file: BinaryIO, head: elf.ElfHeader, facts: bytes) -> bytes:
    with suppress(struct.error, IndexError):
        if facts[15] & _IN_PLACE:
            return facts[32 : 32 + _LONGEST]  # after a length of one or two bytes
        order = ">" if facts[15] & 1 else "<"
        place = struct.Struct(f"{order}QQ" if facts[14] == 8 else f"{order}II")
        (pointer,) = struct.unpack_from(f"{order}{'Q' if facts[14] == 8 else 'I'}", facts, 16)
        text, length = place.unpack(_at_address(file, head, pointer, place.size))
        return _at_address(file, head, text, min(length, _LONGEST))
    return b""


def _at_address(file: BinaryIO, head: elf.ElfHeader, address: int, size: int) -> bytes:
    for segment in elf.segments(file, head):
        start = address - segment.address
        if segment.kind == elf.LOADED and 0 <= start < segment.size:
            return os.pread(file.fileno(), min(size, segment.size - start), segment.offset + start)
    return b""


def repeats(release_built_by: str) -> bool:
    """Return whether the seeds of a program that this release has built repeat."""
    parts = release_built_by.split(".")
    return release_built_by != UNKNOWN and (int(parts[0]), int(parts[1])) >= REPEATS


def uncovered(releases: dict[str, str]) -> Uncovered | None:
    """Return the source of the programs, by path, whose seeds do not repeat; None if there are none."""
    named = [
        f"{path} ({'Go, of no known release' if built_by == UNKNOWN else f'Go {built_by}'})"
        for path, built_by in sorted(releases.items())
        if built_by and not repeats(built_by)
    ]
    if not named:
        return None
    text = (
        f"{listed(named, NAMED)}: before 1.22, Go's runtime seeds the order of maps, select, hash/maphash and "
        "math/rand from the processor's ticks, which do not repeat; build with Go 1.22 or newer"
    )
    return Uncovered(source="ticks", text=text, module=named[0].rpartition(" (")[0])
