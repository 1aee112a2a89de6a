"""Changes kernel settings of this process for which Python has no call: address randomization, namespaces and more.

A run's namespaces give it a host name of its own, and show a directory at a second path too. They need CAP_SYS_ADMIN,
or a kernel that allows user namespaces. They apply to the process that enters them, the launcher of one run, and to
everything that it starts; no other process is affected.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from reprokit.model.states import Switch

ADDR_NO_RANDOMIZE = 0x0040000
QUERY = 0xFFFFFFFF
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWUSER = 0x20000, 0x4000000, 0x10000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
UNKNOWN = 199  # exit status of a trial that failed without an errno


@contextmanager
def without_randomization() -> Iterator[Switch]:
    """Give programs started within fixed addresses; yields whether addresses are randomized after all.

    The kernel keeps the personality of the calling thread over fork and exec.
    """
    call = ctypes.CDLL(None, use_errno=True).personality
    call.argtypes, call.restype = [ctypes.c_ulong], ctypes.c_int
    personality = call(QUERY)
    outcome = _switch(call, personality)
    try:
        yield outcome
    finally:
        if not outcome.is_on:
            call(personality)


def forbid_core_dump() -> None:
    """Prevent a core dump of this process, also by a pipe of the system: the training has left its own."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, ctypes.c_ulong(0), 0, 0, 0)


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal, by default SIGKILL, when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(number), 0, 0, 0)


def _switch(call: ctypes._NamedFuncPointer, personality: int) -> Switch:
    if personality == -1 or call(personality | ADDR_NO_RANDOMIZE) == -1:
        return Switch(code="unavailable", why=f"the system refuses personality(): {os.strerror(ctypes.get_errno())}")
    # Some sandboxes accept the call and do nothing.
    if call(QUERY) & ADDR_NO_RANDOMIZE:
        return Switch(state="off")
    return Switch(code="unavailable", why="the system ignores personality()")


class Namespaces(msgspec.Struct, frozen=True, kw_only=True):
    """What differs in the namespaces of a run."""

    host: str = ""
    bound: tuple[Path, Path] | None = None  # a directory, and an empty one at which it is mounted too

    def enter(self) -> None:
        """Move this process, which must have one thread, into the namespaces; raise OSError on failure."""
        flags = (CLONE_NEWUTS if self.host else 0) | (CLONE_NEWNS if self.bound else 0)
        if flags:
            _unshare(flags)
        if self.host:
            import socket  # imported where it is needed: slow to load

            socket.sethostname(self.host)
        if self.bound is not None:
            _mount("none", "/", MS_REC | MS_PRIVATE)  # or the next mount would be visible to the whole machine
            _mount(str(self.bound[0]), str(self.bound[1]), MS_BIND | MS_REC)

    def refused(self) -> str:
        """Return why this machine does not allow it, as tried in a child; empty if it does."""
        from reprokit.run.machine import in_child

        outcome = in_child(self._attempt)
        return "" if outcome == 0 else os.strerror(outcome) if 0 < outcome < UNKNOWN else "the trial died"

    def _attempt(self) -> int:
        try:
            self.enter()
        except OSError as error:
            return error.errno if error.errno and error.errno < UNKNOWN else UNKNOWN
        return 0


def _unshare(flags: int) -> None:
    """Create the namespaces, as root if that is allowed, else in a user namespace that keeps user and group ids."""
    user, group = os.geteuid(), os.getegid()
    try:
        _call("unshare", flags)
    except OSError as error:
        if error.errno != errno.EPERM:
            raise
        _call("unshare", flags | CLONE_NEWUSER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path("/proc/self", name).write_text(text)


def _mount(source: str, target: str, flags: int) -> None:
    _call("mount", os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(flags), None)


def _call(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
