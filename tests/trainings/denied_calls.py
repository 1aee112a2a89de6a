"""Makes system calls of this process fail from now on, as where memory, the disk or descriptors run out."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

NUMBERS = {
    "x86_64": {"mmap": 9, "pwrite64": 18, "openat": 257, "fallocate": 285},
    "aarch64": {"mmap": 222, "pwrite64": 68, "openat": 56, "fallocate": 47},
}
ERRORS = {"mmap": errno.ENOMEM, "pwrite64": errno.ENOSPC, "openat": errno.EMFILE, "fallocate": errno.ENOSPC}
ONLY = {"mmap": (3, 1), "openat": (2, os.O_CREAT)}  # an argument and its bit: shared mappings, new files
LOAD, EQUAL, AND, RETURN = 0x20, 0x15, 0x54, 0x06  # instructions of the kernel's filters
ALLOWED, ERROR, KILL = 0x7FFF0000, 0x00050000, 0x80000000


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]


def deny(call: str, kill: bool = False) -> None:
    """Let each further such call fail; or let the first one end the process, as a SIGKILL at that moment does."""
    argument, bit = ONLY.get(call, (0, 0))
    answer = KILL if kill else ERROR | ERRORS[call]
    lines = [
        (LOAD, 0, 0, 0),
        (EQUAL, 0, 4, NUMBERS[platform.machine()][call]),
        (LOAD, 0, 0, 16 + 8 * argument),
        (AND, 0, 0, bit),
        (EQUAL, 0, 1, bit),
        (RETURN, 0, 0, answer),
        (RETURN, 0, 0, ALLOWED),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *line) for line in lines))
    program = Program(len(lines), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel takes no filter")
