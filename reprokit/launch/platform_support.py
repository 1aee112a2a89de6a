"""Whether this platform can record and replay; imports nothing that another platform lacks."""

from __future__ import annotations

import os
import platform
import sys

from reprokit.errors import NotSupported

ELF_MACHINES = {"x86_64": 62, "aarch64": 183}  # the processors that the shim knows, by ELF's numbers


def require_supported() -> None:
    """Refuse a platform on which no shim exists."""
    if not sys.platform.startswith("linux"):
        raise NotSupported(f"recording and replaying need Linux, this is {sys.platform}; show and verify work here too")
    if platform.machine() not in ELF_MACHINES:
        raise NotSupported(f"recording and replaying need x86-64 or aarch64, this is {platform.machine()}")
    if not libc().startswith("glibc"):
        raise NotSupported("recording and replaying need glibc, which this system does not use; show and verify work")


def libc() -> str:
    """Return the C library and its version; empty where it is not glibc."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError, AttributeError):
        return ""
