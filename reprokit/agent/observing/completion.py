"""Where results are taken in the order in which they are finished, which depends on timing."""

from __future__ import annotations

from ..core.user_frames import where
from .call_watch import argument, watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from . import Observer

MAX_PLACES = 100

# Of each module the functions, and how they are told; those of Pool's are methods.
_FUNCTIONS = {
    "asyncio.tasks": ("as_completed", "wait"),
    "concurrent.futures._base": ("as_completed", "wait"),
}
_PACKAGES = {"asyncio.tasks": "asyncio", "concurrent.futures._base": "concurrent.futures"}
_IN_ORDER = ("map", "starmap", "imap")  # the order of what they are given


class Completions:
    """The places of this process that take results as they come, and how often."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._lines: dict[object, dict[str, Any]] = {}
        observer.in_child(self._lines.clear)

    def note(self, name: str, *, ordered: bool = False) -> None:
        """A call of such a function."""
        places = where(2)
        key = (name, tuple(places[:1]))
        line = self._lines.get(key)
        if line is None:
            if len(self._lines) >= MAX_PLACES:
                return
            line = {"name": name, "calls": 0, "ordered": ordered, "where": places}
            self._lines[key] = line
            self._observer.write("completion", key, line)
        line["calls"] += 1


def observe(module: Any, observer: Observer) -> None:
    """A module that runs things beside each other has been imported."""
    completions = observer.parts.get("completion") or Completions(observer)
    observer.parts["completion"] = completions
    name = module.__name__
    if name == "multiprocessing.pool":
        _observe_pool(module, observer, completions)
    elif name == "multiprocessing.queues":
        for queue in (module.Queue, module.SimpleQueue):
            watch(observer, queue, "put", lambda *_: observer.hand_over())
    elif name == "joblib.parallel":
        _observe_joblib(module, observer, completions)
    else:
        for function in _FUNCTIONS.get(name, ()):
            _observe_function(module, function, observer, completions)


def _observe_pool(module: Any, observer: Observer, completions: Completions) -> None:
    watch(observer, module.Pool, "imap_unordered", lambda *_: completions.note("Pool.imap_unordered"))
    for method in _IN_ORDER:
        watch(
            observer,
            module.Pool,
            method,
            lambda _, __, method=method: completions.note(f"Pool.{method}", ordered=True),  # type: ignore[misc]
        )
    watch(observer, module.Pool, "apply_async", lambda *call: _note_callback(completions, *call))


def _note_callback(completions: Completions, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """A callback is called when the result has come."""
    if argument(arguments, keywords, 4, "callback") is not None:
        completions.note("Pool.apply_async(callback)")


def _observe_function(module: ModuleType, function: str, observer: Observer, completions: Completions) -> None:
    name = f"{_PACKAGES[module.__name__]}.{function}"

    def note(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if function == "wait":
            until = argument(arguments, keywords, 2, "return_when")
            if until in (None, "ALL_COMPLETED"):
                return
        completions.note(name)

    watch(observer, module, function, note)


def _observe_joblib(module: Any, observer: Observer, completions: Completions) -> None:
    def note(arguments: tuple[Any, ...], _: dict[str, Any]) -> None:
        if getattr(arguments[0], "return_generator", False) and getattr(arguments[0], "return_unordered", False):
            completions.note("joblib.Parallel(return_as='generator_unordered')")

    watch(observer, module.Parallel, "__call__", note)
