"""Checks whether this platform can record and replay; imports no module that other platforms lack."""

from __future__ import annotations

import os
import platform
import sys

from reprokit.core.errors import NotSupported

ELF_MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine in ELF headers, by processor that the shim supports


def require_supported() -> None:
    """Raise NotSupported on a platform without a shim."""
    if not sys.platform.startswith("linux"):
        raise NotSupported(f"recording and replaying need Linux, this is {sys.platform}; show and verify work here too")
    if platform.machine() not in ELF_MACHINES:
        raise NotSupported(f"recording and replaying need x86-64 or aarch64, this is {platform.machine()}")
    if not libc().startswith("glibc"):
        raise NotSupported("recording and replaying need glibc, which this system does not use; show and verify work")


def libc() -> str:
    """Return name and version of the C library; empty if it is not glibc."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError, AttributeError):
        return ""
