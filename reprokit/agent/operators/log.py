"""Logs operator calls of all frameworks: digests of inputs and outputs, place, thread and step.

A call takes 32 bytes in answers/PID-N.calls; PID-N.names says what its numbers stand for (docs/format.md). A call may
also be saved with its inputs and outputs, as safetensors.
"""

from __future__ import annotations

import os
import struct
import sys
from _thread import _local, get_ident
from importlib import import_module

from ..capture.store import Part, index_of, write_tensors
from ..core.json_text import to_json
from ..core.step_window import StepWindow
from ..events.steps import UpdateDone
from ..orders.actors import name_of
from ..questions import ANSWERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Protocol

    from ..core.agent import Agent
    from ..events.steps import Events, Handler, TrainingEvent

    class CallSource(Protocol):
        """Observes the calls of a framework."""

        def begin(self) -> None:
            """Install the observers, once."""

        def watch(self, is_on: bool) -> None:
            """Start or stop logging."""


FORMAT = 1
NOT_LOGGED = "operators-not-logged"  # code of a warning
CALL = struct.Struct("<IIHHIQQ")  # operator, place, thread, flags, step, digests of inputs and outputs
NO_OUTPUTS, DRAWS, UNREAD = 1, 2, 4  # flags; UNREAD: a tensor was unreadable and is not in the digest
MAX_CALLS = 1 << 20  # per process
MAX_THREADS = 1 << 16
MAX_NAMES = 100_000  # each of operators, places and threads
MAX_SAVED = 64  # calls
MAX_BYTES = 1 << 30  # of all inputs saved by a process
BUFFERED = 4096  # calls until they are flushed
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


_SOURCES = {"jax": "jax.log", "torch": "pytorch.log", "tensorflow": "tensorflow.log"}


def listener(agent: Agent, question: Mapping[str, Any], framework: str, _events: Events | None) -> CallLog | None:
    """Return the log of this framework's calls; None if they cannot be seen."""
    if framework not in _SOURCES:
        return None
    log = CallLog(agent, question)
    source: CallSource | None = import_module(f"{__package__}.{_SOURCES[framework]}").source(log)
    if source is None:
        return None
    log.begin(source)
    return log


class LogFiles:
    """The two files of this process: records of fixed size, and a line of JSON for each name."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.forget()

    def forget(self) -> None:
        """Start new, empty files; in a forked child these are its own."""
        self.calls: list[Any] = []
        self._names: list[str] = []
        self._numbers: dict[str, dict[Any, int]] = {"operator": {}, "place": {}, "thread": {}}
        self._descriptors: tuple[int, int] | None = None
        self._stem = ""
        self.count = 0
        self.thread = _CallingThread(self.number)

    def number(self, kind: str, key: Any, describe: Callable[..., dict[str, Any]], *arguments: Any) -> int:
        """Return the number of an operator, place or thread; its name is written before the next calls."""
        numbers = self._numbers[kind]
        assigned = numbers.get(key)
        if assigned is None:
            if len(numbers) >= MAX_NAMES:
                raise OverflowError(f"there are more than {MAX_NAMES} {kind}s")
            assigned = numbers[key] = len(numbers)
            self._names.append(to_json({"kind": kind, "number": assigned, **describe(*arguments)}) + "\n")
        return assigned

    def write(self) -> None:
        """Flush the buffered calls and names."""
        calls, self.calls = [CALL.pack(*call[:5], *map(int, call[5:])) for call in self.calls], []
        names, self._names = self._names, []
        if not calls:
            self._names = names
            return
        for descriptor, data in zip(self._open(), ("".join(names).encode(), b"".join(calls))):
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]

    @property
    def stem(self) -> str:
        """The path of this process's files without their endings."""
        self._open()
        return self._stem

    def _open(self) -> tuple[int, int]:
        if self._descriptors is None:
            names = None
            number = 0
            while names is None:
                self._stem = f"{self._agent.run}/{ANSWERS}/{os.getpid()}-{number}"
                try:
                    names = os.open(f"{self._stem}.names", _NEW | os.O_APPEND, 0o600)
                except FileExistsError:
                    number += 1
            line = {"kind": "process", "format": FORMAT, "identity": self._agent.journal.identity}
            os.write(names, (to_json(line) + "\n").encode())
            self._descriptors = names, os.open(f"{self._stem}.calls", _NEW | os.O_APPEND, 0o600)
        return self._descriptors


class CallLog:
    """Logs the operator calls of this process within the steps of the question."""

    def __init__(self, agent: Agent, question: Mapping[str, Any]) -> None:
        self.agent = agent
        self._window = StepWindow(question["steps"])
        self._files = LogFiles(agent)
        self.number = self._files.number
        self.eager = bool(question.get("eager"))  # execute what XLA compiles operator by operator
        self._call_to_save: Mapping[str, Any] | None = question["operators"].get("keep")
        self._calls_left, self._bytes_left = MAX_SAVED, MAX_BYTES
        self._source: CallSource | None = None

    def begin(self, source: CallSource) -> None:
        """Install the source of calls; log from now on if the first step is asked for."""
        import atexit

        self._source = source
        source.begin()
        os.register_at_fork(after_in_child=self._files.forget)
        atexit.register(self.agent.attempt, self._files.write)
        if self._window.is_open:
            source.watch(True)

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {UpdateDone: self._updated}

    def _updated(self, event: UpdateDone) -> None:
        was_open = self._window.is_open
        if self._window.updated(event.optimizer):
            self._files.write()
            if self._window.is_open != was_open and self._source is not None:
                self._source.watch(self._window.is_open)

    def put(self, call: int, place: int, flags: int, inputs: Any, outputs: Any) -> None:
        """Log a call of an operator at a place, both given by their numbers.

        Digests that are no integers yet are converted when the calls are written.
        """
        files = self._files
        if files.count >= MAX_CALLS:
            self.agent.warn(f"calls of operators beyond {MAX_CALLS} of a process are not logged", "operators-cut")
            return
        files.count += 1
        files.calls.append((call, place, files.thread.number, flags, self._window.step, inputs, outputs))
        if len(files.calls) >= BUFFERED:
            files.write()

    # Calls saved with inputs and outputs

    def saves(self, name: str, where: list[Any]) -> bool:
        """Return whether a call's inputs and outputs are to be saved."""
        asked = self._call_to_save
        if asked is None or name != asked["operator"] or self._calls_left <= 0:
            return False
        return bool((list(where[0][:2]) if where else []) == asked["place"])

    def reserve(self, size: int) -> bool:
        """Count a call as saved; return whether its inputs of this many bytes are within the limit."""
        self._calls_left -= 1
        self._bytes_left -= size
        return self._bytes_left > 0

    def save(self, inputs: list[Part], outputs: list[Part]) -> None:
        """Save the inputs and outputs of the call that is logged next."""
        for kind, parts in (("inputs", inputs), ("outputs", outputs)):
            with self._new_file(kind) as file:
                write_tensors(file, index_of(parts), parts)

    def save_call(self, call: Mapping[str, Any]) -> None:
        """Save how the call that is logged next can be executed again."""
        with self._new_file("call") as file:
            file.write(to_json(call).encode())

    def _new_file(self, kind: str) -> Any:
        return open(os.open(f"{self._files.stem}-{self._files.count}.{kind}", _NEW, 0o600), "wb", buffering=0)


class _CallingThread(_local):
    """The number of the calling thread. Its ident is no key: once a thread has ended, others get its ident."""

    def __init__(self, number: Callable[..., int]) -> None:
        threading: Any = sys.modules.get("threading")
        if threading is None or threading.main_thread().ident == get_ident():
            name = "m"
        else:
            thread = threading._active.get(get_ident())
            name = "engine" if thread is None else name_of(thread)  # "engine": not a thread of Python's
        self.number = number("thread", name, _named, name) % MAX_THREADS


def _named(name: str) -> dict[str, Any]:
    return {"name": name}
