"""Digests of the files that a run was made of: its command, its code."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from reprokit.run_files import rundir

MAX_CODE = 2000  # files
MAX_DIGESTED = 64 << 20  # bytes of a command's file; larger ones have no digest

Opener = Callable[[str, int], int]


def file_digest(path: Path, limit: int = MAX_DIGESTED, opener: Opener = rundir.open_regular) -> str | None:
    """Return the digest of a regular file; "large: ..." above the size limit, None if it cannot be read."""
    try:
        with open(path, "rb", opener=opener) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return None
            if status.st_size > limit:
                return f"large: {status.st_size} bytes"
            return f"sha256:{hashlib.sha256(file.read(limit)).hexdigest()}"
    except (OSError, ValueError):
        return None
