"""Reads when files were created, which Python's os.stat does not tell."""

from __future__ import annotations

import ctypes
import os
import struct

STATX = struct.Struct("80xqI164x")  # struct statx of linux/stat.h: stx_btime
AT_FDCWD, AT_SYMLINK_NOFOLLOW, STATX_BTIME = -100, 0x100, 0x800


def born(path: str | os.PathLike[str]) -> int:
    """Return when a file was created, in nanoseconds since the epoch; 0 if the file system or libc does not tell."""
    status = ctypes.create_string_buffer(STATX.size)
    try:
        ctypes.CDLL(None).statx(AT_FDCWD, os.fsencode(path), AT_SYMLINK_NOFOLLOW, STATX_BTIME, status)
    except AttributeError:  # glibc before 2.28
        return 0
    seconds, nanoseconds = STATX.unpack(status)
    return int(seconds) * 1_000_000_000 + int(nanoseconds)
