"""The agent of one process: owns the journal and the adapters, and turns their failures into warnings."""

from __future__ import annotations

import sys

from ..frameworks import WATCHED, load
from .journal import Journal
from .signal_errors import pass_on
from .stderr_lines import say
from .thread_names import on_thread, takes_tasks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Mapping
    from types import ModuleType
    from typing import Any

    from ..events.steps import EventListener, Events
    from ..frameworks.base import Adapter
    from ..operators import Observer
    from ..orders.tracks import Orders
    from ..predictions.log import PredictionLog
    from ..pytorch.events import EventHooks
    from ..seeds.ledger import SeedLedger

__all__ = ["Agent", "on_thread"]

MAX_WARNINGS = 100
MADE = "optimizers/"  # and a framework: a kind of object that is counted
# What is recorded of a training: nothing if it is only captured. In a replay, orders are replayed instead.
TRAINING, ORDERS = "training", "orders"
KEPT = frozenset([TRAINING, ORDERS])
_COMPUTING = frozenset(["ctypes", "numpy", "tensorflow", "torch"])
_WITH_POOLS = frozenset(["numpy", "sklearn", "torch"])  # modules with thread pools whose size no variable sets


class Generators:
    """The global random generators, each with a hash of its state when its module was imported."""

    def __init__(self) -> None:
        self._initial: dict[str, tuple[Callable[[], Hashable], int]] = {}

    def begin(self, name: str, state: Callable[[], Hashable]) -> None:
        """Register a new generator; `state` returns its current state."""
        self._initial[name] = state, hash(state())

    def untouched(self) -> list[str]:
        """Return the names of the generators that were neither seeded nor drawn from."""
        return [name for name, (state, initial_hash) in self._initial.items() if hash(state()) == initial_hash]


class ForkState:
    """The state that each forked child starts afresh."""

    def __init__(self, generation: int = 0) -> None:
        self.generation = generation  # tells the state of a child from its parent's
        self.counters: dict[str, int] = {}
        self.warned: set[tuple[str, str]] = set()  # codes and paths, or texts
        self.finished = False


class Agent:
    """The state that adapters, observers and listeners share in this process."""

    def __init__(self, run: str, journal: Journal) -> None:
        self.run = run  # the run directory
        self.journal = journal
        self._logs: dict[str, Any] = {}  # created on first use: seeds, orders, evaluation
        self.generators = Generators()
        self._process = ForkState()
        self._adapters: dict[str, Adapter] = {}
        self.observer: Observer | None = None  # of a profile run
        self.keeps: frozenset[str] = KEPT
        self.pytorch: EventHooks | None = None  # in a recorded process that uses PyTorch
        self.listeners: list[tuple[Collection[str], Callable[[str, ModuleType], object]]] = []  # modules, callback
        self.import_listeners: list[Callable[[str], object]] = []  # called with the name of each module searched for
        # Called with a framework's name and events, once they exist; each returns the listeners to add.
        self.event_listeners: list[Callable[[str, Events], list[EventListener]]] = []
        self.end_callbacks: list[Callable[[], object]] = []  # called at the end, before the adapters finish
        journal.first_write_of_fork = self._first_write_of_fork

    @property
    def generation(self) -> int:
        """The number of forks between this process and the one in which the agent started."""
        return self._process.generation

    def loaded(self, name: str, module: ModuleType) -> None:
        """Instrument a module that has been imported, and call its listeners."""
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
        """Restore the sizes that thread pools had in the recording, if the launcher asks for it."""
        from ..surroundings.compute_settings import pool_sizes, resize_pools

        sizes = pool_sizes(self.run)
        if sizes:
            resize_pools(name, module, sizes)

    def begin_events(self, framework: str, events: Events) -> None:
        """Add the optional listeners to a framework's events, after those of every run."""
        for make_listeners in self.event_listeners:
            for listener in self.attempt(make_listeners, framework, events) or ():
                events.add(listener)

    def attempt(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the agent; turn an exception into a warning line, and return None."""
        try:
            return function(*arguments)
        except Exception as error:
            self.failed(function, error)
            pass_on(error)
            return None

    def note_calls(self, owner: Any, name: str, note: Callable[..., object]) -> None:
        """Patch a function: note(result, arguments, keywords) is called after each call."""
        from .patching import noting, replace

        replace(owner, name, noting(self.attempt, note))

    def failed(self, function: Callable[..., Any], error: Exception) -> None:
        """Write a warning that a function of the agent has failed."""
        function = getattr(function, "func", function)  # unwraps functools.partial
        where = getattr(function, "__qualname__", repr(function))
        self.warn(f"{where}: {type(error).__name__}: {error}")

    def warn(self, text: str, code: str = "", path: str = "", *, aloud: bool = False) -> None:
        """Write a warning: each text once, or each path once of a code; with ``aloud`` also to stderr, at once."""
        try:
            warned, about = self._process.warned, (code, path if code else text)
            if about not in warned and len(warned) < MAX_WARNINGS:
                warned.add(about)
                kind = {"code": code, "path": path[:2000]} if code else {}
                self.journal.write("warning", {"text": text[:2000], **kind, **({"said": True} if aloud else {})})
                if aloud:
                    say(f"warning: the agent: {text}")
        except Exception as error:  # nothing left to report it to
            pass_on(error)

    def number(self, kind: str) -> int:
        """Return the next number, from 0, of a kind of object in this process."""
        counters = self._process.counters
        count = counters.get(kind, 0)
        counters[kind] = count + 1
        return count

    def name(self, kind: str) -> str:
        """Return the next name, as model#0; threads count separately, as their order does not repeat."""
        kind = on_thread(kind)
        return f"{kind}#{self.number(kind)}"

    def made_optimizer(self, framework: str) -> None:
        """Count an optimizer that the script made: with it, a training without a step is known to have done nothing."""
        self.number(f"{MADE}{framework}")

    def _write_made(self) -> None:
        for kind, count in self._process.counters.items():
            if kind.startswith(MADE):
                self.journal.write("optimizers", {"name": kind[len(MADE) :], "made": count})

    def framework(self, name: str, module: ModuleType) -> None:
        """Write the version of a framework."""
        self.journal.write("framework", {"name": name, "version": str(getattr(module, "__version__", ""))})

    def _log(self, name: str, module: str, class_name: str) -> Any:
        if name not in self._logs:
            from importlib import import_module

            log_class = getattr(import_module(f"{__package__}.{module}"), class_name)
            self._logs[name] = log_class(self.run, self.journal, self.warn)
        return self._logs[name]

    @property
    def seeds(self) -> SeedLedger:
        """The ledger of seeding calls; created on first use."""
        return self._log("seeds", "seeds.ledger", "SeedLedger")  # type: ignore[no-any-return]

    @property
    def orders(self) -> Orders:
        """The orders in which threads take their turns; created on first use."""
        return self._log("orders", "orders.tracks", "Orders")  # type: ignore[no-any-return]

    @property
    def evaluation(self) -> PredictionLog:
        """The log of predictions; created on first use."""
        return self._log("evaluation", "predictions.log", "PredictionLog")  # type: ignore[no-any-return]

    def log(self, step: object, epoch: object, values: dict[str, object]) -> None:
        """Write the values that the script passes to reprokit.log."""
        from .exact_values import describe

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
        """Write the predictions that the script passes to reprokit.log_predictions."""
        self.evaluation.note("log_predictions", y_pred, y_true, task=None if task is None else str(task))

    def finish(self) -> None:
        """Write the final lines of this process; a forked child that has written nothing writes no end either."""
        if self._process.finished or TRAINING not in self.keeps or not self.journal.written:
            return
        self._process.finished = True
        for callback in self.end_callbacks:
            self.attempt(callback)
        for adapter in list(self._adapters.values()):
            self.attempt(adapter.finish)
        self._finish_logs("evaluation")
        self.attempt(self._write_made)
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
        """Write the numbers of threads and the libraries' choices of code, if a computing library was loaded."""
        if _COMPUTING.isdisjoint(sys.modules):
            return
        from ..surroundings.compute_settings import facts

        for name, library, values in facts():
            self.computed(name, library, values)

    def computed(self, name: str, library: str, facts: Mapping[str, object]) -> None:
        """Write the facts about the machine that a library depends on."""
        self.journal.write("compute", {"name": name, "library": library, "facts": facts})

    def forget(self) -> None:
        """In a forked child: drop the state of the parent."""
        self._process = ForkState(self.generation + 1)
        self.journal.forget()
        for log in self._logs.values():
            log.forget()
        for adapter in self._adapters.values():
            self.attempt(adapter.forget)

    def _first_write_of_fork(self) -> None:
        """Register finish() with multiprocessing, whose children end by os._exit and call only its own finalizers."""
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.Finalize(None, self.finish, exitpriority=-100)


def _imported() -> dict[str, object]:
    """Return the packages and the user's files that were imported."""
    from .loaded_modules import modules

    return modules()


def _index(value: Any) -> int | None:
    """Return a step or epoch as an int, also if it is a NumPy number or an integral float."""
    return None if value is None else int(value)
