"""Tells whether this process is at rest: each of its threads waits for another one, and none of them can go on.

The kernel says in which system call a thread is. Waiting for another thread of the same process is a call of its own.
Who sleeps, reads, polls or waits for a time may go on alone. Where the kernel does not say it, nothing is known.
"""

from __future__ import annotations

import _thread
import os
import posix  # its functions are not replaced, unlike those of os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

TASKS = "/proc/self/task"
SIZE = 256  # bytes of the files that are read
# Numbers of system calls by machine: futex, and those of epoll by which a loop waits.
_FUTEX = {"x86_64": 202, "aarch64": 98}
_EPOLL = {"x86_64": (232, 281, 441), "aarch64": (22, 441)}
_MACHINE = os.uname().machine
_COMMAND, _PRIVATE = 0x7F, 0x80  # of a futex' operation
_WAIT, _WAIT_BITSET = 0, 9  # the former without _PRIVATE: the trail's own worker


def native_id() -> int:
    """Return the kernel's number of this thread; 0 before Python 3.8."""
    return getattr(_thread, "get_native_id", int)()


def at_rest(own: int, held: Collection[int], loops: Collection[int]) -> dict[int, bytes] | None:
    """Return how often each other thread has run if all are blocked; None if one is not, or nothing is known.

    Threads in ``held`` wait for their turns, for a time; those in ``loops`` poll, but only other threads wake them. If
    no thread has run between two looks at a process at rest, none will run again.
    """
    runs = {}
    try:
        for thread in map(int, posix.listdir(TASKS)):
            if thread == own:
                continue
            call = _read(f"{TASKS}/{thread}/syscall").split()
            if not (call[0].isdigit() if thread in held else _is_blocked(call, thread in loops)):
                return None
            if thread not in held and thread not in loops:
                runs[thread] = _read(f"{TASKS}/{thread}/schedstat")
    except (OSError, ValueError, IndexError):  # a thread has ended meanwhile, or the kernel does not say it
        return None
    return runs


def _is_blocked(call: list[bytes], may_poll: bool) -> bool:
    """Return whether a system call, as the kernel describes it, ends only by what another thread does."""
    if not call[0].isdigit():  # it runs
        return False
    number = int(call[0])
    if number != _FUTEX.get(_MACHINE):
        return may_poll and number in _EPOLL.get(_MACHINE, ())
    operation, timeout = int(call[2], 16), int(call[4], 16)
    return not timeout and (
        not operation or (operation & _COMMAND in (_WAIT, _WAIT_BITSET) and operation & _PRIVATE > 0)
    )


def _read(path: str) -> bytes:
    descriptor = posix.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return posix.read(descriptor, SIZE)
    finally:
        posix.close(descriptor)
