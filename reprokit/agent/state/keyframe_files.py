"""The files of keyframes: an index and shards as of saved tensors, and a log of the generators' states beside them.

A keyframe is a line of the index behind those of its tensors. Its state is JSON, never anything that is executed or
unpickled; each part has a digest.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import stat

from ..capture.store import DTYPES, SIZES, SavedTensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..core.trail_library import Library

DIRECTORY = "keyframes"  # in the run directory
STATE = "state"  # the mode of a keyframe's tensors
INDEX, SHARD, DRAWS = ".jsonl", ".safetensors", ".draws"
FORMAT = 1
MAX_LINE = 256 << 20
MAX_INDEX = 4 << 30
MAX_DRAWS = 256 << 20  # bytes of the log of generators' states
MAX_HEAD = 64 << 20


class KeyframeError(Exception):
    """What is wrong with a keyframe that is read, in one line."""


def hexadecimal(digest: int) -> str:
    """Return a digest of 64 bits as it stands in files."""
    return f"{digest:016x}"


class KeyframeFile:
    """A keyframe of a process: its state, its tensors mapped into memory, and the log of the generators until then."""

    def __init__(self, directory: str, key: str, step: int, library: Library) -> None:
        """Read and check the keyframe; raises KeyframeError."""
        self.library = library
        self._path = os.path.join(directory, key)
        self._shards: dict[int, tuple[memoryview, dict[str, Any]]] = {}
        self.process = ""
        try:
            lines, self.line, self.draws = self._read_index(step)
            self.state: dict[str, Any] = json.loads(self.line["state"])
            self.tensors = {line["name"]: self._tensor(line) for line in lines}
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise KeyframeError(
                f"the keyframe of step {step} is damaged: {' '.join(str(error).split())[:200]}"
            ) from None

    def _read_index(self, step: int) -> tuple[list[dict[str, Any]], dict[str, Any], bytes]:
        """Return the lines of the keyframe's tensors, its own line, and the log of the generators."""
        tensors: list[dict[str, Any]] = []
        with os.fdopen(_open(self._path + DRAWS), "rb") as file:
            draws = file.read(MAX_DRAWS + 1)
        for line in self._lines():
            if line.get("mode") == STATE and line.get("step") == step:
                tensors.append(line)
            elif "keyframe" in line:
                begin, end, digest = line["draws"]
                if not (0 <= begin <= end <= len(draws)) or digest != self._digest(draws[begin:end]):
                    raise ValueError("the log of the generators does not match its digest")
                if line["keyframe"] == step:
                    if line["check"] != self._digest(line["state"].encode()):
                        raise ValueError("its line does not match its check")
                    return tensors, line, draws[:end]
        raise ValueError("it is not in the index")

    def _lines(self) -> Iterator[dict[str, Any]]:
        with os.fdopen(_open(self._path + INDEX), "rb") as file:
            if os.fstat(file.fileno()).st_size > MAX_INDEX:
                raise ValueError("its index is too large")
            for number, text in enumerate(iter(lambda: file.readline(MAX_LINE), b"")):
                line = json.loads(text.decode()) if text.endswith(b"\n") else None
                if not isinstance(line, dict) or (not number and line.get("format") != FORMAT):
                    raise ValueError("its index is cut short, or of another format")
                self.process = self.process if number else str(line.get("process", ""))
                yield line

    def _digest(self, data: bytes) -> str:
        return hexadecimal(self.library.of_bytes(data))

    def _tensor(self, line: dict[str, Any]) -> SavedTensor:
        from ..core.trail_library import salt

        dtype, shape = DTYPES[line["dtype"]], tuple(line["shape"])
        view, entries = self._shard(int(line["shard"]))
        begin, end = entries[line["key"]]["data_offsets"]
        count = 1
        for size in shape:
            count *= size
        width = SIZES["F64"] * 2 if dtype == "C128" else SIZES[dtype]
        if not 0 <= begin <= end <= len(view) or end - begin != count * width:
            raise ValueError(f"the bytes of {line['name'][:100]!r} do not fit its shape")
        data = view[begin:end]
        address = ctypes.addressof(ctypes.c_char.from_buffer(data)) if end > begin else 0
        if line["digest"] != hexadecimal(self.library.digest(address, end - begin, salt(line["dtype"], shape))):
            raise ValueError(f"{line['name'][:100]!r} does not match its digest")
        return SavedTensor(line["name"], dtype, shape, data)

    def _shard(self, number: int) -> tuple[memoryview, dict[str, Any]]:
        """Return the data of a shard, and where its tensors are in it."""
        shards = self._shards
        if number not in shards:
            descriptor = _open(f"{self._path}-{number:06d}{SHARD}")
            try:
                size = os.fstat(descriptor).st_size
                # A private copy, as ctypes takes no address of what cannot be written.
                view = memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)) if size else memoryview(b"")
            finally:
                os.close(descriptor)
            length = int.from_bytes(view[:8], "little")
            if size < 8 or length > min(MAX_HEAD, size - 8):
                raise ValueError(f"shard {number} is cut short")
            shards[number] = view[8 + length :], json.loads(bytes(view[8 : 8 + length]).decode())
        return shards[number]


def _open(path: str) -> int:
    """Open a regular file, never through a symbolic link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{os.path.basename(path)} is no regular file")
    return descriptor
