"""Orders of imports: which thread is the first to import a module, where the process has several.

A module may ask for entropy as it is imported, as numpy.random does. In a replay the same thread imports it.
"""

from __future__ import annotations

import sys
from _thread import RLock

from ..core.patching import Function, replace
from .recording import IMPORT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from .actors import ThreadActor
    from .tracks import Orders
    from .turns import ReplayedTurns

AGENT = __name__.partition(".")[0]
MAX_MODULES = 1000  # watched in a process


class ImportOrders:
    """Records or replays which thread of this process is the first to import each module."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._is_replay = orders.is_replay
        self._imports: dict[str, ReplayedTurns | None] = {}
        self._guard = RLock()  # of these; re-entrant because of finalizers
        orders.on_fork(self._forget)

    def watch(self, bootstrap: Any, listeners: list[Callable[[str], object]]) -> None:
        """Patch importlib, which is called for modules that are not imported yet."""
        if hasattr(self._make_find.__code__, "replace"):  # from Python 3.8 on
            replace(bootstrap, "_find_and_load", self._make_find)
            listeners.append(self._note)

    def _make_find(self, original: Function) -> Function:
        threads = sys.modules["threading"]._active
        actors = self._orders.actors

        def find_and_load(name: str, *arguments: Any) -> Any:
            is_ordered = len(threads) > 1 or self._is_replay
            actor = self._orders.attempt(getattr, actors, "current") if is_ordered else None
            if actor is None or actor.importing:  # what a module itself imports follows from it
                return original(name, *arguments)
            turns = None
            is_agents = _is_agents(sys._getframe().f_back)
            actor.importing = AGENT if is_agents else name
            try:
                turns = None if is_agents else self._orders.attempt(self._enter, name, actor)
                return original(name, *arguments)
            finally:
                actor.importing = ""
                if turns is not None:
                    self._orders.attempt(self._leave, turns, actor)

        # Python leaves frames of importlib's own file out of tracebacks.
        find_and_load.__code__ = find_and_load.__code__.replace(co_filename=original.__code__.co_filename)
        return find_and_load

    def _enter(self, name: str, actor: ThreadActor) -> ReplayedTurns | None:
        if not self._is_replay:
            return None
        with self._guard:
            if name not in self._imports and len(self._imports) < MAX_MODULES:
                recorded = self._orders.recorded_actors(_track(name))
                condition = sys.modules["threading"].Condition()
                turns = self._orders.turns(_track(name), recorded, condition, is_optional=True) if recorded else None
                self._imports[name] = turns
            turns = self._imports.get(name)
        if turns is not None:
            turns.enter(actor.code)
        return turns

    def _leave(self, turns: ReplayedTurns, actor: ThreadActor) -> None:
        with turns.condition:
            turns.advance(actor.code)

    def _forget(self) -> None:
        self._guard = RLock()
        self._imports.clear()

    def _note(self, name: str) -> None:
        """Record that this thread imports a module; importlib lets no other thread do so meanwhile."""
        actor = self._orders.actors.current
        is_new = actor.importing == name and name not in self._imports and not self._is_replay
        if is_new and len(self._imports) < MAX_MODULES:
            self._imports[name] = None
            self._orders.attempt(self._write, name, actor.code)

    def _write(self, name: str, actor: int) -> None:
        track = self._orders.track(_track(name))
        track.append(actor)
        track.begin()


def _is_agents(caller: FrameType | None) -> bool:
    """Return whether a module of the agent imports; the interpreter itself has no frame."""
    name = None if caller is None else caller.f_globals.get("__name__")
    return type(name) is str and name.startswith(AGENT)


def _track(name: str) -> str:
    return f"{IMPORT}{name}"
