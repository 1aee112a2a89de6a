"""Runs the child as if reprokit were not there: signals, job control, exit status.

The child stays in reprokit's process group and keeps its terminal and descriptors. Signals to the whole
group, from the terminal (Ctrl-C, Ctrl-\\, Ctrl-Z, a hangup) or from another process, reach the child
directly; signals to reprokit alone are forwarded. Once the child has started, these signals are blocked
here and received by sigtimedwait, which tells whether the terminal sent them.

A signal does not tell whether it was sent to the whole group (`kill -- -GROUP`, `kill %1`, timeout(1), a batch
system). A watching process of the same group finds out, as it receives those signals too. If such a signal were
forwarded, a training that saves on SIGTERM would save twice, the second time within the first.
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

from reprokit.model.run import signal_name
from reprokit.model.states import Switch
from reprokit.run.command import Command
from reprokit.run.kernel import end_with_parent, forbid_core_dump, without_randomization
from reprokit.run.supervisor import Supervisor

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
INTERRUPTIONS = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})
TERMINAL_STOPS = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
POLL = 0.2  # seconds between two calls of the watches, which may end the child
GRACE = 10.0  # seconds between SIGTERM and SIGKILL
KIB = 1024  # the unit of ru_maxrss
RECORD = struct.Struct("<id")  # a signal's number and the time at which it arrived
PATIENCE = 0.05  # seconds between a group signal's arrival here and at the watching process
RECENT = 0.5  # seconds after which it counts as a separate signal
NAME = "signal-watch"  # of the watching process, at most 15 characters


class ExitStatus(msgspec.Struct, frozen=True):
    """How the child ended: by an exit code or by a signal."""

    exit_code: int | None = None
    signal_number: int | None = None
    pid: int = 0  # 0: it was no process of its own

    @property
    def signal_name(self) -> str | None:
        return None if self.signal_number is None else signal_name(self.signal_number)

    @property
    def words(self) -> str:
        """Return the end of a sentence: `by SIGKILL`, or `with exit status 1`."""
        return f"with exit status {self.exit_code}" if self.signal_number is None else f"by {self.signal_name}"


class ResourceUsage(msgspec.Struct, frozen=True):
    """The resources used by a command and by those of its processes that were waited for."""

    processor: float = 0.0  # seconds of processor time, the launcher's own included
    memory: int = 0  # peak bytes of the process that used most


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
        self._early_signals: list[int] = []
        self.pid = 0
        self.interrupted = False  # whether it, or this process, was sent a signal that asks to end
        self.used = ResourceUsage()  # set when the child has ended
        self._start_time = time.process_time()
        forwarded_signals = _not_ignored(FORWARDED)
        # Signal handlers, not a blocked mask, until the child has started: it would inherit the mask.
        for number in forwarded_signals:
            signal.signal(number, self._note_early_signal)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, the exit status would be lost

        def spawn() -> tuple[Switch | None, int]:
            with nullcontext(None) if randomized else without_randomization() as randomization:
                return randomization, _spawn(command, directory, environment)

        self.address_randomization, self.pid = spawn() if supervisor is None else supervisor.start(spawn)
        self._awaited_signals = {*forwarded_signals, signal.SIGCHLD}
        signal.pthread_sigmask(signal.SIG_BLOCK, self._awaited_signals)
        self._group = GroupWatch(forwarded_signals)
        for early_signal in self._early_signals:
            self.send(early_signal)

    def _note_early_signal(self, number: int, _frame: FrameType | None) -> None:
        self._early_signals.append(number)

    def send(self, number: int) -> None:
        """Send the child a signal; it may have ended already."""
        with suppress(OSError):
            os.kill(self.pid, number)

    def wait(self, watches: Sequence[Callable[[Child], None]] = ()) -> ExitStatus:
        """Wait for the child to end; `watches` are called a few times per second and may send it signals."""
        while (exit_status := self._changed_status()) is None:
            for watch in watches:
                watch(self)
            self._take_signal(POLL if watches else None)
        self._group.close()
        return exit_status

    def _changed_status(self) -> ExitStatus | None:
        """Return how the child ended; None while it runs. Stops this process if the terminal stopped the child."""
        pid, status, usage = os.wait4(self.pid, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            return None
        if os.WIFSTOPPED(status):
            if os.WSTOPSIG(status) in TERMINAL_STOPS:
                os.kill(os.getpid(), signal.SIGSTOP)
                self.send(signal.SIGCONT)
            return None
        launcher_time = time.process_time() - self._start_time
        self.used = ResourceUsage(usage.ru_utime + usage.ru_stime + launcher_time, usage.ru_maxrss * KIB)
        if os.WIFSIGNALED(status):
            return ExitStatus(signal_number=os.WTERMSIG(status), pid=self.pid)
        return ExitStatus(exit_code=os.WEXITSTATUS(status))

    def _take_signal(self, timeout: float | None) -> None:
        """Receive one signal, and forward it unless it was sent to the whole group."""
        if timeout is None:
            received: signal.struct_siginfo | None = signal.sigwaitinfo(self._awaited_signals)
        else:
            received = signal.sigtimedwait(self._awaited_signals, timeout)
        if received is None or received.si_signo == signal.SIGCHLD or received.si_code > 0:
            self._note(0 if received is None else received.si_signo)
            return  # a timeout, the child's own signal, or one from the terminal
        self._note(received.si_signo)
        if not self._group.has_seen(received.si_signo):
            self.send(received.si_signo)

    def _note(self, number: int) -> None:
        self.interrupted |= number in INTERRUPTIONS


class Termination:
    """Terminates a child once a condition holds, and kills it if it does not end."""

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
    """Return the signals that the caller does not ignore, as nohup does SIGHUP: the child must ignore those too."""
    return {number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN}


def _spawn(command: Command, directory: Path, environment: Mapping[str, str]) -> int:
    # Popen restores the defaults of SIGPIPE and SIGXFSZ, which Python ignores (restore_signals). With
    # close_fds=False the child inherits reprokit's descriptors; Python's own are close-on-exec. The Popen
    # object is dropped: this module calls waitpid itself, to see the child stop as well.
    child = subprocess.Popen(
        command.arguments, executable=command.program, cwd=directory, env=environment, close_fds=False
    )
    child.returncode = 0  # or Popen's finalizer would wait for this child
    return child.pid


class LateSignals:
    """Handles signals after the child's end: the remaining work is shortened, but the run is closed."""

    def __init__(self) -> None:
        self.interrupted = False
        for number in _not_ignored(INTERRUPTIONS):
            signal.signal(number, self._note_interruption)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED | {signal.SIGCHLD})

    def _note_interruption(self, _number: int, _frame: FrameType | None) -> None:
        self.interrupted = True


def die_by(number: int) -> NoReturn:
    """End this process by the signal that ended the child, so that the caller sees the same wait status."""
    forbid_core_dump()
    with suppress(ValueError, OSError):  # SIGKILL and SIGSTOP have no handler to set
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # reached if the signal's default action does not end a process


class GroupWatch:
    """A process that reports which signals are sent to the whole process group."""

    def __init__(self, numbers: Collection[int]):
        """Start the watching process; the caller has blocked the signals already."""
        self._reader, self._pid = -1, 0
        with suppress(OSError):  # at the limit of descriptors or processes every signal is forwarded
            self._reader, writer = os.pipe()
            with closing_descriptor(writer):
                self._pid = os.fork()
                if self._pid == 0:
                    _watch(writer, numbers)

    def has_seen(self, number: int) -> bool:
        """Return whether the whole group was sent this signal within the last moments."""
        if not self._pid:
            return False
        deadline = time.monotonic() + PATIENCE
        while select.select([self._reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
            data = os.read(self._reader, RECORD.size)
            if len(data) < RECORD.size:
                return False
            received, arrival = RECORD.unpack(data)
            if received == number and time.monotonic() - arrival < RECENT:
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


def _rename_process() -> None:
    """Change the process's name, so that `pkill reprokit` does not match the watching process."""
    with suppress(OSError, ValueError, IndexError):
        Path("/proc/self/comm").write_text(NAME)
        after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = map(int, after_name[45:47])  # arg_start and arg_end of proc_pid_stat(5)
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(NAME.encode().ljust(end - start, b"\0")[: end - start])


def _watch(writer: int, numbers: Collection[int]) -> NoReturn:
    """Write each received signal to the pipe; all other descriptors are closed, as they are the user's."""
    try:
        end_with_parent()
        _rename_process()
        for name in os.listdir("/proc/self/fd"):
            if int(name) != writer:
                with suppress(OSError):
                    os.close(int(name))
        while True:
            number = signal.sigwait(numbers)
            os.write(writer, RECORD.pack(number, time.monotonic()))
    finally:
        os._exit(1)
