"""Answers requests that the shim cannot reach: puts a seccomp filter on the command and starts the supervisor.

Filter, address randomization and no_new_privs belong to a thread and are inherited by its children. So the
command is started by a separate thread, and the launcher itself remains unaffected. The supervisor is a thread
of the native library (native/supervisor) in this process, because programs may allow only their ancestors to
write to their memory.

Programs that could not reach the run directory and that nobody supervises can write no file, so they send a datagram
to an abstract socket (native/recorder/lost.c). It is read when the command has ended, and polled while a strict replay
runs, which must stop.
"""

from __future__ import annotations

import _socket  # socket, whose class it is, loads ten enumerations of constants
import ctypes
import errno
import os
import re
import select
import signal
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from reprokit.core import native
from reprokit.model.run import OutOfReach
from reprokit.model.states import ON, Switch, off

T = TypeVar("T")
NO_RIGHTS = Switch(code="no-rights", why="set-user-ID programs gain no rights")
KERNEL = (5, 9)  # first kernel that reports the last program's end to a supervisor, and lets it pass descriptors
NOTICE = 1024  # bytes
PATIENCE = 1000  # milliseconds for helpers that end soon after the command, as those of multiprocessing do
REASONS = {
    errno.EBUSY: "a container or another tool supervises system calls already, and the kernel allows one",
    errno.EACCES: "the command gains rights by its file, which a filter would keep it from",
    errno.EINVAL: "this kernel has no seccomp user notification",
    errno.ENOSYS: "this kernel has no seccomp user notification",
}
MESSAGE = struct.Struct("<8sII256s")  # struct rk_lost_message
MAX_NAMED = 64
LOST_REASONS = {1: "plan", 2: "file", 3: "shim", 4: "unseen"}  # enum rk_lost


class Supervisor:
    """The supervisor of one run, from the start of its command to its end; it may turn out to be unavailable."""

    def __init__(self, run: Path, *, may_forbid_rights: bool, sees_exec: bool = True):
        self.state = _unsupported_reason()
        self._sees_exec = sees_exec  # a tracer does not see an exec that the supervisor handles
        self._run, self._may_forbid_rights = run, may_forbid_rights
        self._library: ctypes.CDLL | None = None
        self._listener = -1

    @property
    def is_on(self) -> bool:
        """Return whether it answers requests."""
        return self.state is not None and self.state.is_on

    def start(self, spawn: Callable[[], T]) -> T:
        """Call `spawn` so that the programs it starts are supervised, if the system allows it."""
        if self.state is not None:
            return spawn()
        try:
            self._library = _load_library()
        except OSError as error:
            self.state = off(str(error))
            return spawn()
        return self._start_on_thread(spawn)

    def _start_on_thread(self, spawn: Callable[[], T]) -> T:
        filtered: SimpleQueue[tuple[int, bool]] = SimpleQueue()
        supervised: SimpleQueue[bool] = SimpleQueue()
        outcome: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

        def work() -> None:
            filtered.put(self._filter())
            if supervised.get():
                result = _outcome_of(spawn)
                # This thread is the child's parent and runs on for a moment after join(): it blocks all signals, as
                # one delivered to it, such as SIGCHLD, would never wake the launcher.
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
                outcome.put(result)

        thread = threading.Thread(target=work, name="start of the command", daemon=True)
        thread.start()
        listener, forbids_rights = filtered.get()
        self.state = self._supervise(listener, forbids_rights)
        supervised.put(self.is_on)
        if not self.is_on:
            return spawn()
        value, error = outcome.get()
        thread.join()
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def _filter(self) -> tuple[int, bool]:
        """Return the listener's descriptor or a negative errno, and whether programs now gain no rights."""
        assert self._library is not None
        forbids = ctypes.c_int(0)
        listener = self._library.reprokit_filter(self._may_forbid_rights, self._sees_exec, ctypes.byref(forbids))
        return listener, bool(forbids.value)

    def _supervise(self, listener: int, forbids_rights: bool) -> Switch:
        """Start to answer, and return the state for run.json; the filtered thread waits without any request."""
        assert self._library is not None
        if listener < 0:
            return off(REASONS.get(-listener, f"the system refuses it ({os.strerror(-listener)})"))
        padded = os.fsencode(self._run).rjust(native.constants().RK_RUN_PATH, b"/")
        error = self._library.reprokit_supervise(padded, listener, forbids_rights)
        if error:
            with suppress(OSError):
                os.close(listener)
            return off(os.strerror(-error))
        self._listener = listener
        return NO_RIGHTS if forbids_rights else ON

    def has_programs(self) -> bool:
        """Return whether a program of the run outlives its command; those about to end are given a moment."""
        if self._library is None or not self.is_on:
            return False
        poller = select.poll()
        poller.register(self._listener, 0)  # hang-up, which poll always reports, means that no program is left
        return not poller.poll(PATIENCE)

    def stop(self) -> list[str]:
        """Stop the supervisor after the command's end; return warnings for the user."""
        if self._library is None or not self.is_on:
            return []
        text = ctypes.create_string_buffer(NOTICE)
        self._library.reprokit_unsupervise(text, ctypes.c_uint64(NOTICE))
        self._library = None
        return [os.fsdecode(text.value)] if text.value else []


def _outcome_of(spawn: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    try:
        return spawn(), None
    except BaseException as error:  # raised again by the waiting thread
        return None, error


def _unsupported_reason() -> Switch | None:
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if version and tuple(map(int, version.groups())) < KERNEL:
        return off(f"it needs Linux {KERNEL[0]}.{KERNEL[1]}")
    return None


def _load_library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(native.supervisor_path()))  # of this reprokit: native.require_shim()
    library.reprokit_unsupervise.restype = None
    library.reprokit_supervise.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
    return library


class LostProgramSocket:
    """The socket by which programs report that they could not reach the run directory; may be unavailable."""

    def __init__(self, run: Path):
        self.run_directory = run
        padded = os.fsencode(run).rjust(native.constants().RK_RUN_PATH, b"/")
        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_NONBLOCK)
        self._programs: list[OutOfReach] = []
        with suppress(OSError):
            self._socket.bind(f"\0reprokit-{native.check_in_python(padded):016x}")

    def receive(self) -> list[OutOfReach]:
        """Return every program reported so far, at most MAX_NAMED."""
        while len(self._programs) < MAX_NAMED:
            try:
                message = self._socket.recv(MESSAGE.size + 1)
            except OSError:  # no message is waiting
                break
            program = _decoded_message(message)
            if program is not None and program not in self._programs:
                self._programs.append(program)
        return self._programs

    def close(self) -> list[OutOfReach]:
        """Close the socket; return the programs reported."""
        programs = self.receive()
        self._socket.close()
        return programs


def _decoded_message(message: bytes) -> OutOfReach | None:
    """Return the program that a message reports; None if it is invalid, as any user can send one."""
    if len(message) != MESSAGE.size:
        return None
    magic, abi, number, identity = MESSAGE.unpack(message)
    if magic != b"RKLOST\0\0" or abi != native.constants().RK_ABI or number not in LOST_REASONS:
        return None
    name = identity.partition(b"\0")[0].decode("utf-8", "replace").removesuffix("@")  # as the supervisor signs it
    return OutOfReach(identity=name, reason=LOST_REASONS[number])
