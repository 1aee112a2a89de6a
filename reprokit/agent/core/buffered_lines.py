"""Lines of metrics.jsonl that wait to be written together, in a file that is mapped into memory: SIGKILL loses none.

The launcher moves what a process has left here to metrics.jsonl, and readers of a run in progress look here too. The
file holds lines up to its first zero byte. No descriptor stays open, as none does of metrics.jsonl.
"""

from __future__ import annotations

import os
import sys

from .json_text import to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    LossNames = tuple[int, bytes, bytes]  # the bytes that a line needs at most, and its parts

DIRECTORY = "pending"
NUMBERS = 200  # bytes of a loss's line beside its names
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
        self.address = 0
        self.used = 0

    def put(self, line: bytes) -> bool:
        """Take in a line; False where there is no room for it, or nowhere to hold any."""
        used = self.used + len(line)
        if used >= SIZE or not (self.address or self._begin()):
            return False
        self._ctypes.memmove(self.address + self.used, line, len(line))
        self.used = used
        return True

    def is_there(self) -> bool:
        """Whether lines can be held; who writes one at `address + used` raises `used`, and leaves a byte behind it."""
        return bool(self.address or self._begin())

    def lines(self) -> Any:
        """Return all that waits, as it lies in memory."""
        return memoryview(self._room)[: self.used] if self.used else b""

    def clear(self) -> None:
        """They were written. The first byte goes first: a reader stops at it."""
        if self.used:
            self._ctypes.memset(self.address, 0, 1)
            self._ctypes.memset(self.address, 0, self.used)
            self.used = 0

    def close(self) -> None:
        """Hold no more; a file that still has lines is left to the launcher."""
        self._refused, self.address = True, 0
        if self._path and not self.used:
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
        self._refused = not self.address
        return not self._refused

    def _make(self) -> str:
        try:
            os.mkdir(self._directory, 0o700)
        except OSError:  # it is there, or this process may not: then it is made by who opens the file for it
            pass
        for number in range(MAX_FILES):
            path = f"{self._directory}/{os.getpid()}-{number}"
            try:
                descriptor = os.open(path, _NEW, 0o600)
            except FileExistsError:
                continue
            try:
                os.posix_fallocate(descriptor, 0, SIZE)  # a page without a block behind it would be a SIGBUS
                self._map(descriptor)
            finally:
                os.close(descriptor)
            return path
        return ""

    def _map(self, descriptor: int) -> None:
        # Not by the module mmap, which keeps a descriptor of its own.
        import ctypes

        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
        ]  # fmt: skip
        address = libc.mmap(PLACE, SIZE, _READ_WRITE, _SHARED, descriptor, 0)
        if address and address != ctypes.c_void_p(-1).value:
            self._room = (ctypes.c_char * SIZE).from_address(address)
            self._ctypes, self.address = ctypes, address


class LossLines:
    """Writes lines of losses by compiled code where they wait: each step of a training pays for one."""

    def __init__(self, run: str) -> None:
        from .. import trail_library
        from .native_module import load

        module = load(trail_library.path_of(run))
        self.formats = trail_library.FORMATS
        self.write: Any = None if module is None else module.loss_line
        self.names: dict[str, LossNames] = {}

    def prepare(self, identity: str, name: str) -> LossNames:
        """Return what lines of a name need: more than there can be, where nothing compiled writes any."""
        head = f'{{"k":"loss","p":{identity},"n":'.encode()
        rest = f',"name":{to_json(name)},"step":'.encode()
        room = 1 << 62 if self.write is None else len(head) + len(rest) + NUMBERS
        known = self.names[name] = room, head, rest
        return known
