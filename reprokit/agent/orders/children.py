"""Orders of child processes: which one ends first, by os.wait() and its relatives, and what polls of one found.

The n-th child that thread T starts is T/n. A forked child writes its process id into memory shared with its parent,
where the parent looks once it has ended: a proxy of os.fork() would be blamed for Python's warnings.
"""

from __future__ import annotations

import os
import posix  # its functions are not replaced, unlike those of os
import sys
import time
from _functools import partial  # type: ignore[import-not-found]  # functools imports six modules
from _thread import _count, _local
from itertools import count

from ..core.user_frames import MAX_DEPTH, is_own, is_users
from ..surroundings.call_sites import CallSites
from ..surroundings.directory_proxies import OsFunctionProxy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import Any

    from ..core.agent import Agent
    from ..core.patching import Function
    from .tracks import Orders
    from .turns import Choices

SIZE = 4  # bytes of a process id
MAX_CHILDREN = 1 << 16  # of a process; the order of further ones is not kept
NONE, NO_CHILDREN, UNKNOWN = "-", "!", "?"  # outcomes of a call: no child has ended, there are none, one without a name
SHORTEST_PAUSE, LONGEST_PAUSE = 0.0002, 0.01  # seconds between two looks whether a child has ended
_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT
# How to look whether a certain child has ended: the result has the form of the named function's.
_LOOKS: dict[str, Function] = {
    "wait": lambda pid, options: posix.waitpid(pid, os.WNOHANG),
    "waitpid": lambda pid, options: posix.waitpid(pid, options | os.WNOHANG),
    "wait3": lambda pid, options: posix.wait4(pid, options | os.WNOHANG),
    "wait4": lambda pid, options: posix.wait4(pid, options | os.WNOHANG),
    "waitid": lambda pid, options: posix.waitid(os.P_PID, pid, options | os.WNOHANG),
}


class ChildOrders:
    """Records or replays the order in which children of this process end, as far as the script asks for it."""

    def __init__(self, agent: Agent) -> None:
        self._agent, self.attempt = agent, agent.attempt
        self._orders: Orders | None = None  # loaded with the first child
        self._pids: Any = ()  # process ids by number of the child, in shared memory; 0 if not known so far
        self._thread = _local()  # .number: of the child that this thread forks
        self._forget()

    def _forget(self) -> None:
        """In a forked child: start afresh."""
        self._numbers = count()
        self._names: dict[int, str] = {}
        self._named: dict[str, int] = {}  # the numbers
        self._started: dict[str, int] = {}  # by thread: children
        self._living = 0  # children whose end was not waited for so far

    def watch(self, started: list[Function]) -> None:
        """Watch starts of children, and the functions that wait for them; call sites call all of ``started``."""
        started.append(self._note_start)
        os.register_at_fork(before=self._before_fork, after_in_child=self._in_child)
        for name in _LOOKS:
            setattr(os, name, WaitProxy(getattr(os, name), self))
        self._agent.listeners.append((("subprocess",), self._watch_programs))
        self._agent.listeners.append((("multiprocessing.process",), self._watch_processes))

    # Names of children

    def _number(self) -> int:
        """Number and name the child that this thread is about to start."""
        self._living += 1
        if self._orders is None:
            try:
                import mmap
                import threading  # noqa: F401  its import begins the orders of threads

                from .tracks import orders_of

                self._orders = orders_of(self._agent)
                self._pids = memoryview(mmap.mmap(-1, SIZE * MAX_CHILDREN)).cast("i")
            except ImportError:  # of a process that became a user who may not read Python's files
                return MAX_CHILDREN
        thread, number = self._orders.actors.current.name, next(self._numbers)
        self._started[thread] = started = self._started.get(thread, 0) + 1
        if number < MAX_CHILDREN:
            self._names[number] = name = f"{thread}/{started}"
            self._named[name] = number
        return number

    def _in_child(self) -> None:
        number = self._thread.__dict__.pop("number", None)
        if number is not None and number < MAX_CHILDREN:
            self._pids[number] = os.getpid()
        self._orders, self._pids = None, ()
        self._forget()

    def _before_fork(self) -> None:
        self._thread.number = MAX_CHILDREN
        if not is_own(sys._getframe(1).f_code.co_filename):  # a proxy of call sites: _note_start follows
            self._thread.number = self.attempt(self._number)

    def _note_start(self, function: str, pid: int) -> None:
        """Name a child that was started by another function than a fork of the script's."""
        number = MAX_CHILDREN if function == "system" else self._number()
        if number < MAX_CHILDREN:
            self._pids[number] = pid

    def name_of(self, pid: int) -> str:
        """Return the name of a child, the last one that had this process id."""
        pids, wanted = bytes(self._pids[: len(self._names)]), pid.to_bytes(SIZE, sys.byteorder)
        position = pids.rfind(wanted)
        while position > 0 and position % SIZE:
            position = pids.rfind(wanted, 0, position + SIZE - 1)
        return UNKNOWN if position < 0 else self._names[position // SIZE]

    # Waits

    def reaped(self, result: Any, options: int) -> None:
        """Count a child whose end a call has found, unless it can be found again, or may only be stopped."""
        is_end = result and result[0] and not options & (os.WNOWAIT | os.WUNTRACED | os.WCONTINUED)
        if is_end and self.name_of(result[0]) is not UNKNOWN:
            self._living -= 1

    def waits_for_any(self, options: int) -> bool:
        """Return whether it varies what a wait for any child finds: not if only one exists, and it is waited for."""
        has_threads = _count() > 0  # others, which may fork meanwhile
        return self._living > 1 or has_threads or bool(options & os.WNOHANG)

    def choices(self, kind: str, caller: FrameType) -> Choices | None:
        """Return the outcomes of these calls at the caller's line; None if they cannot be recorded."""
        if self._orders is None:
            if self._living > 1:
                self._agent.warn(
                    "the order in which children end is not kept: modules of Python cannot be imported",
                    "order-not-kept",
                )
            return None
        if not is_users(caller.f_code.co_filename):
            return None
        from .callers import place

        if _handles_signal(caller):  # another signal may interrupt it at any point
            self._orders.warn(
                f"the order in which a handler of SIGCHLD finds children is not kept ({place(caller)})",
                "order-not-kept",
            )
            return None
        return self._orders.choices(kind, caller)

    def record(self, choices: Choices, call: Function) -> Any:
        """Wait for a child, and record which one ended."""
        try:
            result = call()
        except ChildProcessError:
            choices.note(NO_CHILDREN)
            raise
        name = self.name_of(result[0]) if result and result[0] else NONE
        choices.note(name)
        if name is UNKNOWN and self._orders is not None:
            self._orders.warn(
                "the script waited for children that have no name: which one ended is not kept", "order-not-kept"
            )
        return result

    def replay(self, choices: Choices, call: Function, look: Function, polls: bool) -> Any:
        """Wait for the child that ended in the recording; the call's own result if that is not known."""
        text = choices.next()
        if text == NONE:
            return None
        if text is not None and text not in (NO_CHILDREN, UNKNOWN):
            result = self._wait_for(choices, text, look, polls)
            if result is not None:
                return result
            choices.give_up()
        return call()

    def _wait_for(self, choices: Choices, name: str, look: Function, polls: bool) -> Any:
        """Wait until look() returns a status of the child of this name; return None once that takes too long.

        While no child has ended, the script would wait without reprokit too, unless it polls.
        """
        from .waits import Wait

        orders: Any = self._orders
        pause = SHORTEST_PAUSE
        with Wait(orders, choices.name, f"child {name}", is_external=True) as wait:
            while True:
                number = self._named.get(name, MAX_CHILDREN)
                pid = self._pids[number] if number < MAX_CHILDREN else 0
                try:
                    result = look(pid) if pid else None
                    if result and result[0]:
                        return result
                    is_urgent = polls or posix.waitid(os.P_ALL, 0, _ENDED)
                except ChildProcessError:  # another thread took it
                    return None
                if not is_urgent:
                    wait.restart()
                elif wait.is_over():
                    return None
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    # Polls of one child

    def _watch_programs(self, name: str, module: Any) -> None:
        """Patch subprocess.Popen."""
        from ..core.patching import replace

        replace(module.Popen, "poll", self._make_poll)
        replace(module.Popen, "wait", lambda original: self._make_wait(original, module.TimeoutExpired))

    def _watch_processes(self, name: str, module: Any) -> None:
        """Patch multiprocessing.Process."""
        from ..core.patching import replace

        process = module.BaseProcess
        replace(process, "is_alive", self._make_is_alive)
        process.exitcode = property(self._make_poll(process.exitcode.fget), doc=process.exitcode.__doc__)

    def _make_poll(self, original: Function) -> Function:
        def poll(process: Any) -> Any:
            choices = self._attempt_choices("poll", sys._getframe(1))
            has_ended = choices is None or choices.poll(lambda: original(process) is not None, is_external=True)
            return original(process) if has_ended else None

        return poll

    def _make_is_alive(self, original: Function) -> Function:
        def is_alive(process: Any) -> bool:
            choices = self._attempt_choices("poll", sys._getframe(1))
            return (
                bool(original(process))
                if choices is None
                else not choices.poll(lambda: not original(process), is_external=True)
            )

        return is_alive

    def _make_wait(self, original: Function, timeout_error: Any) -> Function:
        def wait(process: Any, timeout: Any = None) -> Any:
            def has_ended() -> bool:
                try:
                    original(process, timeout)
                except timeout_error:
                    return False
                return True

            choices = None if timeout is None else self._attempt_choices("poll", sys._getframe(1))
            if choices is None or choices.poll(has_ended, is_external=True):
                return original(process, None if choices is not None else timeout)
            raise timeout_error(process.args, timeout)

        return wait

    def _attempt_choices(self, kind: str, caller: FrameType) -> Choices | None:
        return self.attempt(self.choices, kind, caller)  # type: ignore[no-any-return]


def start(agent: Agent) -> None:
    """Watch the children that the call sites report."""
    ChildOrders(agent).watch(agent.shared[CallSites].started)


class WaitProxy(OsFunctionProxy):
    """Proxy of os.wait and its relatives."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        recorder, call = self._recorder, partial(self._original, *arguments, **keywords)
        options = arguments[-1] if arguments else 0
        choices = recorder.attempt(self._choices, arguments, options, sys._getframe(1))
        if choices is None:
            result = call()
        elif not choices.is_replay:
            result = recorder.record(choices, call)
        else:
            look = partial(_LOOKS[self.__name__], options=options)
            result = recorder.replay(choices, call, look, options & os.WNOHANG)
        recorder.attempt(recorder.reaped, result, options)
        return _nothing(self.__name__) if result is None else result

    def _choices(self, arguments: Sequence[Any], options: int, caller: FrameType) -> Choices | None:
        """Return the outcomes of this call; None if it waits for one child, or if its outcomes cannot be recorded."""
        if self.__name__ == "waitid":
            is_any = arguments[0] in (os.P_ALL, os.P_PGID)
        else:
            is_any = len(arguments) < 2 or arguments[0] <= 0
        if not (self._recorder.waits_for_any(options) if is_any else options & os.WNOHANG):
            return None
        choices: Choices | None = self._recorder.choices("child", caller)
        return choices


def _nothing(name: str) -> Any:
    """Return what os.wait or its relative returns if no child has ended."""
    if name == "waitid":
        return None
    if name in ("wait", "waitpid"):
        return 0, 0
    from resource import struct_rusage

    return 0, 0, struct_rusage([0] * struct_rusage.n_sequence_fields)


def _handles_signal(frame: FrameType | None) -> bool:
    """Return whether the script's handler of SIGCHLD is on the stack."""
    signal: Any = sys.modules["_signal"]  # signal's own getsignal makes an enum of each answer
    code = getattr(signal.getsignal(signal.SIGCHLD), "__code__", None)
    for _ in range(MAX_DEPTH if code is not None else 0):
        if frame is None:
            break
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False
