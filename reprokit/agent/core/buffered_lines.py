"""A buffer for lines of metrics.jsonl, in a file that is mapped into memory, so that SIGKILL loses none.

The launcher moves what a process leaves here to metrics.jsonl, and readers of a run in progress look here, too. The
file holds lines up to its first zero byte. No descriptor stays open, as none does of metrics.jsonl.
"""

from __future__ import annotations

import os
import sys
from _functools import partial  # type: ignore[import-not-found]  # functools imports six modules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DIRECTORY = "pending"
SIZE = 16 << 10
MAX_FILES = 64  # of processes that had the same process id
PREFERRED_ADDRESS = 0x2E0000000000  # a hint: apart from the mappings of program, shim and trail
_SHARED, _FIXED, _READ_WRITE = 1, 16, 3  # MAP_SHARED, MAP_FIXED, PROT_READ | PROT_WRITE
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


class BufferedLines:
    """The buffered lines of one process. A forked child needs its own buffer."""

    def __init__(self, run: str) -> None:
        self._directory = f"{run}/{DIRECTORY}"
        self._path = ""
        self._is_unavailable = False
        self._ctypes: Any = None
        self._memory: Any = None  # a view of the mapped bytes, whose slices cost less than ctypes.memmove
        self._struct: Any = None  # address and bytes used of the buffer

    def append(self, line: bytes) -> bool:
        """Append a line; return False if there is no room for it, or no buffer."""
        if self._struct is None and not self._map():
            return False
        used = self._struct[1]
        end = used + len(line)
        if end >= SIZE or not self._struct[0]:
            return False
        self._memory[used:end] = line
        self._struct[1] = end
        return True

    def pending(self) -> Any:
        """Return all buffered lines, without a copy."""
        return self._memory[: self._struct[1]] if self._struct is not None else b""

    def clearing(self) -> tuple[partial[Any], ...]:
        """Return what empties the buffer; the first byte comes first, at which readers stop.

        A script's handler of signals may raise an exception between any two lines of Python. So the caller makes these
        calls by compiled code, together with the one that writes the lines.
        """
        if self._struct is None:
            return ()
        address, used = self._struct
        memset, number = self._ctypes.memset, self._ctypes.sizeof(self._ctypes.c_uint64)
        places = (address, 1), (address, used), (self._ctypes.addressof(self._struct) + number, number)
        return tuple(partial(memset, place, 0, size) for place, size in places)

    def close(self) -> None:
        """Close the buffer for good; a file that still has lines is left to the launcher."""
        self._is_unavailable = True
        if self._struct is not None:
            self._struct[0] = 0
        if self._path and not (self._struct is not None and self._struct[1]):
            os.unlink(self._path)
            self._path = ""

    def _map(self) -> bool:
        """Map the file, unless ctypes is not loaded: a loss must not load it. Return whether that worked."""
        if self._is_unavailable or "ctypes" not in sys.modules:
            return False
        self._is_unavailable = True  # until the file is mapped
        try:
            self._path = self._create_file()
        except (OSError, AttributeError):  # the disk is full, or the system lacks posix_fallocate
            return False
        self._is_unavailable = self._struct is None
        return not self._is_unavailable

    def _create_file(self) -> str:
        make_directory(self._directory)
        for number in range(MAX_FILES):
            path = f"{self._directory}/{os.getpid()}-{number}"
            try:
                address = map_new_file(path, SIZE, PREFERRED_ADDRESS)
            except FileExistsError:
                continue
            if address:
                import ctypes

                self._memory = memoryview((ctypes.c_char * SIZE).from_address(address)).cast("B")
                self._ctypes, self._struct = ctypes, (ctypes.c_uint64 * 2)(address, 0)
            return path
        return ""


def make_directory(path: str) -> None:
    """Create a directory of the run; a failure shows when files in it are opened."""
    try:
        os.mkdir(path, 0o700)
    except OSError:
        pass


def map_new_file(path: str, size: int, place: int) -> int:
    """Create a file of zeros, and map it. Return its address, 0 if it cannot be mapped. Keeps no descriptor open."""
    descriptor = os.open(path, _NEW, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)  # on a full disk, writing to a page without a block would raise SIGBUS
        return map_part(descriptor, 0, size, place)
    finally:
        os.close(descriptor)


def map_part(descriptor: int, start: int, size: int, place: int, *, is_replaced: bool = False) -> int:
    """Map a part of a file near a place, or over what is mapped there. Return its address; 0 if that fails."""
    # Not with the module mmap, which keeps a descriptor open.
    import ctypes

    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    ]  # fmt: skip
    flags = _SHARED | (_FIXED if is_replaced else 0)
    address = libc.mmap(place, size, _READ_WRITE, flags, descriptor, start)
    return 0 if address == ctypes.c_void_p(-1).value else address or 0
