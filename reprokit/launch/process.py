"""Runs the child as if reprokit were not there: signals, job control, exit status.

The child stays in reprokit's process group, with its terminal and its descriptors. What is sent to the
whole group, by the terminal (Ctrl-C, Ctrl-\\, Ctrl-Z, a hangup) or by somebody, reaches the child by
itself; what is sent to reprokit alone is forwarded. From the child's start on these signals are blocked
here and taken by sigtimedwait, which tells what comes from the terminal.

A signal does not say whether it was sent to the whole group (`kill -- -GROUP`, `kill %1`, timeout(1), a batch system).
A process of the same group that waits for nothing else does. Were such a signal forwarded too, a training that saves on
SIGTERM would save twice, the second time inside the first.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec

from reprokit.launch.command import Command
from reprokit.launch.kernel import end_with_parent, forbid_core_dump, without_randomization
from reprokit.launch.supervisor import Supervisor
from reprokit.model.states import Switch

FORWARDED = frozenset(
    {
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGTSTP,
    }
)
TERMINAL_STOPS = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
POLL = 0.2  # seconds between two looks at what may have to end the child
GRACE = 10.0  # seconds between SIGTERM and SIGKILL
KIB = 1024  # the unit of ru_maxrss
RECORD = struct.Struct("<id")  # a signal's number and the time at which it came
PATIENCE = 0.05  # seconds that a signal for the group may take from one process to the other
RECENT = 0.5  # seconds after which it was another one
NAME = "signal-watch"  # of the process, at most 15 characters


class ExitStatus(msgspec.Struct, frozen=True):
    """How the child ended: an exit code or the number of a signal."""

    exit_code: int | None = None
    signal_number: int | None = None

    @property
    def signal_name(self) -> str | None:
        if self.signal_number is None:
            return None
        try:
            return signal.Signals(self.signal_number).name
        except ValueError:  # a real-time signal
            return f"SIG{self.signal_number}"

    @property
    def words(self) -> str:
        """`by SIGKILL`, or `with exit status 1`."""
        return f"with exit status {self.exit_code}" if self.signal_number is None else f"by {self.signal_name}"


class ResourceUsage(msgspec.Struct, frozen=True):
    """What a command took, with those of its processes that were waited for."""

    processor: float = 0.0  # seconds of processors, with what the launcher did meanwhile
    memory: int = 0  # bytes at its peak, of the process that had most


class Child:
    """The training's process, from its start to its end."""

    def __init__(
        self,
        command: Command,
        directory: Path,
        environment: Mapping[str, str],
        supervisor: Supervisor | None = None,
        *,
        randomized: bool = False,
    ):
        self._early: list[int] = []
        self.pid = 0
        self.used = ResourceUsage()  # known at its end
        self._began = time.process_time()
        watched = _not_ignored(FORWARDED)
        # Handlers, not a blocked mask, until the child is there: it would inherit the mask.
        for number in watched:
            signal.signal(number, self._note)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would swallow the exit status

        def spawn() -> tuple[Switch | None, int]:
            with nullcontext(None) if randomized else without_randomization() as outcome:
                return outcome, _spawn(command, directory, environment)

        self.address_randomization, self.pid = spawn() if supervisor is None else supervisor.start(spawn)
        self._taken = {*watched, signal.SIGCHLD}
        signal.pthread_sigmask(signal.SIG_BLOCK, self._taken)
        self._group = GroupWatch(watched)
        for early in self._early:
            self.send(early)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._early.append(number)

    def send(self, number: int) -> None:
        """A signal for the child, which may have ended already."""
        with suppress(OSError):
            os.kill(self.pid, number)

    def wait(self, watches: Sequence[Callable[[Child], None]] = ()) -> ExitStatus:
        """Wait for the child's end; ``watches`` are called a few times a second, and may send it signals."""
        while (status := self._changed_status()) is None:
            for watch in watches:
                watch(self)
            self._take_signal(POLL if watches else None)
        self._group.close()
        return status

    def _changed_status(self) -> ExitStatus | None:
        """Return how the child ended; None while it has not. Stops with it when the terminal stopped it."""
        pid, status, used = os.wait4(self.pid, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            return None
        if os.WIFSTOPPED(status):
            if os.WSTOPSIG(status) in TERMINAL_STOPS:
                os.kill(os.getpid(), signal.SIGSTOP)
                self.send(signal.SIGCONT)
            return None
        meanwhile = time.process_time() - self._began
        self.used = ResourceUsage(used.ru_utime + used.ru_stime + meanwhile, used.ru_maxrss * KIB)
        if os.WIFSIGNALED(status):
            return ExitStatus(signal_number=os.WTERMSIG(status))
        return ExitStatus(exit_code=os.WEXITSTATUS(status))

    def _take_signal(self, timeout: float | None) -> None:
        """Take one signal; forward it unless it was sent to the whole group."""
        if timeout is None:
            received: signal.struct_siginfo | None = signal.sigwaitinfo(self._taken)
        else:
            received = signal.sigtimedwait(self._taken, timeout)
        if received is None or received.si_signo == signal.SIGCHLD or received.si_code > 0:
            return  # nothing, the child's own, or the terminal's
        if not self._group.has_seen(received.si_signo):
            self.send(received.si_signo)


class Termination:
    """Terminates a child once something says so, and kills it where that does not help."""

    def __init__(self, must_end: Callable[[], bool]):
        self._must_end = must_end
        self._deadline: float | None = None

    def __call__(self, child: Child) -> None:
        if self._deadline is None:
            if self._must_end():
                self._deadline = time.monotonic() + GRACE
                child.send(signal.SIGTERM)
        elif time.monotonic() > self._deadline:
            child.send(signal.SIGKILL)


def _not_ignored(numbers: frozenset[signal.Signals]) -> set[signal.Signals]:
    """Return those that the caller does not ignore, as nohup does with SIGHUP: they stay ignored for the child."""
    return {number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN}


def _spawn(command: Command, directory: Path, environment: Mapping[str, str]) -> int:
    # Popen gives SIGPIPE and SIGXFSZ, which Python ignores, their default back (restore_signals), and
    # with close_fds=False the child has the descriptors that reprokit was given: Python's own are
    # close-on-exec. Its object is dropped: waitpid is called here, to see the child stop as well.
    child = subprocess.Popen(
        command.arguments, executable=command.program, cwd=directory, env=environment, close_fds=False
    )
    child.returncode = 0  # for its finalizer: this child is not its to wait for
    return child.pid


class LateSignals:
    """Signals that come after the child's end: the rest of the work is cut short, the run still closed."""

    def __init__(self) -> None:
        self.asked = False
        for number in _not_ignored(frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})):
            signal.signal(number, self._ask)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED | {signal.SIGCHLD})

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True


def die_by(number: int) -> NoReturn:
    """End by a signal, so that the caller sees the wait status that the child had."""
    forbid_core_dump()
    with suppress(ValueError, OSError):  # SIGKILL and SIGSTOP have no handler to set
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # a signal whose default is not to end the process


class GroupWatch:
    """The process that watches the group, from its start to its end."""

    def __init__(self, numbers: Collection[int]):
        """Start to watch; the numbers are blocked already."""
        self._reader, self._pid = -1, 0
        with suppress(OSError):  # no more descriptors or processes are allowed: every signal is forwarded
            self._reader, writer = os.pipe()
            with closing_descriptor(writer):
                self._pid = os.fork()
                if self._pid == 0:
                    _watch(writer, numbers)

    def has_seen(self, number: int) -> bool:
        """Return whether the group was sent this signal just now."""
        if not self._pid:
            return False
        deadline = time.monotonic() + PATIENCE
        while select.select([self._reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
            data = os.read(self._reader, RECORD.size)
            if len(data) < RECORD.size:
                return False
            seen, when = RECORD.unpack(data)
            if seen == number and time.monotonic() - when < RECENT:
                return True
        return False

    def close(self) -> None:
        """End the watching process."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            os.close(self._reader)


@contextmanager
def closing_descriptor(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)


def _take_another_name() -> None:
    """Be no process that `pkill reprokit` finds: what finds reprokit by its name does not mean the group."""
    with suppress(OSError, ValueError, IndexError):
        Path("/proc/self/comm").write_text(NAME)
        after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = map(int, after_name[45:47])  # arg_start and arg_end of proc_pid_stat(5)
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(NAME.encode().ljust(end - start, b"\0")[: end - start])


def _watch(writer: int, numbers: Collection[int]) -> NoReturn:
    """Write down each signal that comes; holds nothing of the user's open meanwhile."""
    try:
        end_with_parent()
        _take_another_name()
        for name in os.listdir("/proc/self/fd"):
            if int(name) != writer:
                with suppress(OSError):
                    os.close(int(name))
        while True:
            number = signal.sigwait(numbers)
            os.write(writer, RECORD.pack(number, time.monotonic()))
    finally:
        os._exit(1)
