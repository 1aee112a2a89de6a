"""Observes a training for `reprokit profile`: functions, operators, settings, loaders and orders of completion.

An observer is a function `def observe(module, observer) -> None` of a file here, called when its module (OBSERVERS) has
been imported. It passes its observations to Observer.write, or counts them by Observer.count.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import time
from _thread import get_ident

from ..core.patching import replace
from ..core.quiet_interrupts import ENOUGH, hide_interrupts
from ..core.user_frames import where
from ..events.steps import EvaluationDue, LoaderBegan, UpdateDone
from .files import DIRECTORY, ProfileFile, append

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any

    from ..core.agent import Agent
    from ..core.user_frames import Place
    from ..events.steps import Handler, TrainingEvent

__all__ = ["OBSERVERS", "Observer", "start", "where"]

FUNCTIONS, OPERATORS = "functions", "operators"  # what a plan can ask for
THREADS = "functions.observe"
# By module its observers, as file and function. Each is called once a process.
OBSERVERS: dict[str, tuple[str, ...]] = {
    "asyncio.base_events": ("library_calls.observe_streams",),
    "asyncio.selector_events": ("library_calls.observe_streams",),
    "asyncio.tasks": ("library_calls.observe_waiting",),
    "concurrent.futures._base": ("library_calls.observe_waiting",),
    "concurrent.futures.thread": ("library_calls.observe_thread_pool",),
    "duckdb": ("library_calls.observe_duckdb",),
    "jax": ("library_calls.observe_compilations",),
    "joblib.parallel": ("library_calls.observe_joblib",),
    "multiprocessing.context": ("library_calls.observe_shared_memory",),
    "multiprocessing.pool": ("library_calls.observe_pool",),
    "multiprocessing.queues": ("library_calls.observe_queues",),
    "os": ("library_calls.observe_waits",),
    "select": ("library_calls.observe_selects",),
    "selectors": ("library_calls.observe_selects",),
    "tensorflow": ("settings.observe_tensorflow", "tensorflow.profile.observe"),
    "tensorflow.python.client.session": ("settings.observe_sessions",),
    "tensorflow.python.data.ops.dataset_ops": ("library_calls.observe_datasets",),
    "threading": (THREADS, "library_calls.observe_threads"),
    "time": ("library_calls.observe_clock",),
    "torch": ("settings.observe_torch", "library_calls.observe_evaluations", "pytorch.profile.observe"),
    "torch._inductor.codecache": ("pytorch.profile.observe_graphs",),
    "torch._inductor.output_code": ("pytorch.profile.observe_graphs",),
    "torch.utils.data.dataloader": ("library_calls.observe_loaders", "pytorch.profile.observe_loaders"),
    "xgboost.training": ("settings.observe_xgboost",),
}
# Begun in each process, by what must be asked for.
IN_EACH_PROCESS = (("settings.ObservedSettings", None), ("functions.begin", FUNCTIONS))
STEPPING = ("torch", "tensorflow")  # modules whose programs may take steps; time limits start at the first step
_OF_OPERATORS = ("library_calls.observe_compilations", "pytorch.", "tensorflow.")

# The first steps are observed, and later one window of steps in WINDOWS, as steps are much alike.
FIRST_STEPS = 64
WINDOW = 16
WINDOWS = 16
FIRST_RESULTS = 3
MAX_COUNTED = 2000  # counted lines of one kind
MAX_PAUSE = 2.0  # seconds without a step, after which the process seems to do something else


class ObserverCallbacks:
    """Callbacks that observers register, by the event that calls them."""

    def __init__(self) -> None:
        self.before_writing: list[Callable[[], object]] = []  # before each writing of the file, also the last
        self.at_end: list[Callable[[], object]] = []  # once, at the end of the process or of the observation
        self.in_child: list[Callable[[], object]] = []  # in each forked child, to drop the state of the parent
        self.at_sampling: list[Callable[[bool], object]] = []  # argument: whether the next steps are observed
        self.each_step: list[Callable[[], object]] = []  # also when nothing more is collected
        self.each_pass: list[Callable[[Any], object]] = []  # argument: a PyTorch loader that is about to be iterated


class StepSampling:
    """Decides which steps of a process are observed, and when to stop."""

    def __init__(self, profiling: Mapping[str, Any]) -> None:
        self.is_on = True  # False during steps that are not observed
        self.steps = self.sampled = 0
        self._thread, self._last_step_at = 0, 0.0  # thread and time of the last step
        self._max_steps: int | None = profiling.get("steps")
        self._max_seconds: float | None = profiling.get("seconds")
        self._end = float("inf")  # set at the first step

    @property
    def has_time_limit(self) -> bool:
        """Whether the run ends some seconds after its first step."""
        return self._max_seconds is not None

    @property
    def has_limit(self) -> bool:
        """Whether the run ends after some steps or seconds."""
        return self._max_steps is not None or self.has_time_limit

    def step(self) -> bool:
        """Count a step of an optimizer; return whether it was the first."""
        self.steps += 1
        self.sampled += self.is_on
        self._thread, self._last_step_at = get_ident(), time.monotonic()
        if self.steps == 1 and self._max_seconds is not None:
            self._end = self._last_step_at + self._max_seconds
        return self.steps == 1

    def has_all_steps(self) -> bool:
        """Return whether the requested number of steps was taken."""
        return self._max_steps is not None and self.steps >= self._max_steps

    def has_timed_out(self) -> bool:
        """Return whether the requested time has passed."""
        return time.monotonic() >= self._end

    def is_next_sampled(self) -> bool:
        """Return whether to observe the next step."""
        return self.steps < FIRST_STEPS or self.steps // WINDOW % WINDOWS == 0

    def seems_idle(self) -> bool:
        """Return whether the thread of the last step seems to do something other than steps."""
        return get_ident() == self._thread and time.monotonic() > self._last_step_at + MAX_PAUSE

    def forget(self) -> None:
        """In a forked child: count from 0."""
        self.is_on = True
        self.steps = self.sampled = 0


class Observer:
    """The state that observers of this process share."""

    def __init__(self, agent: Agent, profiling: Mapping[str, Any]) -> None:
        self.agent = agent
        self.confirm = int(profiling.get("confirm") or 0)  # number of repeats of each distinct operator call
        self.racing_only = bool(profiling.get("racing_only"))  # only calls in which threads may race are repeated
        self.collecting = True  # False once the observation has ended
        self.sampling = StepSampling(profiling)
        self.callbacks = ObserverCallbacks()
        self.parts: dict[str, Any] = {}  # by framework: the object that its observers share
        self._requested = {kind for kind in (FUNCTIONS, OPERATORS) if profiling.get(kind)}
        self._file = ProfileFile(agent.run)
        self._counted: dict[str, dict[object, dict[str, Any]]] = {}  # by kind
        self._observed: set[tuple[str, str]] = set()
        self._finished = False
        # In a forked child, which writes a file only if it has observed something: number of results handed over.
        self._handed_over: int | None = None

    @property
    def _is_child(self) -> bool:
        return self._handed_over is not None

    @property
    def directory(self) -> str:
        """The directory of the observations."""
        return f"{self.agent.run}/{DIRECTORY}"

    # What observers call

    def write(self, kind: str, key: object, line: Mapping[str, object]) -> None:
        """Add or replace the line of a kind and key; it is serialized at the next write, so counts in it may go on."""
        self._file.put(kind, key, line)
        if self._file.is_due():
            self.flush()

    def count(
        self, kind: str, name: str, facts: dict[str, Any], places_are: str = "where", places: list[Place] | None = None
    ) -> None:
        """Count a call of this name with these facts, at the current place in the user's code."""
        places = where() if places is None else places
        lines = self._counted.setdefault(kind, {})
        key = (name, *places[:1], *[(fact, str(facts[fact])) for fact in sorted(facts)])
        line = lines.get(key)
        if line is None and len(lines) < MAX_COUNTED:
            line = lines[key] = {"name": name, **facts, "calls": 0, places_are: places}
            self.write(kind, key, line)
        if line is not None:
            line["calls"] += 1

    @property
    def counts_functions(self) -> bool:
        """Whether calls of functions are counted, with their places."""
        return FUNCTIONS in self._requested

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {
            UpdateDone: lambda _: self.step(),
            EvaluationDue: lambda _: self.resume(),
            LoaderBegan: self._begin_pass,
        }

    def step(self) -> None:
        """Handle a step of an optimizer."""
        if self.sampling.step() and self.sampling.has_time_limit:
            self.agent.attempt(append, f"{self.directory}/stepped", b".")
        if self.collecting and self.sampling.has_all_steps():
            self.stop()
        elif self.collecting:
            self._sample(self.sampling.is_next_sampled())
            self.check_clock()
        self._call_all(self.callbacks.each_step)

    def _call_all(self, functions: list[Callable[..., object]], *arguments: Any) -> None:
        for function in functions:
            self.agent.attempt(function, *arguments)

    def _begin_pass(self, event: LoaderBegan) -> None:
        if self.collecting:
            self._call_all(self.callbacks.each_pass, event.loader)

    def resume(self) -> None:
        """Observe until the next step, as something new, such as an evaluation, may begin."""
        if self.collecting:
            self._sample(on=True)

    def _sample(self, on: bool) -> None:
        if on is not self.sampling.is_on:
            self.sampling.is_on = on
            self._call_all(self.callbacks.at_sampling, on)

    def note(self, text: str) -> None:
        """Write a note on what could not be observed, and why."""
        self.write("note", text, {"text": text})

    def note_helper(self, pid: int) -> None:
        """Write that a process was started for measuring: its system calls are not the training's."""
        self.write("helper", pid, {"pid": pid})

    # What the agent calls

    def begin(self) -> None:
        """Begin to observe this process, which may be killed at any moment."""
        gc.callbacks.append(self._on_garbage_collection)
        for name in ("_exit", "execv", "execve"):
            replace(os, name, self._make_final)
        if self.sampling.has_limit:
            hide_interrupts(self.directory, lambda: self._is_child)
        for observer, kind in IN_EACH_PROCESS:
            if kind is None or kind in self._requested:
                self.agent.attempt(self._observe, observer)
        self.flush()

    def _on_garbage_collection(self, phase: str, _: object) -> None:
        # Serves as a timer: without a thread, nothing else is called regularly in every program.
        if phase == "stop" and self.collecting:
            if not self.sampling.is_on and self.sampling.seems_idle():
                self.resume()
            self.check_clock()

    def _make_final(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement of a function that ends the process, which finishes the observation first."""

        def last(*arguments: Any, **keywords: Any) -> Any:
            self.agent.attempt(self.finish)
            return original(*arguments, **keywords)

        return last

    def importing(self, name: str, begins: bool) -> None:
        """Handle begin or end of a package's import, whose many calls are not counted."""
        if begins and name in STEPPING and self.sampling.has_time_limit:
            self.agent.attempt(append, f"{self.directory}/stepping", b".")
        functions: Any = self.parts.get(FUNCTIONS)
        if functions is not None and "." not in name:
            self.agent.attempt(functions.importing, name, begins)

    def loaded(self, name: str, module: ModuleType) -> None:
        """Call the observers of a module that has been imported."""
        for observer in OBSERVERS.get(name, ()):
            kind = OPERATORS if observer.startswith(_OF_OPERATORS) else FUNCTIONS if observer == THREADS else None
            is_wanted = kind is None or kind in self._requested
            if is_wanted and (observer, name) not in self._observed:
                self._observed.add((observer, name))
                self.agent.attempt(self._observe, observer, module)

    def _observe(self, observer: str, *module: ModuleType) -> None:
        from importlib import import_module

        file, _, name = observer.rpartition(".")
        getattr(import_module(f"{__name__}.{file}"), name)(*module, self)

    def check_clock(self) -> None:
        """Write or stop if it is time to."""
        if self.sampling.has_timed_out():
            self.stop()
        elif self._file.is_due():
            self.flush()

    def note_handover(self) -> None:
        """Handle a result sent to another process, which may kill this one: write after a child's first results."""
        if self._handed_over is not None:
            self._handed_over += 1
            if self._handed_over <= FIRST_RESULTS and self.collecting:
                return self.flush()
        return self.check_clock()

    def flush(self) -> None:
        """Write the observations so far."""
        if self._file.is_busy or self._file.is_full():
            return
        self._file.is_busy = True
        start = time.monotonic()
        try:
            self._call_all(self.callbacks.before_writing)
            if self._file or not self._is_child:
                self._note_process()
                self.agent.attempt(self._file.write)
        finally:
            self._file.schedule_next(time.monotonic() - start)
            self._file.is_busy = False

    def stop(self) -> None:
        """End the observation: read final values, inform the launcher, and collect no more."""
        if self.collecting:
            self._call_all(self.callbacks.at_end)
            self.flush()
            self.collecting = False
            self.agent.attempt(append, f"{self.directory}/{ENOUGH}", b".")

    def finish(self) -> None:
        """Write the rest at the end of the process."""
        if self._finished:
            return
        self._finished = True
        if self.collecting:
            self._call_all(self.callbacks.at_end)
        self.flush()
        self.collecting = False

    def forget(self) -> None:
        """In a forked child: drop the state of the parent."""
        self._file.forget()
        self._finished, self._handed_over = False, 0
        self.sampling.forget()
        self._counted.clear()
        self._call_all(self.callbacks.in_child)
        if self.agent.attempt(self._file.is_full):
            self.collecting = False
            self._sample(on=False)

    def _note_process(self) -> None:
        line = {
            "python": "{}.{}.{}".format(*sys.version_info),
            "argv": [str(part)[:1000] for part in getattr(sys, "argv", [])[:64]],
            "pid": os.getpid(),
            "identity": self.agent.journal.known_identity,
            "steps": self.sampling.steps,
            "sampled_steps": self.sampling.sampled,
            "left_out": self._file.left_out,
        }
        self._file.put("process", "", line)


def start(agent: Agent, settings: Mapping[str, Any]) -> None:
    """Begin the observation that the plan asks for."""
    observer = Observer(agent, settings)
    agent.imports.executed, agent.counts_all_steps = observer.importing, True
    agent.listeners.append((OBSERVERS, observer.loaded))
    agent.event_listeners.append(lambda _framework, _events: [observer])
    atexit.register(observer.finish)
    os.register_at_fork(after_in_child=observer.forget)
    observer.begin()
