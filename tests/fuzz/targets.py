"""What is fuzzed: the reader in Python, and the one in C, which is the shim's replay."""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from reprokit import native
from reprokit.entropy.files import FORMAT
from reprokit.entropy.pool import FIRST, NAME, REST, SLOT
from tests.fuzz.profiles import HEAD_CHECK, seal

HERE = Path(__file__).parent
NATIVE = HERE.parent.parent / "native"

Target = Callable[[bytes], None]


def python_reader(directory: Path) -> Target:
    """reprokit.entropy: anything but an answer or an error of reprokit's own is a finding."""
    from reprokit import entropy
    from reprokit.entropy.files import Event
    from reprokit.errors import ReprokitError

    path = directory / "0000000000000000-0.entropy"

    def read_all(size: int) -> None:
        with suppress(ReprokitError):
            given = 0
            for file in entropy.processes(directory):
                for record in file.records():
                    given += len(record.data) if isinstance(record, Event) else 0
            if given > size:
                raise AssertionError(f"{given} bytes given of a file of {size}")
        with suppress(ReprokitError):
            entropy.gave_up(directory)

    def read(data: bytes) -> None:
        path.write_bytes(data)
        read_all(len(data))
        path.unlink()
        for _ in pools(directory, data):
            read_all(len(data))

    return as_it_is_and_sealed(read)


def pools(directory: Path, data: bytes) -> Iterator[None]:
    """The same bytes as levels of a pool, then as those of a process with a slot, and with what follows it."""
    pool, rest = directory / NAME, directory / f"{native.checker()(b'0', 0):016x}-0{REST}"
    head = b"RKENTROP" + FORMAT.to_bytes(4, "little") + bytes(HEAD_CHECK - 12)
    head = (head + native.checker()(head, 0).to_bytes(8, "little")).ljust(SLOT, b"\0")
    places = 2 * FIRST
    table = bytearray(places * 16)
    own = native.checker()(b"0", 0)
    struct.pack_into("<QQ", table, 0, 1, 16)
    struct.pack_into("<QQ", table, 16 * (1 + own % (places - 1)), own, 1)
    pool.write_bytes(head + data)
    yield
    pool.write_bytes(head + table + data[:SLOT].ljust(SLOT, b"\0"))
    yield
    if len(data) > SLOT:
        rest.write_bytes(data[SLOT:])
        yield
    rest.unlink(missing_ok=True)
    pool.unlink()


def c_reader(directory: Path, coverage: bool) -> Target:
    """native/replay.c: a touch of memory that is not its own is a finding, and so is undefined behaviour."""
    library = load(directory, coverage)

    def replay(data: bytes) -> None:
        library.fuzz_replay(data, ctypes.c_size_t(len(data)))
        for _ in pools(directory, data):
            library.fuzz_replay_forked()

    return as_it_is_and_sealed(replay)


def load(directory: Path, coverage: bool) -> ctypes.CDLL:
    """Build reader.c with the shim, and start it in this directory."""
    library = ctypes.CDLL(str(build(directory, coverage)))
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


def build(directory: Path, coverage: bool) -> Path:
    """The shim and reader.c as one library; gcc counts coverage where libFuzzer is there to look at it."""
    library, reader = directory / "reader.so", directory / "reader.o"
    # Undefined behaviour is an illegal instruction. The guard pages make all memory unaligned. Room for
    # initial-exec variables is scarce in a process that has loaded other libraries.
    common = [
        "gcc", "-D_GNU_SOURCE", "-O1", "-g", "-fPIC", "-fvisibility=hidden",
        '-Dtls_model(model)=tls_model("global-dynamic")',
        "-fsanitize=undefined", "-fno-sanitize=alignment", "-fsanitize-undefined-trap-on-error",
    ]  # fmt: skip
    counted = ["-fsanitize-coverage=trace-pc,trace-cmp"] if coverage else []
    defined = ["-DRK_COVERAGE"] if coverage else []
    subprocess.run([*common, *defined, "-c", str(HERE / "reader.c"), "-o", str(reader)], check=True)
    sources = [str(reader), *(str(path) for path in sorted(NATIVE.glob("*.c")))]
    wrapped = ",".join(f"--wrap=rk_{name}" for name in ("map", "map_at", "unmap", "block_signals", "restore_signals"))
    linked = ["-shared", f"-Wl,{wrapped},-z,lazy", "-o", str(library), "-ldl", "-lpthread"]
    subprocess.run([*common, *counted, *sources, *linked], check=True)
    return library
