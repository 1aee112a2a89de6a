"""The agent of one process: it holds the journal and the adapters, and keeps their failures to itself."""

from __future__ import annotations

import sys

from .core.journal import Journal
from .core.signal_errors import pass_on
from .core.thread_names import on_thread, takes_tasks
from .frameworks import WATCHED, load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Mapping
    from types import ModuleType
    from typing import Any

    from .events import EventListener, Events
    from .frameworks.base import Adapter
    from .observing import Observer
    from .orders.tracks import Orders
    from .predictions.log import PredictionLog
    from .pytorch.events import EventHooks
    from .seeds.ledger import SeedLedger

__all__ = ["Agent", "on_thread"]

MAX_WARNINGS = 100
# What of a training is written down: not of one that is only captured; and a replay gives recorded orders again.
TRAINING, ORDERS = "training", "orders"
KEPT = frozenset([TRAINING, ORDERS])
_COMPUTING = frozenset(["ctypes", "numpy", "tensorflow", "torch"])
_WITH_POOLS = frozenset(["numpy", "sklearn", "torch"])  # modules that bring pools whose size no variable sets


class Generators:
    """The global random generators, and what their states were when their modules were imported: a hash of each."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Callable[[], Hashable], int]] = {}

    def begin(self, name: str, state: Callable[[], Hashable]) -> None:
        """A generator was made; `state` gives what it is now."""
        self._known[name] = state, hash(state())

    def untouched(self) -> list[str]:
        """Return those that were neither seeded nor drawn from."""
        return [name for name, (state, first) in self._known.items() if hash(state()) == first]


class ForkState:
    """What begins anew in each forked child."""

    def __init__(self, generation: int = 0) -> None:
        self.generation = generation  # so that what the parent noted is told apart
        self.counters: dict[str, int] = {}
        self.warned: set[str] = set()
        self.finished = False


class Agent:
    """What the adapters share in this process."""

    def __init__(self, run: str, journal: Journal) -> None:
        self.run = run  # the run directory
        self.journal = journal
        self._logs: dict[str, Any] = {}  # what only some processes have: seeds, orders, evaluation
        self.generators = Generators()
        self._process = ForkState()
        self._adapters: dict[str, Adapter] = {}
        self.observer: Observer | None = None  # of a profile run
        self.keeps: frozenset[str] = KEPT
        self.pytorch: EventHooks | None = None  # of a process that uses it, and is recorded
        self.listeners: list[tuple[Collection[str], Callable[[str, ModuleType], object]]] = []  # modules, who waits
        # Called with a framework's name and events, once it has made them: they return who listens.
        self.listeners_of: list[Callable[[str, Events], list[EventListener]]] = []
        self.endings: list[Callable[[], object]] = []  # called at the end, before what the adapters have to write
        journal.first_write_of_fork = self._first_write_of_fork

    @property
    def generation(self) -> int:
        """How many forks lie between this process and that in which the agent started."""
        return self._process.generation

    def loaded(self, name: str, module: ModuleType) -> None:
        """A module that an adapter waits for has been executed."""
        if name in WATCHED and TRAINING in self.keeps:
            self.attempt(self._instrument, name, module)
        for names, listener in self.listeners:
            if name in names:
                self.attempt(listener, name, module)

    def _instrument(self, name: str, module: ModuleType) -> None:
        framework = WATCHED[name]
        if framework not in self._adapters:
            self._adapters[framework] = load(framework)(self)
        self._adapters[framework].instrument(name, module)
        if name in _WITH_POOLS:
            self.attempt(self._resize_pools, name, module)

    def _resize_pools(self, name: str, module: ModuleType) -> None:
        """Where the launcher asks for it, give pools the sizes that they had in the recording."""
        from .compute_settings import pool_sizes, resize_pools

        wanted = pool_sizes(self.run)
        if wanted:
            resize_pools(name, module, wanted)

    def begin_events(self, framework: str, events: Events) -> None:
        """A framework's events are there, and what every run keeps listens: add who else does."""
        for listeners in self.listeners_of:
            for listener in self.attempt(listeners, framework, events) or ():
                events.add(listener)

    def attempt(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the agent; what goes wrong becomes a warning line, and None."""
        try:
            return function(*arguments)
        except Exception as error:
            self.failed(function, error)
            pass_on(error)
            return None

    def note_calls(self, owner: Any, name: str, note: Callable[..., object]) -> None:
        """Have note(result, arguments, keywords) called after each call of a function."""
        from .core.patching import noting, replace

        replace(owner, name, noting(self.attempt, note))

    def failed(self, function: Callable[..., Any], error: Exception) -> None:
        """Write down that a function of the agent has failed."""
        function = getattr(function, "func", function)  # of a partial one
        where = getattr(function, "__qualname__", repr(function))
        self.warn(f"{where}: {type(error).__name__}: {error}")

    def warn(self, text: str) -> None:
        """Write down, once, what could not be done."""
        try:
            warned = self._process.warned
            if text not in warned and len(warned) < MAX_WARNINGS:
                warned.add(text)
                self.journal.write("warning", {"text": text[:2000]})
        except Exception as error:  # nobody is left to tell
            pass_on(error)

    def number(self, kind: str) -> int:
        """0, 1, ... for the things of a kind in this process."""
        counters = self._process.counters
        count = counters.get(kind, 0)
        counters[kind] = count + 1
        return count

    def name(self, kind: str) -> str:
        """model#0, model#1, ...; each further thread counts for itself, as the order of threads does not repeat."""
        kind = on_thread(kind)
        return f"{kind}#{self.number(kind)}"

    def framework(self, name: str, module: ModuleType) -> None:
        """Write down a framework's version."""
        self.journal.write("framework", {"name": name, "version": str(getattr(module, "__version__", ""))})

    def _log(self, name: str, module: str, kind: str) -> Any:
        if name not in self._logs:
            from importlib import import_module

            made = getattr(import_module(f"{__package__}.{module}"), kind)
            self._logs[name] = made(self.run, self.journal, self.warn)
        return self._logs[name]

    @property
    def seeds(self) -> SeedLedger:
        """The ledger of seeding calls, for processes that can make any."""
        return self._log("seeds", "seeds.ledger", "SeedLedger")  # type: ignore[no-any-return]

    @property
    def orders(self) -> Orders:
        """The orders in which threads have their turns, for processes in which they have any."""
        return self._log("orders", "orders.tracks", "Orders")  # type: ignore[no-any-return]

    @property
    def evaluation(self) -> PredictionLog:
        """The predictions, for processes that make any."""
        return self._log("evaluation", "predictions.log", "PredictionLog")  # type: ignore[no-any-return]

    def log(self, step: object, epoch: object, values: dict[str, object]) -> None:
        """Write down what the script logs by reprokit.log."""
        from .core.exact_values import describe

        where = {"step": _index(step), "epoch": _index(epoch)}
        for name in values:
            try:
                value = describe(values[name])
            except Exception as error:
                self.warn(f"reprokit.log: {name} was left out ({error}); log numbers and texts")
                pass_on(error)
            else:
                self.journal.write("log", {"name": name, **where, "value": value})

    def log_predictions(self, y_true: object, y_pred: object, task: object) -> None:
        """Write down what the script logs by reprokit.log_predictions."""
        self.evaluation.note("log_predictions", y_pred, y_true, task=None if task is None else str(task))

    def finish(self) -> None:
        """Write what is known at the end; a forked child that never had anything to say stays silent."""
        if self._process.finished or TRAINING not in self.keeps or not self.journal.written:
            return
        self._process.finished = True
        for end in self.endings:
            self.attempt(end)
        for adapter in list(self._adapters.values()):
            self.attempt(adapter.finish)
        self._finish_logs("evaluation")
        if not takes_tasks():
            self.attempt(self._computed_with)
            for adapter in list(self._adapters.values()):
                self.attempt(adapter.random_states)
        self._finish_logs("seeds", "orders")
        self.journal.write("end", self.attempt(_imported) or {})
        self.attempt(self.journal.close)

    def _finish_logs(self, *names: str) -> None:
        for name in names:
            if name in self._logs:
                self.attempt(self._logs[name].finish)

    def _computed_with(self) -> None:
        """Write the counts of threads and the choices of code; a plain process has neither library nor ctypes."""
        if _COMPUTING.isdisjoint(sys.modules):
            return
        from .compute_settings import facts

        for name, library, found in facts():
            self.computed(name, library, found)

    def computed(self, name: str, library: str, facts: Mapping[str, object]) -> None:
        """Write what of the machine a library used."""
        self.journal.write("compute", {"name": name, "library": library, "facts": facts})

    def forget(self) -> None:
        """In a forked child: what the parent noted is the parent's."""
        self._process = ForkState(self.generation + 1)
        self.journal.forget()
        for log in self._logs.values():
            log.forget()
        for adapter in self._adapters.values():
            self.attempt(adapter.forget)

    def _first_write_of_fork(self) -> None:
        """multiprocessing's children end by os._exit and run only what its own module knows."""
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.Finalize(None, self.finish, exitpriority=-100)


def _imported() -> dict[str, object]:
    """Return which packages and which files of the user's were imported."""
    from .core.loaded_modules import modules

    return modules()


def _index(value: Any) -> int | None:
    """Return a step or epoch as an int, also where it is a number of NumPy or a whole float."""
    return None if value is None else int(value)
