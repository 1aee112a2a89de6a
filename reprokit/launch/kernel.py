"""Kernel settings of this process that Python has no call for: address randomization, namespaces and more.

Namespaces of a run: its own host name, and a directory that stands in another place too. They need CAP_SYS_ADMIN, or a
kernel that lets everybody have a user namespace. What is entered holds for the process that enters, a launcher of one
run, and for all that it starts; nobody else sees anything of it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
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
UNKNOWN = 199  # how a trial ends that did not say an errno


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


class Namespaces(msgspec.Struct, frozen=True, kw_only=True):
    """What is different in the namespaces."""

    host: str = ""
    bound: tuple[Path, Path] | None = None  # a directory, and the empty one where it stands too

    def enter(self) -> None:
        """Let this process, which must have one thread, be there; raises OSError."""
        flags = (CLONE_NEWUTS if self.host else 0) | (CLONE_NEWNS if self.bound else 0)
        if flags:
            _unshare(flags)
        if self.host:
            socket.sethostname(self.host)
        if self.bound is not None:
            _mount("none", "/", MS_REC | MS_PRIVATE)  # or the whole machine would see what follows
            _mount(str(self.bound[0]), str(self.bound[1]), MS_BIND | MS_REC)

    def refused(self) -> str:
        """Why this machine does not allow it, found out in a child; empty where it does."""
        from reprokit.launch.machine import in_child

        outcome = in_child(self._attempt)
        return "" if outcome == 0 else os.strerror(outcome) if 0 < outcome < UNKNOWN else "the trial died"

    def _attempt(self) -> int:
        try:
            self.enter()
        except OSError as error:
            return error.errno if error.errno and error.errno < UNKNOWN else UNKNOWN
        return 0


def _unshare(flags: int) -> None:
    """As root where that is allowed, else in a user namespace in which everybody keeps their own number."""
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
