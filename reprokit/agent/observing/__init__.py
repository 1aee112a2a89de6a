"""Observes a training for `reprokit profile`: functions, operators, settings, loaders and orders of completion.

An observer is a function `def observe(module, observer) -> None` of a file here, called when the module that it waits
for (OBSERVERS) has been executed. What it finds it hands to Observer.write, or has counted by Observer.count.
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
from ..events import EvaluationDue, LoaderBegan, UpdateDone
from . import settings
from .files import DIRECTORY, ProfileFile, append

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any

    from ..agent import Agent
    from ..core.user_frames import Place
    from ..events import Handler, TrainingEvent
    from .functions import Functions

__all__ = ["OBSERVERS", "Observer", "start", "where"]

FUNCTIONS, OPERATORS = "functions", "operators"  # what is asked for
THREADS = "functions.observe"
# Which observers wait for a module, by file and function. They are called once a module and process.
OBSERVERS: dict[str, tuple[str, ...]] = {
    "asyncio.tasks": ("library_calls.observe_waiting",),
    "concurrent.futures._base": ("library_calls.observe_waiting",),
    "concurrent.futures.thread": ("library_calls.observe_thread_pool",),
    "jax": ("library_calls.observe_compilations",),
    "joblib.parallel": ("library_calls.observe_joblib",),
    "multiprocessing.context": ("library_calls.observe_shared_memory",),
    "multiprocessing.pool": ("library_calls.observe_pool",),
    "multiprocessing.queues": ("library_calls.observe_queues",),
    "tensorflow": ("settings.observe_tensorflow", "tensorflow_operators.observe"),
    "tensorflow.python.client.session": ("settings.observe_sessions",),
    "tensorflow.python.data.ops.dataset_ops": ("library_calls.observe_datasets",),
    "threading": (THREADS, "library_calls.observe_threads"),
    "torch": ("settings.observe_torch", "library_calls.observe_evaluations", "torch_operators.observe"),
    "torch._inductor.codecache": ("torch_inductor.observe",),
    "torch._inductor.output_code": ("torch_inductor.observe",),
    "torch.utils.data.dataloader": ("library_calls.observe_loaders", "torch_operators.observe_loaders"),
    "xgboost.training": ("settings.observe_xgboost",),
}
STEPPING = ("torch", "tensorflow")  # whoever imports these may take steps, from the first of which a bound counts
_OF_OPERATORS = ("library_calls.observe_compilations", "torch_operators.", "torch_inductor.", "tensorflow_operators.")

# The first steps are looked at, and of the later ones one window in so many: what steps do repeats.
FIRST_STEPS = 64
WINDOW = 16
WINDOWS = 16
FIRST_RESULTS = 3
MAX_COUNTED = 2000  # lines of one kind
MAX_PAUSE = 2.0  # seconds after which something else than steps seems to go on


class ObserverCallbacks:
    """What observers have called, each list at its time."""

    def __init__(self) -> None:
        self.before_writing: list[Callable[[], object]] = []  # before each writing of the file, also the last
        self.at_end: list[Callable[[], object]] = []  # once at the end of the process, or when enough was seen
        self.in_child: list[Callable[[], object]] = []  # in each forked child, to drop what the parent noted
        self.at_sampling: list[Callable[[bool], object]] = []  # whether the next steps are looked at
        self.each_step: list[Callable[[], object]] = []  # also when nothing more is collected
        self.each_pass: list[Callable[[Any], object]] = []  # with a loader of PyTorch that is about to be iterated


class StepSampling:
    """The steps of a process, of which some are looked at, and when enough was seen."""

    def __init__(self, profiling: Mapping[str, Any]) -> None:
        self.is_on = True  # False during steps that are not looked at
        self.steps = self.sampled = 0
        self._thread, self._stepped = 0, 0.0  # of the last step, and when it was
        self._enough: int | None = profiling.get("steps")
        self._seconds: float | None = profiling.get("seconds")
        self._end = float("inf")  # until there is a step

    @property
    def has_bound(self) -> bool:
        """Whether the run is to be ended so many seconds after its first step."""
        return self._seconds is not None

    @property
    def is_bounded(self) -> bool:
        """Whether the run is to be ended when enough was seen."""
        return self._enough is not None or self.has_bound

    def step(self) -> bool:
        """An optimizer has taken a step; return whether it was the first."""
        self.steps += 1
        self.sampled += self.is_on
        self._thread, self._stepped = get_ident(), time.monotonic()
        if self.steps == 1 and self._seconds is not None:
            self._end = self._stepped + self._seconds
        return self.steps == 1

    def has_enough(self) -> bool:
        """Return whether so many steps were taken as were asked for."""
        return self._enough is not None and self.steps >= self._enough

    def is_over(self) -> bool:
        """Return whether the time is over."""
        return time.monotonic() >= self._end

    def wants_next(self) -> bool:
        """Return whether the next step is to be looked at."""
        return self.steps < FIRST_STEPS or self.steps // WINDOW % WINDOWS == 0

    def seems_over(self) -> bool:
        """Return whether something else than steps seems to go on in the thread of the last one."""
        return get_ident() == self._thread and time.monotonic() > self._stepped + MAX_PAUSE

    def forget(self) -> None:
        """In a forked child: the parent's steps are the parent's."""
        self.is_on = True
        self.steps = self.sampled = 0


class Observer:
    """What the observers of this process share."""

    def __init__(self, agent: Agent, profiling: Mapping[str, Any]) -> None:
        self.agent = agent
        self.confirm = int(profiling.get("confirm") or 0)  # how often each distinct operator call is repeated
        self.collecting = True  # False when enough was seen: then nothing more is to be done
        self.sampling = StepSampling(profiling)
        self.callbacks = ObserverCallbacks()
        self.parts: dict[str, Any] = {}  # what the observers of one framework share
        self._wanted = {kind for kind in (FUNCTIONS, OPERATORS) if profiling.get(kind)}
        self._file = ProfileFile(agent.run)
        self._counted: dict[str, dict[object, dict[str, Any]]] = {}  # by kind
        self._observed: set[tuple[str, str]] = set()
        self._finished = False
        # In a process made by a fork, which has a file only if it has something to tell: results handed over.
        self._handed_over: int | None = None

    @property
    def _is_child(self) -> bool:
        return self._handed_over is not None

    @property
    def directory(self) -> str:
        """Where what was observed is kept."""
        return f"{self.agent.run}/{DIRECTORY}"

    # What observers call

    def write(self, kind: str, key: object, line: Mapping[str, object]) -> None:
        """Keep a line, in place of the one of the same kind and key; it is read when written, so counts may go on."""
        self._file.put(kind, key, line)
        if self._file.is_due():
            self.flush()

    def count(
        self, kind: str, name: str, facts: dict[str, Any], places_are: str = "where", places: list[Place] | None = None
    ) -> None:
        """One more call of this name with these facts, made where the user's code is now."""
        places = where() if places is None else places
        lines = self._counted.setdefault(kind, {})
        key = (name, *places[:1], *[(fact, str(facts[fact])) for fact in sorted(facts)])
        line = lines.get(key)
        if line is None and len(lines) < MAX_COUNTED:
            line = lines[key] = {"name": name, **facts, "calls": 0, places_are: places}
            self.write(kind, key, line)
        if line is not None:
            line["calls"] += 1

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {
            UpdateDone: lambda _: self.step(),
            EvaluationDue: lambda _: self.resume(),
            LoaderBegan: self._begin_pass,
        }

    def step(self) -> None:
        """An optimizer has taken a step."""
        if self.sampling.step() and self.sampling.has_bound:
            self.agent.attempt(append, f"{self.directory}/stepped", b".")
        if self.collecting and self.sampling.has_enough():
            self.stop()
        elif self.collecting:
            self._sample(self.sampling.wants_next())
            self.look_at_clock()
        self._call_all(self.callbacks.each_step)

    def _call_all(self, functions: list[Callable[..., object]], *arguments: Any) -> None:
        for function in functions:
            self.agent.attempt(function, *arguments)

    def _begin_pass(self, event: LoaderBegan) -> None:
        if self.collecting:
            self._call_all(self.callbacks.each_pass, event.loader)

    def resume(self) -> None:
        """Something else than the steps so far may begin, as an evaluation: look at it, until the next step."""
        if self.collecting:
            self._sample(on=True)

    def _sample(self, on: bool) -> None:
        if on is not self.sampling.is_on:
            self.sampling.is_on = on
            self._call_all(self.callbacks.at_sampling, on)

    def note(self, text: str) -> None:
        """Say what could not be observed, and why."""
        self.write("note", text, {"text": text})

    def helper(self, pid: int) -> None:
        """Say that a process was started to measure: what it asks the kernel for is no business of the training's."""
        self.write("helper", pid, {"pid": pid})

    # What the agent calls

    def begin(self) -> None:
        """Begin to observe this process, which may be ended at any moment."""
        gc.callbacks.append(self._collected)
        for name in ("_exit", "execv", "execve"):
            replace(os, name, self._make_last)
        if self.sampling.is_bounded:
            hide_interrupts(self.directory, lambda: self._is_child)
        settings.ObservedSettings(self)
        if FUNCTIONS in self._wanted:
            from . import functions

            self.agent.attempt(functions.begin, self)
        self.flush()

    def _collected(self, phase: str, _: object) -> None:
        # The interpreter calls this now and then in every program, which nothing else does without a thread.
        if phase == "stop" and self.collecting:
            if not self.sampling.is_on and self.sampling.seems_over():
                self.resume()
            self.look_at_clock()

    def _make_last(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Around a function after which nothing else of this process is called."""

        def last(*arguments: Any, **keywords: Any) -> Any:
            self.agent.attempt(self.finish)
            return original(*arguments, **keywords)

        return last

    def importing(self, name: str, begins: bool) -> None:
        """A package is about to be executed, or has been: what it calls for that is not counted, as it is much."""
        if begins and name in STEPPING and self.sampling.has_bound:
            self.agent.attempt(append, f"{self.directory}/stepping", b".")
        functions: Functions | None = self.parts.get(FUNCTIONS)
        if functions is not None and "." not in name:
            self.agent.attempt(functions.importing, name, begins)

    def loaded(self, name: str, module: ModuleType) -> None:
        """A module that observers wait for has been executed."""
        for observer in OBSERVERS.get(name, ()):
            kind = OPERATORS if observer.startswith(_OF_OPERATORS) else FUNCTIONS if observer == THREADS else None
            is_wanted = kind is None or kind in self._wanted
            if is_wanted and (observer, name) not in self._observed:
                self._observed.add((observer, name))
                self.agent.attempt(self._observe, observer, module)

    def _observe(self, observer: str, module: ModuleType) -> None:
        from importlib import import_module

        file, _, name = observer.partition(".")
        getattr(import_module(f"{__name__}.{file}"), name)(module, self)

    def look_at_clock(self) -> None:
        """Write or stop where it is time to."""
        if self.sampling.is_over():
            self.stop()
        elif self._file.is_due():
            self.flush()

    def hand_over(self) -> None:
        """A result goes to another process, which may end this one then: a child's first ones are worth a writing."""
        if self._handed_over is not None:
            self._handed_over += 1
            if self._handed_over <= FIRST_RESULTS and self.collecting:
                return self.flush()
        return self.look_at_clock()

    def flush(self) -> None:
        """Write what is known so far."""
        if self._file.is_busy or self._file.is_full():
            return
        self._file.is_busy = True
        begun = time.monotonic()
        try:
            self._call_all(self.callbacks.before_writing)
            if self._file or not self._is_child:
                self._note_process()
                self.agent.attempt(self._file.write)
        finally:
            self._file.took(time.monotonic() - begun)
            self._file.is_busy = False

    def stop(self) -> None:
        """Enough was seen: read what is read at the end, tell the launcher, and collect no more."""
        if self.collecting:
            self._call_all(self.callbacks.at_end)
            self.flush()
            self.collecting = False
            self.agent.attempt(append, f"{self.directory}/{ENOUGH}", b".")

    def finish(self) -> None:
        """At the end of the process."""
        if self._finished:
            return
        self._finished = True
        if self.collecting:
            self._call_all(self.callbacks.at_end)
        self.flush()
        self.collecting = False

    def forget(self) -> None:
        """In a forked child: what the parent noted is the parent's."""
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


def start(agent: Agent, plan: bytes) -> None:
    """Begin to observe what this plan asks for."""
    import json

    observer = Observer(agent, json.loads(plan)["profiling"])
    agent.observer = observer
    agent.listeners.append((OBSERVERS, observer.loaded))
    agent.event_listeners.append(lambda _framework, _events: [observer])
    atexit.register(observer.finish)
    os.register_at_fork(after_in_child=observer.forget)
    observer.begin()
