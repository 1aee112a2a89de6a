"""Calls of functions, counted by cProfile's own C code, in every thread: of libraries and of Python, and who called.

Before Python 3.12 a profile belongs to a thread: each has one of its own. From 3.12 on one sees them all, and where
threads take turns in the middle of functions, some calls are said to come from the other thread's.
A training that profiles itself goes first: then nothing more is counted, and a note says so.
"""

from __future__ import annotations

import sys
from _thread import get_ident

from ..core.live_objects import without_collections
from ..core.patching import replace
from ..core.user_frames import running_code
from . import FUNCTIONS, Observer
from .call_graph import Calls, describe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType
    from typing import Any


MAX_ENTRIES = 50_000  # functions that are counted: a program that makes code without end is not followed
MAX_THREADS = 64  # profiles of threads before those of ended ones are summed up
_monitoring: Any = getattr(sys, "monitoring", None)
_OF_ALL_THREADS = sys.version_info >= (3, 12)


class Functions:
    """The profiles of this process."""

    def __init__(self, observer: Observer) -> None:
        import _lsprof

        self._observer = observer
        self._profiler: Any = _lsprof.Profiler
        self._getprofile = sys.getprofile
        self._own: list[tuple[int, Any]] = []  # thread and profile
        self._parents: list[object] = []  # in a forked child: profiles that are none of its own
        self._ended = Calls()  # of threads that are no more
        self._aside = self._reported = False
        self._imports: tuple[str, int] | None = None  # a package, and the thread that imports it
        self._root: CodeType | None = None  # the user's function that ran already when this thread's profile went on
        _lsprof.Profiler = self._polite(_lsprof.Profiler)  # type: ignore[misc]
        replace(sys, "setprofile", self._make_setprofile)
        replace(sys, "getprofile", self._make_getprofile)
        if _OF_ALL_THREADS:
            replace(_monitoring, "use_tool_id", self._make_use_tool_id)

    # The threads

    def enable(self) -> None:
        """Begin to count in this thread."""
        if self._aside:
            return
        if len(self._own) >= MAX_THREADS:
            self._sum_up_ended()
        profiler = self._profiler()
        self._own.append((get_ident(), profiler))
        profiler.enable()

    def follow_threads(self, threading: ModuleType) -> None:
        """Let threads that begin from now on call sys.setprofile, and so count."""
        if not (_OF_ALL_THREADS or self._aside) and threading.__dict__.get("_profile_hook") is None:
            threading.__dict__["_profile_hook"] = self.hook

    def hook(self, *_: object) -> None:
        """Stands for a profile function where threads begin; it is never called."""

    def _sum_up_ended(self) -> None:
        alive = sys._current_frames()
        for thread, profiler in self._own:
            if thread not in alive:
                self._ended.add(without_collections(profiler.getstats))
        self._own = [(thread, profiler) for thread, profiler in self._own if thread in alive]

    def sample(self, on: bool) -> None:
        """Count in this thread from now on, or no more for a while."""
        profiler = self._of_this_thread()
        if profiler is None or self._aside:
            return
        if not _OF_ALL_THREADS:
            current = self._getprofile()
            if current is not None and current is not profiler:
                self.step_aside("by other means than sys.setprofile")
                return
        if on:
            self._root = next(iter(running_code(sys._getframe())), None)
            profiler.enable()
        else:
            profiler.disable()

    def importing(self, name: str, begins: bool) -> None:
        """The outermost import of a package, in whose thread nothing is counted meanwhile."""
        if self._imports is None and begins:
            self._imports = name, get_ident()
            self.sample(on=False)
        elif self._imports == (name, get_ident()) and not begins:
            self._imports = None
            self.sample(on=self._observer.sampling.is_on)

    def _of_this_thread(self) -> Any:
        thread = get_ident()
        return next((profiler for owner, profiler in reversed(self._own) if _OF_ALL_THREADS or owner == thread), None)

    # Others who profile

    def step_aside(self, by: str) -> None:
        """Somebody else profiles: count no more."""
        if self._aside:
            return
        self._aside = True
        profiler = self._of_this_thread()
        if profiler is not None and (_OF_ALL_THREADS or self._getprofile() is profiler):
            profiler.disable()
        threading = sys.modules.get("threading")
        if threading is not None and threading.__dict__.get("_profile_hook") == self.hook:
            threading.__dict__["_profile_hook"] = None
        self._observer.note(f"calls of functions were not counted any more as the training profiles itself: {by}")

    def _polite(self, original: Any) -> Any:
        """Return what cProfile.Profile is made of, stepping aside for it."""
        functions = self

        class Profiler(original):  # type: ignore[misc]
            def enable(self, *arguments: Any, **keywords: Any) -> Any:
                functions.step_aside("cProfile")
                return super().enable(*arguments, **keywords)

        Profiler.__module__, Profiler.__qualname__ = original.__module__, original.__qualname__
        return Profiler

    def _make_setprofile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def setprofile(function: Any, *rest: Any) -> Any:
            if function == self.hook:
                self._observer.agent.attempt(self.enable)
                return None
            if function is None and self._is_ours(self._getprofile()):
                return None  # whoever tidies up, it was not theirs
            if function is not None and not _OF_ALL_THREADS:
                self.step_aside("sys.setprofile")
            return original(function, *rest)

        return setprofile

    def _make_getprofile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def getprofile() -> Any:
            found = original()  # whoever puts back what there was must not get ours
            return None if self._is_ours(found) else found

        return getprofile

    def _is_ours(self, profile: Any) -> bool:
        return type(profile) is self._profiler

    def _make_use_tool_id(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def use_tool_id(tool: int, name: str) -> Any:
            if tool == _monitoring.PROFILER_ID and name != "cProfile":  # which is us, or has gone through _polite
                self.step_aside(f"sys.monitoring for {name}"[:200])
            return original(tool, name)

        return use_tool_id

    # What was seen

    def report(self) -> None:
        """Hand over the counts so far."""
        if self._reported:
            return
        calls, frames = self._ended.copied(), sys._current_frames()
        for thread, profiler in list(self._own):
            running = running_code(frames.get(thread)) + ([] if self._root is None else [self._root])
            calls.add(without_collections(profiler.getstats), running)
        if len(calls) > MAX_ENTRIES:
            self.step_aside(f"more than {MAX_ENTRIES} functions, which are made as it runs")
        for name, line in describe(calls):
            self._observer.write("function", name, line)

    def end(self) -> None:
        """Enough was seen."""
        self.sample(on=False)
        self.report()
        self._aside = self._reported = True

    def forget(self) -> None:
        """In a forked child: only this thread is left, and its counts begin anew."""
        was_on = self._of_this_thread()
        self._parents.append(self._own)  # not freed: that would copy the pages of all that the parent counted
        self._own, self._ended = [], Calls()
        if was_on is not None and not self._aside:
            was_on.disable()
            self._root = next(iter(running_code(sys._getframe())), None)
            self.enable()


def begin(observer: Observer) -> None:
    """Count calls in this process."""
    functions = Functions(observer)
    observer.callbacks.before_writing.append(functions.report)
    observer.callbacks.at_end.insert(0, functions.end)
    observer.callbacks.in_child.append(functions.forget)
    observer.callbacks.at_sampling.append(functions.sample)
    observer.parts[FUNCTIONS] = functions
    functions.enable()


def observe(module: ModuleType, observer: Observer) -> None:
    """threading has been imported."""
    functions: Functions | None = observer.parts.get(FUNCTIONS)
    if functions is not None:
        functions.follow_threads(module)
