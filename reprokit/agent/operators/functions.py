"""Counts calls of functions, of libraries and of Python, with their callers, by cProfile's C code in every thread.

Before Python 3.12 each thread has a profile of its own. From 3.12 on one profile covers all threads; if threads switch
in the middle of functions, some calls are attributed to the other thread.
If a training profiles itself, the agent stops counting, and writes a note.
"""

from __future__ import annotations

import sys
from _thread import get_ident

from ..core.live_objects import without_collections
from ..core.patching import replace
from ..core.user_frames import running_code
from . import FUNCTIONS, Observer
from .call_graph import CallCounts, describe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType
    from typing import Any


MAX_ENTRIES = 50_000  # counted functions; beyond, the program generates code without end
MAX_THREADS = 64  # profiles, before those of ended threads are merged
_monitoring: Any = getattr(sys, "monitoring", None)
_OF_ALL_THREADS = sys.version_info >= (3, 12)


class FunctionProfiles:
    """The profiles of this process."""

    def __init__(self, observer: Observer) -> None:
        import _lsprof

        self._observer = observer
        self._profiler: Any = _lsprof.Profiler
        self._getprofile = sys.getprofile
        self._profiles: list[tuple[int, Any]] = []  # thread and profile
        self._parents: list[object] = []  # in a forked child: the profiles of its parent
        self._ended_counts = CallCounts()  # merged counts of ended threads
        self._has_stopped = self._reported = False
        self._imports: tuple[str, int] | None = None  # a package, and the thread that imports it
        self._root: CodeType | None = None  # the user's function running when this thread's profile was enabled
        _lsprof.Profiler = self._yielding_profiler(_lsprof.Profiler)  # type: ignore[misc]
        replace(sys, "setprofile", self._make_setprofile)
        replace(sys, "getprofile", self._make_getprofile)
        if _OF_ALL_THREADS:
            replace(_monitoring, "use_tool_id", self._make_use_tool_id)

    # The threads

    def enable(self) -> None:
        """Start to count in this thread."""
        if self._has_stopped:
            return
        if len(self._profiles) >= MAX_THREADS:
            self._merge_ended()
        profiler = self._profiler()
        self._profiles.append((get_ident(), profiler))
        profiler.enable()

    def follow_threads(self, threading: ModuleType) -> None:
        """Let new threads call sys.setprofile(hook), which starts to count there."""
        if not (_OF_ALL_THREADS or self._has_stopped) and threading.__dict__.get("_profile_hook") is None:
            threading.__dict__["_profile_hook"] = self.hook

    def hook(self, *_: object) -> None:
        """Represent the profile function in new threads; never called."""

    def _merge_ended(self) -> None:
        alive = sys._current_frames()
        for thread, profiler in self._profiles:
            if thread not in alive:
                self._ended_counts.add(without_collections(profiler.getstats))
        self._profiles = [(thread, profiler) for thread, profiler in self._profiles if thread in alive]

    def sample(self, on: bool) -> None:
        """Resume or pause counting in this thread."""
        profiler = self._current_profile()
        if profiler is None or self._has_stopped:
            return
        if not _OF_ALL_THREADS:
            current = self._getprofile()
            if current is not None and current is not profiler:
                self.stop_counting("by other means than sys.setprofile")
                return
        if on:
            self._root = next(iter(running_code(sys._getframe())), None)
            profiler.enable()
        else:
            profiler.disable()

    def importing(self, name: str, begins: bool) -> None:
        """Pause counting in the importing thread during the outermost import of a package."""
        if self._imports is None and begins:
            self._imports = name, get_ident()
            self.sample(on=False)
        elif self._imports == (name, get_ident()) and not begins:
            self._imports = None
            self.sample(on=self._observer.sampling.is_on)

    def _current_profile(self) -> Any:
        thread = get_ident()
        return next(
            (profiler for owner, profiler in reversed(self._profiles) if _OF_ALL_THREADS or owner == thread), None
        )

    # Other profilers

    def stop_counting(self, by: str) -> None:
        """Stop counting, as the training uses a profiler itself."""
        if self._has_stopped:
            return
        self._has_stopped = True
        profiler = self._current_profile()
        if profiler is not None and (_OF_ALL_THREADS or self._getprofile() is profiler):
            profiler.disable()
        threading = sys.modules.get("threading")
        if threading is not None and threading.__dict__.get("_profile_hook") == self.hook:
            threading.__dict__["_profile_hook"] = None
        self._observer.note(f"calls of functions were not counted any more as the training profiles itself: {by}")

    def _yielding_profiler(self, original: Any) -> Any:
        """Return a base class of cProfile.Profile that makes the agent stop counting when it is enabled."""
        functions = self

        class Profiler(original):  # type: ignore[misc]
            def enable(self, *arguments: Any, **keywords: Any) -> Any:
                functions.stop_counting("cProfile")
                return super().enable(*arguments, **keywords)

        Profiler.__module__, Profiler.__qualname__ = original.__module__, original.__qualname__
        return Profiler

    def _make_setprofile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def setprofile(function: Any, *rest: Any) -> Any:
            if function == self.hook:
                self._observer.agent.attempt(self.enable)
                return None
            if function is None and self._is_agents(self._getprofile()):
                return None  # a cleanup must not remove the agent's profile
            if function is not None and not _OF_ALL_THREADS:
                self.stop_counting("sys.setprofile")
            return original(function, *rest)

        return setprofile

    def _make_getprofile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def getprofile() -> Any:
            profile = original()  # code that saves and restores the profile must not get the agent's
            return None if self._is_agents(profile) else profile

        return getprofile

    def _is_agents(self, profile: Any) -> bool:
        return type(profile) is self._profiler

    def _make_use_tool_id(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def use_tool_id(tool: int, name: str) -> Any:
            if tool == _monitoring.PROFILER_ID and name != "cProfile":  # which _yielding_profiler handles
                self.stop_counting(f"sys.monitoring for {name}"[:200])
            return original(tool, name)

        return use_tool_id

    # Results

    def report(self) -> None:
        """Write the counts so far."""
        if self._reported:
            return
        calls, frames = self._ended_counts.copied(), sys._current_frames()
        for thread, profiler in list(self._profiles):
            running = running_code(frames.get(thread)) + ([] if self._root is None else [self._root])
            calls.add(without_collections(profiler.getstats), running)
        if len(calls) > MAX_ENTRIES:
            self.stop_counting(f"more than {MAX_ENTRIES} functions, which are made as it runs")
        for name, line in describe(calls):
            self._observer.write("function", name, line)

    def end(self) -> None:
        """Stop counting, and write the counts."""
        self.sample(on=False)
        self.report()
        self._has_stopped = self._reported = True

    def forget(self) -> None:
        """In a forked child, whose only thread is this one: count from 0."""
        parent_profile = self._current_profile()
        self._parents.append(self._profiles)  # not freed, as that would copy the memory pages of the parent's counts
        self._profiles, self._ended_counts = [], CallCounts()
        if parent_profile is not None and not self._has_stopped:
            parent_profile.disable()
            self._root = next(iter(running_code(sys._getframe())), None)
            self.enable()


def begin(observer: Observer) -> None:
    """Count calls in this process."""
    functions = FunctionProfiles(observer)
    observer.callbacks.before_writing.append(functions.report)
    observer.callbacks.at_end.insert(0, functions.end)
    observer.callbacks.in_child.append(functions.forget)
    observer.callbacks.at_sampling.append(functions.sample)
    observer.parts[FUNCTIONS] = functions
    functions.enable()


def observe(module: ModuleType, observer: Observer) -> None:
    """Follow the threads of the module threading, which was imported."""
    functions: FunctionProfiles | None = observer.parts.get(FUNCTIONS)
    if functions is not None:
        functions.follow_threads(module)
