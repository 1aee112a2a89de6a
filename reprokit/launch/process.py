"""Runs the child as if reprokit were not there: signals, job control, exit status.

The child stays in reprokit's process group, with its terminal and its descriptors. What is sent to the
whole group, by the terminal (Ctrl-C, Ctrl-\\, Ctrl-Z, a hangup) or by somebody, reaches the child by
itself; what is sent to reprokit alone is forwarded. From the child's start on these signals are blocked
here and taken by sigtimedwait, which tells what comes from the terminal.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec

from reprokit.launch.command import Command
from reprokit.launch.group import GroupWatch
from reprokit.launch.personality import forbid_core_dump, without_randomization
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


class Ended(msgspec.Struct, frozen=True):
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


class Used(msgspec.Struct, frozen=True):
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
        self.used = Used()  # known at its end
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

    def wait(self, watch: Callable[[Child], None] | None = None) -> Ended:
        """Wait for the child's end; ``watch`` is called a few times a second, and may send it signals."""
        while (status := self._changed_status()) is None:
            if watch is not None:
                watch(self)
            self._take_signal(None if watch is None else POLL)
        self._group.close()
        return status

    def _changed_status(self) -> Ended | None:
        """How the child ended; None while it has not. Stops with it when the terminal stopped it."""
        pid, status, used = os.wait4(self.pid, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            return None
        if os.WIFSTOPPED(status):
            if os.WSTOPSIG(status) in TERMINAL_STOPS:
                os.kill(os.getpid(), signal.SIGSTOP)
                self.send(signal.SIGCONT)
            return None
        meanwhile = time.process_time() - self._began
        self.used = Used(used.ru_utime + used.ru_stime + meanwhile, used.ru_maxrss * KIB)
        if os.WIFSIGNALED(status):
            return Ended(signal_number=os.WTERMSIG(status))
        return Ended(exit_code=os.WEXITSTATUS(status))

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
    """Those that the caller does not ignore, as nohup does with SIGHUP: they stay ignored for the child."""
    return {number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN}


def _spawn(command: Command, directory: Path, environment: Mapping[str, str]) -> int:
    # Popen gives SIGPIPE and SIGXFSZ, which Python ignores, their default back (restore_signals), and
    # with close_fds=False the child has the descriptors that reprokit was given: Python's own are
    # close-on-exec. Its object is dropped: waitpid is called here, to see the child stop as well.
    child = subprocess.Popen(
        command.arguments, executable=command.program, cwd=directory, env=environment, close_fds=False
    )
    child.returncode = 0  # for its finaliser: this child is not its to wait for
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
