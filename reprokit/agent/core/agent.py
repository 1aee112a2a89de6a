"""The agent of one process, which all features share; it knows none of them: they register with it.

It owns the journal and the adapters, and turns failures of features into warnings.
"""

from __future__ import annotations

import sys

from .journal import Journal
from .signal_errors import pass_on
from .stderr_lines import say
from .thread_names import on_thread, takes_tasks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
    from types import ModuleType
    from typing import Any, Protocol, TypeVar

    AnyLog = TypeVar("AnyLog", bound="Log")

    class Stream(Protocol):
        """The events of a framework, to which listeners can be added."""

        def add(self, listener: Any) -> None: ...


__all__ = ["Agent", "on_thread"]

MAX_WARNINGS = 100
MADE = "optimizers/"  # and a framework: a kind of object that is counted
# What is recorded of a training: nothing if it is only captured. In a replay, orders are replayed instead.
TRAINING, ORDERS = "training", "orders"
KEPT = frozenset([TRAINING, ORDERS])


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


class Log:
    """Base class of a feature's object that exists from its first use on, as Agent.log_of() returns it."""

    finish_order = 0  # logs with a negative one are finished before the random states are written

    def finish(self) -> None:
        """Write the final lines, at the end of the process."""

    def forget(self) -> None:
        """In a forked child: drop the state of the parent."""


class Adapter:
    """Base class of the adapters: writes the framework's version; subclasses record more."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def instrument(self, name: str, module: ModuleType) -> None:
        """Patch a module of the framework that has just been imported."""
        self._agent.framework(name, module)

    def parts(self) -> list[Any]:
        """Return the objects to finish at the end, in that order."""
        return []

    def finish(self) -> None:
        """Write the final lines; if called again, write nothing twice."""
        for part in self.parts():
            self._agent.attempt(part.finish)

    def random_states(self) -> None:
        """Write the digests of the framework's random states, after everything else."""

    def write_random_state(self, name: str, digest: str) -> None:
        """Write the digest of a random state."""
        self._agent.journal.write("random_state", {"name": name, "digest": digest})

    def forget(self) -> None:
        """In a forked child: drop the state of the parent."""
        for part in self.parts():
            part.forget()


class Adapters:
    """The adapters of the frameworks that this process has imported."""

    def __init__(
        self,
        watched: Mapping[str, str] | None = None,
        load: Callable[[str], Callable[[Agent], Adapter]] | None = None,
    ) -> None:
        self.watched = watched or {}  # modules that adapters patch, each with the name of its adapter
        self._load = load
        self._loaded: dict[str, Adapter] = {}

    def __iter__(self) -> Iterator[Adapter]:
        return iter(list(self._loaded.values()))

    def instrument(self, agent: Agent, name: str, module: ModuleType) -> None:
        """Let the adapter of a module that has just been imported patch it; create it with the first one."""
        framework = self.watched[name]
        if framework not in self._loaded and self._load is not None:
            self._loaded[framework] = self._load(framework)(agent)
        self._loaded[framework].instrument(name, module)


class ImportListeners:
    """What is called around imports."""

    def __init__(self) -> None:
        self.searched: list[Callable[[str], object]] = []  # with the name of each module searched for
        # Before and after each execution of a watched module.
        self.executed: Callable[[str, bool], object] | None = None


class Agent:
    """The state that adapters, observers and listeners share in this process."""

    log_predictions: Callable[[object, object, object], object]  # called by the script; set as the agent starts

    def __init__(self, run: str, journal: Journal, adapters: Adapters | None = None) -> None:
        self.run = run  # the run directory
        self.journal = journal
        self.adapters = Adapters() if adapters is None else adapters
        self._logs: dict[type[Log], Log] = {}
        self.shared: dict[type, Any] = {}  # objects that features share, by their class
        self.generators = Generators()
        self._process = ForkState()
        self.keeps: frozenset[str] = KEPT
        self.listeners: list[tuple[Collection[str], Callable[[str, ModuleType], object]]] = []  # modules, callback
        self.imports = ImportListeners()
        # Called with a framework's name and events, once they exist; each returns the listeners to add.
        self.event_listeners: list[Callable[[str, Any], list[Any]]] = []
        self.counts_all_steps = False  # whether a listener counts even steps in which the trail keeps nothing
        self.end_callbacks: list[Callable[[], object]] = []  # called at the end, before the adapters finish
        self.last_callbacks: list[Callable[[], object]] = []  # called once the final lines are written
        # Called at the end if one of these modules was imported, before the random states are written.
        self.fact_writers: list[tuple[frozenset[str], Callable[[], object]]] = []
        journal.first_write_of_fork = self._first_write_of_fork

    @property
    def generation(self) -> int:
        """The number of forks between this process and the one in which the agent started."""
        return self._process.generation

    def loaded(self, name: str, module: ModuleType) -> None:
        """Instrument a module that has been imported, and call its listeners."""
        if name in self.adapters.watched and TRAINING in self.keeps:
            self.attempt(self.adapters.instrument, self, name, module)
        for names, listener in self.listeners:
            if name in names:
                self.attempt(listener, name, module)

    def begin_events(self, framework: str, events: Stream) -> None:
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
        self.warn(f"{where}: {type(error).__name__}: {error}", "agent-failed")

    def warn(self, text: str, code: str, path: str = "", *, aloud: bool = False) -> None:
        """Write a warning: each text once, or each path once of a code; with ``aloud`` also to stderr, at once."""
        try:
            warned, about = self._process.warned, (code, path or text)
            if about not in warned and len(warned) < MAX_WARNINGS:
                warned.add(about)
                place = {"path": path[:2000]} if path else {}
                facts = {"text": text[:2000], "code": code, **place, **({"said": True} if aloud else {})}
                self.journal.write("warning", facts)
                if aloud:
                    say(f"warning: the agent: {text} [{code}]")
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

    def has_optimizer(self, framework: str) -> bool:
        """Return whether the script has made an optimizer of a framework in this process."""
        return f"{MADE}{framework}" in self._process.counters

    def _write_made(self) -> None:
        for kind, count in self._process.counters.items():
            if kind.startswith(MADE):
                self.journal.write("optimizers", {"name": kind[len(MADE) :], "made": count})

    def framework(self, name: str, module: ModuleType) -> None:
        """Write the version of a framework."""
        self.journal.write("framework", {"name": name, "version": str(getattr(module, "__version__", ""))})

    def log_of(self, kind: type[AnyLog], make: Callable[[Agent], AnyLog]) -> AnyLog:
        """Return this process's log of a class; make it on first use."""
        log: Any = self._logs.get(kind)
        if log is None:
            log = self._logs[kind] = make(self)
        return log  # type: ignore[no-any-return]

    def log(self, step: object, epoch: object, values: dict[str, object]) -> None:
        """Write the values that the script passes to reprokit.log."""
        from .exact_values import describe

        where = _index(step), _index(epoch)
        for name in values:
            try:
                value = describe(values[name])
            except Exception as error:
                self.warn(f"reprokit.log: {name} was left out ({error}); log numbers and texts", "log-left-out")
                pass_on(error)
            else:
                self.journal.write_value("log", name, *where, value)

    def finish(self) -> None:
        """Write the final lines of this process; a forked child that has written nothing writes no end either."""
        if self._process.finished or TRAINING not in self.keeps or not self.journal.written:
            return
        self._process.finished = True
        for callback in self.end_callbacks:
            self.attempt(callback)
        for adapter in self.adapters:
            self.attempt(adapter.finish)
        self._finish_logs(are_early=True)
        self.attempt(self._write_made)
        if not takes_tasks():
            for modules, write in self.fact_writers:
                if not modules.isdisjoint(sys.modules):
                    self.attempt(write)
            for adapter in self.adapters:
                self.attempt(adapter.random_states)
        self._finish_logs(are_early=False)
        self.journal.write("end", self.attempt(_imported) or {})
        self.attempt(self.journal.close)
        for callback in self.last_callbacks:
            self.attempt(callback)

    def _finish_logs(self, *, are_early: bool) -> None:
        for log in sorted(self._logs.values(), key=lambda log: log.finish_order):
            if (log.finish_order < 0) is are_early:
                self.attempt(log.finish)

    def computed(self, name: str, library: str, facts: Mapping[str, object]) -> None:
        """Write the facts about the machine that a library depends on."""
        self.journal.write("compute", {"name": name, "library": library, "facts": facts})

    def forget(self) -> None:
        """In a forked child: drop the state of the parent."""
        self._process = ForkState(self.generation + 1)
        self.journal.forget()
        for log in self._logs.values():
            log.forget()
        for adapter in self.adapters:
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
