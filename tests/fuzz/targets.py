"""What is fuzzed: the reader in Python, and the one in C, which is the shim's replay."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from tests.fuzz.profiles import seal

HERE = Path(__file__).parent
NATIVE = HERE.parent.parent / "native"

Target = Callable[[bytes], None]


def python_reader(directory: Path) -> Target:
    """reprokit.entropy: anything but an answer or an error of reprokit's own is a finding."""
    from reprokit import entropy
    from reprokit.entropy.files import Event
    from reprokit.errors import ReprokitError

    path = directory / "0000000000000000-0.entropy"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        with suppress(ReprokitError), closing(entropy.EntropyFile(path)) as file:
            given = 0
            for record in file.records():
                given += len(record.data) if isinstance(record, Event) else 0
            if given > len(data):
                raise AssertionError(f"{given} bytes given of a file of {len(data)}")
        with suppress(ReprokitError):
            entropy.gave_up(directory)

    return as_it_is_and_sealed(read)


def c_reader(directory: Path, coverage: bool) -> Target:
    """native/replay.c: a touch of memory that is not its own is a finding, and so is undefined behaviour."""
    library = load(directory, coverage)

    def replay(data: bytes) -> None:
        library.fuzz_replay(data, ctypes.c_size_t(len(data)))

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
    wrapped = ",".join(f"--wrap=rk_{name}" for name in ("map", "unmap", "block_signals", "restore_signals"))
    linked = ["-shared", f"-Wl,{wrapped},-z,lazy", "-o", str(library), "-ldl", "-lpthread"]
    subprocess.run([*common, *counted, *sources, *linked], check=True)
    return library
