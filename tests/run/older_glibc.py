"""A glibc that is older than the shim needs: this machine's, with other names of the newest versions."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from reprokit.core import native


def make_older(libc: Path, program: str | Path) -> bool:
    """Rename in a copy of libc.so.6 what the shim needs and the program does not; False if there is no such version."""
    lacking = _versions(native.shim_path()) - _versions(program) - _versions(libc)
    newest = max(_versions(libc, "Rev:"), key=lambda name: int(name.partition(b".")[2]))
    data = libc.read_bytes()
    for version in {*lacking, newest}:
        data = data.replace(b"\0%s\0" % version, b"\0%s\0" % version.replace(b"_2", b"_9"))
    libc.write_bytes(data)
    return bool(lacking)


def _versions(file: str | Path, table: str = "Version:") -> set[bytes]:
    """Return the versions of glibc that a program or library needs, or by another table those that it has."""
    listed = subprocess.run(["readelf", "-VW", str(file)], capture_output=True, check=True).stdout
    lines = [line for line in listed.splitlines() if table.encode() in line]
    return {version for line in lines for version in re.findall(rb"GLIBC_2\.\d+(?![.\d])", line)}
