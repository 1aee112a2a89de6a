"""Reads files by a library in a separate process with resource limits, which sends the parts (part_process).

For some tensors the process sends the location in the file, for others the bytes. It is not trusted: its output is
checked like the content of a file.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from reprokit.core import dtypes
from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.decompression import write
from reprokit.diff.elements import Limits, Noise, Part, Source, TensorPart, Value
from reprokit.diff.formats import keras
from reprokit.diff.part_process import HEAD
from reprokit.diff.sources import BLOCK, FileSource, blocks, piece

# The module path is passed explicitly: the working directory may contain modules of somebody else.
COMMAND = "import sys; sys.path[:] = sys.argv[2:]; from {0} import {1}, serve; serve(int(sys.argv[1]), {1})"
UNWANTED = ("HDF5_", "ARROW_", "LD_PRELOAD", "PYTHON")
ENVIRONMENT = {
    "HDF5_PLUGIN_PRELOAD": "::",  # no plugins
    "HDF5_PLUGIN_PATH": "/nonexistent",
    "HDF5_USE_FILE_LOCKING": "FALSE",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class ParsingLibrary:
    """A library, and the module that uses it in the separate process."""

    title: str  # the name for errors, such as "HDF5"
    package: str  # the name to import and install, such as "h5py"
    module: str
    function: str = "read"  # of that module
    distribution: str = ""  # the name to install, if that is another

    @property
    def missing(self) -> str:
        """Return the name of a package that is not installed, the library's or NumPy; nothing if it can be used."""
        wanted = (self.package,) if self.package in sys.stdlib_module_names else (self.package, "numpy")
        return next((package for package in wanted if importlib.util.find_spec(package) is None), "")

    def read(self, source: Source, limits: Limits, directory: str = "/") -> Iterator[Part]:
        """Yield the parts of a file; `directory` is the working directory of the process."""
        if missing := self.missing:
            wanted = (self.distribution or missing) if missing == self.package else missing
            raise ArtifactDamaged(f"{missing} is not installed: pip install {wanted}")
        with tempfile.TemporaryFile() as copy, tempfile.TemporaryFile() as errors:
            file = source if isinstance(source, FileSource) else _copy_to_file(source, copy)
            most = max(0, limits.unpacked - limits.spent.unpacked)
            process = _start(COMMAND.format(self.module, self.function), file, most, errors, directory)
            try:
                assert process.stdout is not None
                yield from _PartReader(process.stdout, source, limits).parts()
            except _ProcessDied as error:
                reason = str(error) or _reason(process, errors)
                raise ArtifactDamaged(f"{self.title} gave up on it ({reason})") from None
            finally:
                process.kill()
                process.communicate()


class _Spool:
    """Received bytes in an unnamed temporary file, which is deleted with the last tensor that refers to it."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self.size = 0

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self._file.fileno(), max(0, min(length, self.size - offset)), offset)

    def append(self, data: bytes) -> None:
        """Append bytes."""
        write(self._file, data)
        self.size += len(data)


class _ProcessDied(Exception):
    """Raised if the process ended before its last message, or says why its library failed."""


def _copy_to_file(source: Source, copy: IO[bytes]) -> IO[bytes]:
    """Copy a source to a file that the process can read."""
    for block in blocks(source):
        write(copy, block)
    copy.flush()
    return copy


def _start(
    code: str, file: FileSource | IO[bytes], most: int, errors: IO[bytes], directory: str
) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(UNWANTED)} | ENVIRONMENT
    fd = file.fd if isinstance(file, FileSource) else file.fileno()
    command = [sys.executable, "-I", "-c", code, str(most), *filter(os.path.isabs, sys.path)]
    return subprocess.Popen(command, stdin=fd, stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=directory)


def _reason(process: subprocess.Popen[bytes], errors: IO[bytes]) -> str:
    """Return why the process ended: signal, last line of its errors, or exit status."""
    code = process.wait()
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    errors.seek(0)
    lines = errors.read(1 << 16).decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:200] if lines else f"exit status {code}"


def _line(header: dict[str, Any]) -> str:
    return " ".join(str(header["text"]).split())[:300]


@dataclass
class _PartReader:
    """Reads the parts that the process sends."""

    pipe: IO[bytes]
    source: Source
    limits: Limits

    def parts(self) -> Iterator[Part]:
        """Yield all parts; received bytes are stored in one unnamed temporary file."""
        spool = _Spool()
        while True:
            head = HEAD.unpack(self._exactly(HEAD.size))
            if head[0] > 8 * self.limits.text:
                raise ArtifactDamaged(f"a value has {head[0]} bytes")
            header = json.loads(self._exactly(head[0]))
            if header["kind"] == "end":
                return
            if header["kind"] == "error":
                raise ArtifactDamaged(_line(header))
            if header["kind"] == "failed":
                raise _ProcessDied(_line(header))
            yield from self._part(header, head[1], spool)

    def _exactly(self, size: int) -> bytes:
        data = self.pipe.read(size)
        if len(data) < size:
            raise _ProcessDied
        return data

    def _part(self, header: dict[str, Any], size: int, spool: _Spool) -> Iterator[Part]:
        name, kind = str(header["name"]), header["kind"]
        if kind == "value":
            yield Value(name, str(header["text"]))
        elif kind == "noise":
            yield Noise(name, str(header["text"]))
        elif kind == "json":
            yield from keras.values(name, str(header["text"]), self.limits)
        elif kind == "place":
            yield self._tensor(header, piece(self.source, int(header["offset"]), int(header["bytes"])))
        else:
            yield self._tensor(header, self._receive(spool, size))

    def _tensor(self, header: dict[str, Any], data: Source) -> TensorPart:
        dtype, shape = str(header["dtype"]), tuple(map(int, header["shape"]))
        if any(length < 0 for length in shape) or dtypes.named(dtype).file_size(math.prod(shape)) != data.size:
            raise ArtifactDamaged(f"{str(header['name'])[:200]!r} has another size than its type and shape need")
        meaning = str(header.get("meaning", ""))
        return TensorPart(str(header["name"]), dtype, shape, data, big_endian=bool(header["big"]), meaning=meaning)

    def _receive(self, spool: _Spool, size: int) -> Source:
        """Receive bytes into the spool; return them as a source."""
        start = spool.size
        self.limits.spent.unpacked += size
        if self.limits.spent.unpacked > self.limits.unpacked:
            raise ArtifactDamaged(f"it unpacks to more than {self.limits.unpacked} bytes in all")
        for at in range(0, size, BLOCK):
            spool.append(self._exactly(min(BLOCK, size - at)))
        return piece(spool, start, size)
