"""The agent of one process: it holds the journal and the adapters, and keeps their failures to itself."""

from __future__ import annotations

import sys

from .frameworks import WATCHED, load
from .journal import Journal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, ModuleType
    from typing import Any

    from .frameworks import Adapter

MAX_WARNINGS = 100
MAX_ARGUMENT = 200  # characters of a seed's text
_FRAMEWORKS = frozenset(name.partition(".")[0] for name in WATCHED)
_SEE_THROUGH = ("torch._compile", "torch._dynamo")  # stand between a script and torch.manual_seed


class Agent:
    """What the adapters share in this process."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.generation = 0  # raised in a forked child, so that what the parent noted is told apart
        self._adapters: dict[str, Adapter] = {}
        self._counters: dict[str, int] = {}
        self._warned: set[str] = set()
        self._finished = False
        journal.first_write_of_fork = self._first_write_of_fork

    def loaded(self, name: str, module: ModuleType) -> None:
        """A module that an adapter waits for has been executed."""
        self.attempt(self._instrument, name, module)

    def _instrument(self, name: str, module: ModuleType) -> None:
        framework = WATCHED[name]
        if framework not in self._adapters:
            self._adapters[framework] = load(framework)(self)
        self._adapters[framework].instrument(name, module)

    def attempt(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the agent; what goes wrong becomes a warning line, and None."""
        try:
            return function(*arguments)
        except Exception as error:
            where = getattr(function, "__qualname__", repr(function))
            self.warn(f"{where}: {type(error).__name__}: {error}")
            return None

    def warn(self, text: str) -> None:
        """Write down, once, what could not be done."""
        try:
            if text not in self._warned and len(self._warned) < MAX_WARNINGS:
                self._warned.add(text)
                self.journal.write("warning", {"text": text[:2000]})
        except Exception:  # nobody is left to tell
            pass

    def number(self, kind: str) -> int:
        """0, 1, ... for the things of a kind in this process."""
        count = self._counters.get(kind, 0)
        self._counters[kind] = count + 1
        return count

    def name(self, kind: str) -> str:
        """model#0, model#1, ...; each further thread counts for itself, as the order of threads does not repeat."""
        kind = on_thread(kind)
        return f"{kind}#{self.number(kind)}"

    def framework(self, name: str, module: ModuleType) -> None:
        """Write down a framework's version."""
        self.journal.write("framework", {"name": name, "version": str(getattr(module, "__version__", ""))})

    def seed(self, call: str, arguments: tuple[Any, ...], keywords: dict[str, Any], caller: FrameType) -> None:
        """Write down a seeding call of the script, be it through a library's function for that."""
        while _module_of(caller).startswith(_SEE_THROUGH) and caller.f_back is not None:
            caller = caller.f_back
        given = any(value is not None for value in [*arguments, *keywords.values()])
        if given and not _is_own_business(caller):
            parts = [_text(value) for value in arguments] + [f"{key}={_text(keywords[key])}" for key in keywords]
            file = caller.f_code.co_filename.rpartition("/")[2]
            line = {"call": call, "argument": ", ".join(parts)[:MAX_ARGUMENT], "where": f"{file}:{caller.f_lineno}"}
            self.journal.write("seed", line)

    def log(self, step: object, epoch: object, values: dict[str, object]) -> None:
        """Write down what the script logs by reprokit.log."""
        from .values import describe

        where = {"step": _index(step), "epoch": _index(epoch)}
        for name in values:
            try:
                value = describe(values[name])
            except Exception as error:
                self.warn(f"reprokit.log: {name} was left out ({error}); log numbers and texts")
            else:
                self.journal.write("log", {"name": name, **where, "value": value})

    def log_predictions(self, y_true: object, y_pred: object, task: object) -> None:
        """Write down what the script logs by reprokit.log_predictions."""
        from .arrays import describe_array

        name, of_task = self.name("log_predictions"), None if task is None else str(task)
        for part, facts in [("y_true", describe_array(y_true)), ("y_pred", describe_array(y_pred))]:
            self.journal.write("predict", {"name": f"{name}/{part}", **facts, "task": of_task})

    def finish(self) -> None:
        """Write what is known at the end; a forked child that never had anything to say stays silent."""
        if self._finished or not self.journal.written:
            return
        self._finished = True
        for adapter in list(self._adapters.values()):
            self.attempt(adapter.finish)
        for adapter in list(self._adapters.values()):
            self.attempt(adapter.random_states)
        self.journal.write("end", {})

    def forget(self) -> None:
        """In a forked child: what the parent noted is the parent's."""
        self.generation += 1
        self.journal.forget()
        self._counters.clear()
        self._warned.clear()
        self._finished = False
        for adapter in self._adapters.values():
            self.attempt(adapter.forget)

    def _first_write_of_fork(self) -> None:
        """multiprocessing's children end by os._exit and run only what its own module knows."""
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.Finalize(None, self.finish, exitpriority=-100)


def on_thread(name: str) -> str:
    """The name in the main thread, name@thread in others."""
    threading = sys.modules.get("threading")
    if threading is None or threading.current_thread() is threading.main_thread():
        return name
    return f"{name}@{threading.current_thread().name}"


def _is_own_business(caller: FrameType) -> bool:
    """Whether a framework or library seeds for its own purposes, not on behalf of the script."""
    code = caller.f_code
    installed = "/site-packages/" in code.co_filename or "/dist-packages/" in code.co_filename
    return _module_of(caller).partition(".")[0] in _FRAMEWORKS or (installed and "seed" not in code.co_name)


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _index(value: Any) -> int | None:
    """A step or epoch as an int, also where it is a number of NumPy or a whole float."""
    return None if value is None else int(value)


def _text(value: object) -> str:
    """The value as text that repeats: an address in it would not."""
    text = repr(value)
    return f"<{type(value).__qualname__}>" if " at 0x" in text else text
