"""Names for threads that repeat: the main thread is m, the n-th thread that thread T made is T.n."""

from __future__ import annotations

import sys
from _thread import _local, get_ident
from itertools import count

from ..core.patching import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_ACTORS = 60_000  # of a process; further ones share a code
ACTIONS = ("+", "-", "?")  # of an actor that puts, gets or looks
NAME = "_reprokit_actor"  # attribute of a Thread
_UNNAMED = ("?", *["?" + action for action in ACTIONS])  # the first codes


class Actors:
    """The actors of this process, each with a code, which is how sequences hold them."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self.names: dict[int, str] = {}  # by code
        self.seen: set[str] = set()  # threads that asked who they are
        self.forget()

    def code(self, name: str) -> int:
        """Return the code of an actor."""
        code = self._codes.get(name)
        if code is None and len(self._codes) >= MAX_ACTORS:
            name = "more"
            code = self._codes.get(name)
        if code is None:  # other threads, and finalizers of the script's, may come in between
            number = next(self._numbers)
            self.names[number] = name
            code = self._codes.setdefault(name, number)
        return code

    def has_ended(self, code: int) -> bool:
        """Return whether the actor is a thread that was here and is no more."""
        name = self.names[code].rstrip("".join(ACTIONS))
        threads: Any = sys.modules["threading"]
        return name in self.seen and all(_name(thread) != name for thread in threads.enumerate())

    def watch(self, threading: Any) -> None:
        """Name the threads that are made from now on."""
        replace(threading.Thread, "__init__", self._make_init)

    def _make_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def initialize(thread: Any, *arguments: Any, **keywords: Any) -> None:
            original(thread, *arguments, **keywords)
            if get_ident() in sys.modules["threading"]._active:
                mine = self.mine
                mine.made += 1
                setattr(thread, NAME, f"{mine.name}.{mine.made}")

        return initialize

    def rename(self, name: str) -> None:
        """Name the thread that asks."""
        setattr(sys.modules["threading"].current_thread(), NAME, name)
        self.mine.__init__(self)  # type: ignore[misc]

    def forget(self) -> None:
        """At the beginning, and in a forked child, whose only thread is the main one."""
        self._codes.clear()
        self.names.clear()
        self.seen.clear()
        self._numbers = count()
        for name in _UNNAMED:
            self.code(name)
        self.mine = _OwnActor(self)


class _OwnActor(_local):
    """The actor that the asking thread is."""

    # Of a finalizer that comes while its thread is being named.
    name, (code, put, get, look), made, futures = _UNNAMED[0], range(len(_UNNAMED)), 0, 0

    def __init__(self, actors: Actors) -> None:
        threads: Any = sys.modules["threading"]
        # current_thread() would make an object for a thread that is not Python's.
        thread = threads._active.get(get_ident())
        self.name = "m" if thread is None and get_ident() == threads.main_thread().ident else _name(thread)
        self.code = actors.code(self.name)
        self.put, self.get, self.look = [actors.code(self.name + action) for action in ACTIONS]
        if len(actors.seen) < MAX_ACTORS:  # others have no code of their own
            actors.seen.add(self.name)
        self.made = 0  # threads
        self.futures = 0


def _name(thread: Any) -> str:
    """Return a thread's name; of one that nobody saw being made, what Python calls it."""
    if thread is None:
        return _UNNAMED[0]
    if thread is sys.modules["threading"].main_thread():
        return "m"
    return str(getattr(thread, NAME, "@" + thread.name))
