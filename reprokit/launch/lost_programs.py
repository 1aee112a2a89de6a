"""Hears of programs that could not reach the run directory where nobody supervises them (native/lost.c).

They can write no file, so they send a datagram to an abstract socket. It is read when the command has ended, and
looked for meanwhile where a strict replay must stop.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

from reprokit import native
from reprokit.model.run import OutOfReach

MESSAGE = struct.Struct("<8sII256s")  # struct rk_lost_message
MAX_NAMED = 64
REASONS = {1: "plan", 2: "file", 3: "shim", 4: "unseen"}  # enum rk_lost


class Unreached:
    """The socket of one run. Where the system gives none, nothing is heard."""

    def __init__(self, run: Path):
        self.run_directory = run
        padded = os.fsencode(run).rjust(native.constants().RK_RUN_PATH, b"/")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._found: list[OutOfReach] = []
        with suppress(OSError):
            self._socket.bind(f"\0reprokit-{native.check_in_python(padded):016x}")

    def heard(self) -> list[OutOfReach]:
        """Every program so far; of more than can be named, the first."""
        while len(self._found) < MAX_NAMED:
            try:
                message = self._socket.recv(MESSAGE.size + 1)
            except OSError:  # there is none
                break
            found = _decoded(message)
            if found is not None and found not in self._found:
                self._found.append(found)
        return self._found

    def close(self) -> list[OutOfReach]:
        """Hear no more."""
        found = self.heard()
        self._socket.close()
        return found


def _decoded(message: bytes) -> OutOfReach | None:
    """Anybody on this machine can send anything."""
    if len(message) != MESSAGE.size:
        return None
    magic, abi, number, identity = MESSAGE.unpack(message)
    if magic != b"RKLOST\0\0" or abi != native.constants().RK_ABI or number not in REASONS:
        return None
    name = identity.partition(b"\0")[0].decode("utf-8", "replace").removesuffix("@")  # as the supervisor signs it
    return OutOfReach(identity=name, reason=REASONS[number])
