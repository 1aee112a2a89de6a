"""Lines of metrics.jsonl that wait to be written together, in a file that is mapped into memory: SIGKILL loses none.

The launcher moves what a process has left here to metrics.jsonl, and readers of a run in progress look here too. The
file holds lines up to its first zero byte. No descriptor stays open, as none does of metrics.jsonl.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DIRECTORY = "pending"
SIZE = 16 << 10  # a hundred losses
MAX_FILES = 64  # of processes that had the same number
PLACE = 0x2E0000000000  # a wish: apart from the program's own mappings, and from those of shim and trail
_SHARED, _READ_WRITE = 1, 3  # MAP_SHARED, PROT_READ | PROT_WRITE
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


class HeldLines:
    """The lines of one process that wait. A forked child needs one of its own."""

    def __init__(self, run: str) -> None:
        self._directory = f"{run}/{DIRECTORY}"
        self._path = ""
        self._refused = False
        self._ctypes: Any = None
        self._room: Any = None
        self._place: Any = None  # where they lie, their bytes and the room for them, as compiled code knows it

    def put(self, line: bytes) -> bool:
        """Take in a line; False where there is no room for it, or nowhere to hold any."""
        if not self.place():
            return False
        address, used, size = self._place
        if used + len(line) >= size or not address:
            return False
        self._ctypes.memmove(address + used, line, len(line))
        self._place[1] = used + len(line)
        return True

    def place(self) -> int:
        """Return what compiled code writes lines by (struct lines of native/python/line.c); 0 where none can wait."""
        return self._ctypes.addressof(self._place) if self._place is not None or self._begin() else 0

    def lines(self) -> Any:
        """Return all that waits, as it lies in memory."""
        return memoryview(self._room)[: self._place[1]] if self._place is not None else b""

    def clear(self) -> None:
        """They were written. The first byte goes first: a reader stops at it."""
        if self._place is not None:
            address, used, _ = self._place
            self._ctypes.memset(address, 0, min(used, 1))
            self._ctypes.memset(address, 0, used)
            self._place[1] = 0

    def close(self) -> None:
        """Hold no more; a file that still has lines is left to the launcher."""
        self._refused = True
        if self._place is not None:
            self._place[0] = 0
        if self._path and not (self._place is not None and self._place[1]):
            os.unlink(self._path)
            self._path = ""

    def _begin(self) -> bool:
        """Map the file. A process that has not loaded ctypes itself gets it by no loss."""
        if self._refused or "ctypes" not in sys.modules:
            return False
        self._refused = True  # unless all goes well
        try:
            self._path = self._make()
        except (OSError, AttributeError):  # a full disk, or a system without posix_fallocate
            return False
        self._refused = self._place is None
        return not self._refused

    def _make(self) -> str:
        make_directory(self._directory)
        for number in range(MAX_FILES):
            path = f"{self._directory}/{os.getpid()}-{number}"
            try:
                address = map_new_file(path, SIZE, PLACE)
            except FileExistsError:
                continue
            if address:
                import ctypes

                self._room = (ctypes.c_char * SIZE).from_address(address)
                self._ctypes, self._place = ctypes, (ctypes.c_uint64 * 3)(address, 0, SIZE)
            return path
        return ""


def make_directory(path: str) -> None:
    """Make a directory of the run; where this process may not, it is made by who opens the files for it."""
    try:
        os.mkdir(path, 0o700)
    except OSError:
        pass


def map_new_file(path: str, size: int, place: int) -> int:
    """Make a file of zeros, map it into memory and return where, 0 if it cannot be mapped. Keeps no descriptor."""
    # Not by the module mmap, which keeps a descriptor of its own.
    import ctypes

    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    ]  # fmt: skip
    descriptor = os.open(path, _NEW, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)  # a page without a block behind it would be a SIGBUS
        address = libc.mmap(place, size, _READ_WRITE, _SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    return 0 if address == ctypes.c_void_p(-1).value else address or 0
