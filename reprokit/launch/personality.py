"""Kernel settings of this process that Python has no call for: address randomisation and more."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from reprokit.model.states import Switch

ADDR_NO_RANDOMIZE = 0x0040000
QUERY = 0xFFFFFFFF
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4


@contextmanager
def without_randomization() -> Iterator[Switch]:
    """Programs started within have fixed addresses; yields whether they are randomized all the same.

    The kernel keeps the personality of the calling thread over fork and exec.
    """
    call = ctypes.CDLL(None, use_errno=True).personality
    call.argtypes, call.restype = [ctypes.c_ulong], ctypes.c_int
    before = call(QUERY)
    outcome = _switch(call, before)
    try:
        yield outcome
    finally:
        if not outcome.is_on:
            call(before)


def forbid_core_dump() -> None:
    """No core file, and none for a program that the system pipes core dumps to: the training has left its own."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, ctypes.c_ulong(0), 0, 0, 0)


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """This process is killed, or sent another signal, when the one that started it ends, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(number), 0, 0, 0)


def _switch(call: ctypes._NamedFuncPointer, before: int) -> Switch:
    if before == -1 or call(before | ADDR_NO_RANDOMIZE) == -1:
        return Switch(code="unavailable", why=f"the system refuses personality(): {os.strerror(ctypes.get_errno())}")
    # Some sandboxes answer the call and do nothing.
    if call(QUERY) & ADDR_NO_RANDOMIZE:
        return Switch(state="off")
    return Switch(code="unavailable", why="the system ignores personality()")
