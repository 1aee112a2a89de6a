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

FUNCTIONS = "functions.observe"
# Which observers wait for a module, by file and function. They are called once a module and process.
OBSERVERS: dict[str, tuple[str, ...]] = {
    "asyncio.tasks": ("library_calls.observe_waiting",),
    "concurrent.futures._base": ("library_calls.observe_waiting",),
    "concurrent.futures.thread": ("library_calls.observe_thread_pool",),
    "jax": ("library_calls.observe_compilations",),
    "joblib.parallel": ("library_calls.observe_joblib",),
    "multiprocessing.pool": ("library_calls.observe_pool",),
    "multiprocessing.queues": ("library_calls.observe_queues",),
    "tensorflow": ("settings.observe_tensorflow", "tensorflow_operators.observe"),
    "tensorflow.python.client.session": ("settings.observe_sessions",),
    "tensorflow.python.data.ops.dataset_ops": ("library_calls.observe_datasets",),
    "threading": (FUNCTIONS, "library_calls.observe_threads"),
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


class Observer:
    """What the observers of this process share."""

    def __init__(self, agent: Agent, profiling: Mapping[str, Any]) -> None:
        self.agent = agent
        self.confirm = int(profiling.get("confirm") or 0)  # how often each distinct operator call is repeated
        self.collecting = True  # False when enough was seen: then nothing more is to be done
        self.sampling = True  # False during steps that are not looked at; see at_sampling
        self.steps = 0
        self.sampled_steps = 0
        self.functions: Functions | None = None
        self._functions = bool(profiling.get("functions"))
        self._operators = bool(profiling.get("operators"))
        self._enough_steps: int | None = profiling.get("steps")
        self._seconds: float | None = profiling.get("seconds")
        self._end: float | None = None if self._seconds is None else float("inf")  # until there is a step
        self._file = ProfileFile(agent.run)
        # What observers have called:
        self.before_writing: list[Callable[[], object]] = []  # before each writing of the file, also the last
        self.at_end: list[Callable[[], object]] = []  # once at the end of the process, or when enough was seen
        self.in_child: list[Callable[[], object]] = []  # in each forked child, to drop what the parent noted
        self.at_sampling: list[Callable[[bool], object]] = []  # whether the next steps are looked at
        self.each_step: list[Callable[[], object]] = []  # also when nothing more is collected
        self.each_pass: list[Callable[[Any], object]] = []  # with a loader of PyTorch that is about to be iterated
        self.parts: dict[str, Any] = {}  # what the observers of one framework share
        self._counted: dict[str, dict[object, dict[str, Any]]] = {}  # by kind
        self._observed: set[tuple[str, str]] = set()
        self._finished = False
        self._flushing = False
        self._stepping, self._stepped = 0, 0.0  # the thread of the last step, and when it was
        self._handed_over = 0  # results
        self._is_child = False  # made by a fork: it has a file only if it has something to tell

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

    def failed(self, error: Exception, handler: Handler) -> None:
        self.agent.failed(handler, error)

    def step(self) -> None:
        """An optimizer has taken a step."""
        if not self.steps and self._seconds is not None:
            self._end = time.monotonic() + self._seconds
            self.agent.attempt(append, f"{self.directory}/stepped", b".")
        self.steps += 1
        self._stepping, self._stepped = get_ident(), time.monotonic()
        self.sampled_steps += self.sampling
        if self.collecting and self._enough_steps is not None and self.steps >= self._enough_steps:
            self.stop()
        elif self.collecting:
            self._sample(self.steps < FIRST_STEPS or self.steps // WINDOW % WINDOWS == 0)
            self.look_at_clock()
        self._call_all(self.each_step)

    def _call_all(self, functions: list[Callable[..., object]], *arguments: Any) -> None:
        for function in functions:
            self.agent.attempt(function, *arguments)

    def _begin_pass(self, event: LoaderBegan) -> None:
        if self.collecting:
            self._call_all(self.each_pass, event.loader)

    def resume(self) -> None:
        """Something else than the steps so far may begin, as an evaluation: look at it, until the next step."""
        if self.collecting:
            self._sample(on=True)

    def _sample(self, on: bool) -> None:
        if on is not self.sampling:
            self.sampling = on
            self._call_all(self.at_sampling, on)

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
        if self._enough_steps is not None or self._end is not None:
            replace(sys, "excepthook", self._make_excepthook)
        settings.ObservedSettings(self)
        if self._functions:
            from . import functions

            self.agent.attempt(functions.begin, self)
        self.flush()

    def _collected(self, phase: str, _: object) -> None:
        # The interpreter calls this now and then in every program, which nothing else does without a thread.
        if phase == "stop" and self.collecting:
            if not self.sampling and get_ident() == self._stepping and time.monotonic() > self._stepped + MAX_PAUSE:
                self.resume()
            self.look_at_clock()

    def _make_last(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Around a function after which nothing else of this process is called."""

        def last(*arguments: Any, **keywords: Any) -> Any:
            self.agent.attempt(self.finish)
            return original(*arguments, **keywords)

        return last

    def _make_excepthook(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap an excepthook: the launcher ends a bounded run by an interrupt, of which nobody needs the traceback.

        A worker's threads pass an exception here when the interrupted process does not fetch what it asked for.
        """

        def excepthook(kind: Any, *rest: Any) -> None:
            expected = (KeyboardInterrupt, ConnectionError, EOFError) if self._is_child else KeyboardInterrupt
            if not (issubclass(kind, expected) and os.path.exists(f"{self.directory}/enough")):
                original(kind, *rest)

        return excepthook

    def importing(self, name: str, begins: bool) -> None:
        """A package is about to be executed, or has been: what it calls for that is not counted, as it is much."""
        if begins and name in STEPPING and self._seconds is not None:
            self.agent.attempt(append, f"{self.directory}/stepping", b".")
        if self.functions is not None and "." not in name:
            self.agent.attempt(self.functions.importing, name, begins)

    def loaded(self, name: str, module: ModuleType) -> None:
        """A module that observers wait for has been executed."""
        for observer in OBSERVERS.get(name, ()):
            is_wanted = (
                self._operators if observer.startswith(_OF_OPERATORS) else self._functions or observer != FUNCTIONS
            )
            if is_wanted and (observer, name) not in self._observed:
                self._observed.add((observer, name))
                self.agent.attempt(self._observe, observer, module)

    def _observe(self, observer: str, module: ModuleType) -> None:
        from importlib import import_module

        file, _, name = observer.partition(".")
        getattr(import_module(f"{__name__}.{file}"), name)(module, self)

    def look_at_clock(self) -> None:
        """Write or stop where it is time to."""
        if self._end is not None and time.monotonic() >= self._end:
            self.stop()
        elif self._file.is_due():
            self.flush()

    def hand_over(self) -> None:
        """A result goes to another process, which may end this one then: a child's first ones are worth a writing."""
        self._handed_over += 1
        if self._is_child and self._handed_over <= FIRST_RESULTS and self.collecting:
            self.flush()
        else:
            self.look_at_clock()

    def flush(self) -> None:
        """Write what is known so far."""
        if self._flushing or self._file.is_full():
            return
        self._flushing = True
        begun = time.monotonic()
        try:
            self._call_all(self.before_writing)
            if self._file or not self._is_child:
                self._note_process()
                self.agent.attempt(self._file.write)
        finally:
            self._file.took(time.monotonic() - begun)
            self._flushing = False

    def stop(self) -> None:
        """Enough was seen: read what is read at the end, tell the launcher, and collect no more."""
        if self.collecting:
            self._call_all(self.at_end)
            self.flush()
            self.collecting = False
            self.agent.attempt(append, f"{self.directory}/enough", b".")

    def finish(self) -> None:
        """At the end of the process."""
        if self._finished:
            return
        self._finished = True
        if self.collecting:
            self._call_all(self.at_end)
        self.flush()
        self.collecting = False

    def forget(self) -> None:
        """In a forked child: what the parent noted is the parent's."""
        self._file.forget()
        self._finished = self._flushing = False
        self._is_child = self.sampling = True
        self._handed_over = 0
        self.steps = self.sampled_steps = 0
        self._counted.clear()
        self._call_all(self.in_child)
        if self.agent.attempt(self._file.is_full):
            self.collecting = False
            self._sample(on=False)

    def _note_process(self) -> None:
        line = {
            "python": "{}.{}.{}".format(*sys.version_info),
            "argv": [str(part)[:1000] for part in getattr(sys, "argv", [])[:64]],
            "pid": os.getpid(),
            "identity": self.agent.journal.known_identity,
            "steps": self.steps,
            "sampled_steps": self.sampled_steps,
            "left_out": self._file.left_out,
        }
        self._file.put("process", "", line)


def start(agent: Agent, plan: bytes) -> None:
    """Begin to observe what this plan asks for."""
    import json

    observer = Observer(agent, json.loads(plan)["profiling"])
    agent.observer = observer
    agent.listeners.append((OBSERVERS, observer.loaded))
    atexit.register(observer.finish)
    os.register_at_fork(after_in_child=observer.forget)
    observer.begin()
