"""Fuzzes a reader: python -m tests.fuzz {python,c,objects} [--seconds N] [-- LIBFUZZER OPTION ...]

The first two read entropy files, in Python and in C; the last one objects (pickles, PyTorch, XGBoost) and messages
(ONNX, SavedModel, checkpoints, records).
What libFuzzer finds new goes to build/fuzz-READER, a finding beside it as crash-*. With ``--once [FILE ...]``
such a file, or each of the corpus, is tried and nothing else, which needs no atheris.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"


def main() -> None:
    """Parse the arguments and fuzz; libFuzzer ends the process."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.split(":")[0])
    parser.add_argument("reader", choices=["python", "c", "objects"])
    parser.add_argument("--seconds", type=int, default=0, help="0: until interrupted")
    parser.add_argument("--once", type=Path, nargs="*", metavar="FILE", help="only try these, or the corpus")
    parser.add_argument("--found", type=Path, help="directory of what is found")
    own = [*sys.argv[1:], "--"].index("--")
    options = parser.parse_args(sys.argv[1 : own + 1])
    found: Path = options.found or HERE.parent.parent / "build" / f"fuzz-{options.reader}"
    found.mkdir(parents=True, exist_ok=True)
    arguments = [
        sys.argv[0], str(found), str(corpus_of(options.reader)), f"-artifact_prefix={found}/", "-max_len=8192",
        f"-max_total_time={options.seconds}", *sys.argv[own + 2 :],
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        if options.once is not None:
            try_files(options.reader, Path(directory), options.once or sorted(corpus_of(options.reader).iterdir()))
        elif options.reader == "objects":
            fuzz_objects(arguments)
        elif options.reader == "python":
            fuzz_python(Path(directory), arguments)
        else:
            fuzz_c(Path(directory), arguments)


def corpus_of(reader: str) -> Path:
    """The files that fuzzing begins with."""
    return HERE / "objects_corpus" if reader == "objects" else CORPUS


def try_files(reader: str, directory: Path, files: list[Path]) -> None:
    """Each of them, and each cut at half."""
    from tests.fuzz.objects import objects_reader
    from tests.fuzz.targets import c_reader, python_reader

    if reader == "objects":
        target = objects_reader()
    else:
        target = python_reader(directory) if reader == "python" else c_reader(directory, coverage=False)
    for path in files:
        data = path.read_bytes()
        target(data)
        target(data[: len(data) // 2])
    print(f"{len(files)} files tried")


def fuzz_python(directory: Path, arguments: list[str]) -> None:
    """atheris: libFuzzer with the coverage of Python's bytecode."""
    import atheris

    with atheris.instrument_imports(include=["reprokit.entropy"]):
        from tests.fuzz.targets import python_reader

    atheris.Setup(arguments, python_reader(directory))
    atheris.Fuzz()


def fuzz_objects(arguments: list[str]) -> None:
    """As fuzz_python, with the readers of objects."""
    import atheris

    with atheris.instrument_imports(include=["reprokit.diff"]):
        from tests.fuzz.objects import objects_reader

        target = objects_reader()
    atheris.Setup(arguments, target)
    atheris.Fuzz()


def fuzz_c(directory: Path, arguments: list[str]) -> None:
    """The libFuzzer that atheris brings, with the coverage that gcc's instrumentation reports to it."""
    from tests.fuzz.targets import c_reader

    package = importlib.util.find_spec("atheris")
    assert package is not None
    assert package.origin is not None
    [library] = Path(package.origin).parent.glob("core_with_libfuzzer*.so")
    libfuzzer = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    target = c_reader(directory, coverage=True)

    def one(data: int | None, size: int) -> int:
        target(ctypes.string_at(data, size) if data else b"")
        return 0

    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(one)
    count = ctypes.c_int(len(arguments))
    vector = (ctypes.c_char_p * (len(arguments) + 1))(*(argument.encode() for argument in arguments), None)
    pointer = ctypes.cast(vector, ctypes.POINTER(ctypes.c_char_p))
    sys.exit(libfuzzer.LLVMFuzzerRunDriver(ctypes.byref(count), ctypes.byref(pointer), callback))


if __name__ == "__main__":
    main()
