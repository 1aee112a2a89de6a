"""The log of calls of operators, whatever framework makes them: digests of inputs and outputs, place, thread and step.

A call takes 32 bytes in answers/PID-N.calls; PID-N.names says what its numbers stand for (docs/format.md). A call may
also be kept whole, its inputs and outputs as safetensors.
"""

from __future__ import annotations

import os
import struct
import sys
from _thread import get_ident
from importlib import import_module

from ..capture.store import Part, index_of, write_tensors
from ..core.json_text import to_json
from ..events import UpdateDone
from . import ANSWERS
from .step_window import StepWindow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Protocol

    from ..agent import Agent
    from ..events import Events, Handler, TrainingEvent

    class CallSource(Protocol):
        """What sees the calls of a framework."""

        def begin(self) -> None:
            """Prepare, once, what sees them."""

        def watch(self, is_on: bool) -> None:
            """Begin or cease to log."""


FORMAT = 1
CALL = struct.Struct("<IIHHIQQ")  # operator, place, thread, flags, step, digests of inputs and outputs
NO_OUTPUTS, DRAWS, UNREAD = 1, 2, 4  # flags; unread: a tensor could not be, so that its digest says less
MAX_CALLS = 1 << 20  # of a process
MAX_THREADS = 1 << 16
MAX_NAMES = 100_000  # operators, places and threads
MAX_KEPT = 64  # calls
MAX_BYTES = 1 << 30  # of all kept calls of a process together
WAITING = 4096  # calls until they are written
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


_SOURCES = {"jax": "jax_calls", "torch": "pytorch_calls", "tensorflow": "tensorflow_calls"}


def listener(agent: Agent, question: Mapping[str, Any], framework: str, _events: Events | None) -> CallLog | None:
    """Return what logs the calls of this framework."""
    if framework not in _SOURCES:
        return None
    log = CallLog(agent, question)
    source: CallSource | None = import_module(f"{__package__}.{_SOURCES[framework]}").source(log)
    if source is None:
        return None
    log.begin(source)
    return log


class LogFiles:
    """The two files of this process: fixed records, and a line of JSON for each name."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.forget()

    def forget(self) -> None:
        """In a forked child: begin files of its own."""
        self.calls: list[Any] = []
        self._names: list[str] = []
        self._numbers: dict[str, dict[Any, int]] = {"operator": {}, "place": {}, "thread": {}}
        self._descriptors: tuple[int, int] | None = None
        self._stem = ""
        self.count = 0

    def number(self, kind: str, key: Any, describe: Callable[..., dict[str, Any]], *of: Any) -> int:
        """Return the number of an operator, place or thread; its name is written before the next calls."""
        numbers = self._numbers[kind]
        found = numbers.get(key)
        if found is None:
            if len(numbers) >= MAX_NAMES:
                raise OverflowError(f"there are more than {MAX_NAMES} {kind}s")
            found = numbers[key] = len(numbers)
            self._names.append(to_json({"kind": kind, "number": found, **describe(*of)}) + "\n")
        return found

    def write(self) -> None:
        """Write what waits."""
        calls, self.calls = self.calls, []
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
        """What the names of the files of this process begin with."""
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
    """The calls of this process, within the steps of the question."""

    def __init__(self, agent: Agent, question: Mapping[str, Any]) -> None:
        self.agent = agent
        self._window = StepWindow(question["steps"])
        self._files = LogFiles(agent)
        self.number = self._files.number
        self.eager = bool(question["operators"].get("eager"))  # what XLA compiles is executed operator by operator
        self._kept: Mapping[str, Any] | None = question["operators"].get("keep")
        self._left, self._room = MAX_KEPT, MAX_BYTES
        self._source: CallSource | None = None

    def begin(self, source: CallSource) -> None:
        """Log from here on, if the first step is asked for."""
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

    def put(self, call: int, place: int, flags: int, inputs: int, outputs: int) -> None:
        """Log a call by the numbers of operator and place."""
        files = self._files
        if files.count >= MAX_CALLS:
            self.agent.warn(f"calls of operators beyond {MAX_CALLS} of a process are not logged")
            return
        files.count += 1
        thread = files.number("thread", get_ident(), _thread) % MAX_THREADS
        files.calls.append(CALL.pack(call, place, thread, flags, self._window.step, inputs, outputs))
        if len(files.calls) >= WAITING:
            files.write()

    # Calls that are kept whole

    def keeps(self, name: str, where: list[Any]) -> bool:
        """Return whether a call is to be kept."""
        kept = self._kept
        if kept is None or name != kept["operator"] or self._left <= 0:
            return False
        return bool((list(where[0][:2]) if where else []) == kept["place"])

    def has_room(self, size: int) -> bool:
        """Return whether a call whose inputs have so many bytes may be kept; it counts as kept then."""
        self._left -= 1
        self._room -= size
        return self._room > 0

    def keep(self, inputs: list[Part], outputs: list[Part]) -> None:
        """Write the inputs and outputs of the call that is logged next."""
        for kind, parts in (("inputs", inputs), ("outputs", outputs)):
            path = f"{self._files.stem}-{self._files.count}.{kind}"
            with open(os.open(path, _NEW, 0o600), "wb", buffering=0) as file:
                write_tensors(file, index_of(parts), parts)


def _thread() -> dict[str, Any]:
    """Return the name of this thread; one of an engine's has none."""
    threading = sys.modules.get("threading")
    ident = get_ident()
    if threading is None or threading.main_thread().ident == ident:
        return {"name": "m"}
    return {"name": next((one.name for one in threading.enumerate() if one.ident == ident), "engine")}
