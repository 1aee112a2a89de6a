"""What is fuzzed: the reader in Python, and the one in C, which is the shim's replay."""

from __future__ import annotations

import ctypes
import fcntl
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from functools import lru_cache
from pathlib import Path

from reprokit.core import native
from reprokit.entropy.files import FORMAT
from reprokit.entropy.pool import FIRST, NAME, REST, SLOT
from tests.fuzz.profiles import HEAD_CHECK, seal
from tests.native_sources import NATIVE, SHIM_SOURCES

HERE = Path(__file__).parent

Target = Callable[[bytes], None]


def python_reader(directory: Path) -> Target:
    """reprokit.entropy: anything but an answer or an error of reprokit's own is a finding."""
    from reprokit import entropy
    from reprokit.core.errors import ReprokitError
    from reprokit.entropy.files import EntropyEvent

    path = directory / "0000000000000000-0.entropy"

    pool = directory / "pool"
    pool.mkdir()

    def read(data: bytes) -> None:
        if write_pool(pool, data):
            with suppress(ReprokitError):
                for file in entropy.processes(pool):
                    require_bounded(file, len(data))
            return
        path.write_bytes(data)
        with suppress(ReprokitError), closing(entropy.EntropyFile(path)) as file:
            require_bounded(file, len(data))
        with suppress(ReprokitError):
            entropy.gave_up(directory)

    def require_bounded(file: entropy.EntropyFile, size: int) -> None:
        given = 0
        for record in file.records():
            given += len(record.data) if isinstance(record, EntropyEvent) else 0
        if given > size:
            raise AssertionError(f"{given} bytes given of a file of {size}")

    return as_it_is_and_sealed(read)


@lru_cache(maxsize=1)
def pool_parts() -> tuple[bytes, bytes, str]:
    """The first page of a pool, a table that names the first slot for process 0, and what may follow that slot."""
    check = native.checker()
    head = b"RKENTROP" + FORMAT.to_bytes(4, "little") + bytes(HEAD_CHECK - 12)
    own, places = check(b"0", 0), 2 * FIRST
    table = bytearray(places * 16)
    struct.pack_into("<QQ", table, 0, 1, 16)
    struct.pack_into("<QQ", table, 16 * (1 + own % (places - 1)), own, 1)
    return (head + check(head, 0).to_bytes(8, "little")).ljust(SLOT, b"\0"), bytes(table), f"{own:016x}-0{REST}"


def write_pool(directory: Path, data: bytes) -> bool:
    """Write some inputs as the levels of a pool, or as those of a process that has a slot, as its size says."""
    head, table, rest = pool_parts()
    form = len(data) % 8
    if form == 1:
        (directory / NAME).write_bytes(head + data)
    elif form == 5:
        (directory / NAME).write_bytes(head + table + data[:SLOT].ljust(SLOT, b"\0"))
        (directory / rest).write_bytes(data[SLOT:])
    return form in (1, 5)


def c_reader(directory: Path, coverage: bool) -> Target:
    """native/recorder/replay.c: a touch of memory that is not its own is a finding, and so is undefined behavior."""
    library = load(directory, coverage)

    def replay(data: bytes) -> None:
        if write_pool(directory, data):
            library.fuzz_replay_forked()
        else:
            library.fuzz_replay(data, ctypes.c_size_t(len(data)))

    return as_it_is_and_sealed(replay)


def load(directory: Path, coverage: bool) -> ctypes.CDLL:
    """Build reader.c with the shim, and start it in this directory."""
    library = ctypes.CDLL(str(build(coverage)))
    library.fuzz_answers.restype = ctypes.c_size_t
    if library.fuzz_start(str(directory).encode()) != 0:
        sys.exit(f"the shim does not start in {directory}")
    return library


def as_it_is_and_sealed(target: Target) -> Target:
    """Try every input twice: with its checks as they are, and put right, without which few come past the first."""

    def both(data: bytes) -> None:
        target(data)
        target(seal(data))

    return both


def build(coverage: bool) -> Path:
    """Compile it below build/ where a source has changed: once for all processes that ask."""
    directory = NATIVE.parent / "build" / ("fuzzed-with-coverage" if coverage else "fuzzed")
    directory.mkdir(parents=True, exist_ok=True)
    library, sources = directory / "reader.so", [HERE / "reader.c", *SHIM_SOURCES]
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        newest = max(path.stat().st_mtime for path in (*sources, *NATIVE.rglob("*.h"), Path(__file__)))
        if not library.exists() or library.stat().st_mtime < newest:
            compile_reader(sources, library, coverage)
    return library


def compile_reader(sources: list[Path], library: Path, coverage: bool) -> None:
    """The shim and reader.c as one library; gcc counts coverage where libFuzzer is there to look at it."""
    reader, made = library.with_name("reader.o"), library.with_suffix(".made")
    # Undefined behavior is an illegal instruction. The guard pages make all memory unaligned. Room for
    # initial-exec variables is scarce in a process that has loaded other libraries.
    common = [
        "gcc", "-D_GNU_SOURCE", f"-I{NATIVE}", "-O1", "-g", "-fPIC", "-fvisibility=hidden",
        '-Dtls_model(model)=tls_model("global-dynamic")',
        "-fsanitize=undefined", "-fno-sanitize=alignment", "-fsanitize-undefined-trap-on-error",
    ]  # fmt: skip
    counted = ["-fsanitize-coverage=trace-pc,trace-cmp"] if coverage else []
    defined = ["-DRK_COVERAGE"] if coverage else []
    subprocess.run([*common, *defined, "-c", str(sources[0]), "-o", str(reader)], check=True)
    wrapped = ",".join(f"--wrap=rk_{name}" for name in ("map", "map_at", "unmap", "block_signals", "restore_signals"))
    linked = ["-shared", f"-Wl,{wrapped},-z,lazy", "-o", str(made), "-ldl", "-lpthread"]
    subprocess.run([*common, *counted, str(reader), *map(str, sources[1:]), *linked], check=True)
    made.replace(library)
