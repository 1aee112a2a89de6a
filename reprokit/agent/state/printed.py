"""Says how much the processes of this run have printed: by the heads of the files that the shim writes of it."""

from __future__ import annotations

import os
import struct
import sys
from posix import listdir  # not os.listdir, which the agent replaces to observe the training

from ..core.signal_errors import pass_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CONSOLE, ENDING = "console", ".console"  # in the run directory
_AREAS = struct.Struct("<7Q")  # of struct rk_console: number and used bytes of each of three areas, dropped bytes
_OFFSET = 288


def printed(run: str) -> dict[str, int]:
    """Return the bytes of all records of each file: what this process printed until now is written before."""
    directory = f"{run}/{CONSOLE}"
    if not os.path.isdir(directory):  # nothing of it is kept
        return {}
    for stream in (sys.__stdout__, sys.__stderr__):
        _flush(stream)
    return {name: _used(f"{directory}/{name}") for name in listdir(directory) if name.endswith(ENDING)}


def _flush(stream: Any) -> None:
    try:
        if stream is not None:
            stream.flush()
    except Exception as error:  # the script has closed it, or nobody reads it
        pass_on(error)


def _used(path: str) -> int:
    """Return the bytes of all records of a file; 0 for one that was not begun."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        data = os.pread(descriptor, _AREAS.size, _OFFSET)
    finally:
        os.close(descriptor)
    if len(data) < _AREAS.size:
        return 0
    _, first, _, second, _, third, dropped = _AREAS.unpack(data)
    return int(first + second + third + dropped)
