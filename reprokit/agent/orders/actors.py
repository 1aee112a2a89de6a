"""Names for threads that repeat: the main thread is m, the n-th thread that thread T made is T.n."""

from __future__ import annotations

import sys
from _thread import _local, get_ident
from itertools import count
from weakref import WeakValueDictionary

from ..core.patching import replace
from ..core.thread_names import IDENTITY, label

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_ACTORS = 60_000  # of a process; further ones share a code
ACTIONS = ("+", "-", "?")  # of an actor that puts, gets or looks
_UNNAMED = ("?", *["?" + action for action in ACTIONS])  # the first codes


class Actors:
    """The actors of this process, each with the number that stands for it in sequences of turns."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self.names: dict[int, str] = {}  # by code
        self._created: dict[str, None] = {}  # names of threads
        self._threads: WeakValueDictionary[str, Any] = WeakValueDictionary()  # those of them that exist
        self.forget()

    def code(self, name: str) -> int:
        """Return the code of an actor."""
        code = self._codes.get(name)
        if code is None and len(self._codes) >= MAX_ACTORS:
            name = "more"
            code = self._codes.get(name)
        if code is None:  # no lock: other threads, and finalizers of the script, may run in between
            number = next(self._numbers)
            self.names[number] = name
            code = self._codes.setdefault(name, number)
        return code

    def thread_of(self, code: int) -> str:
        """Return the name of an actor's thread."""
        return self.names[code].rstrip("".join(ACTIONS))

    def acting_for(self, name: str) -> str:
        """Return the thread itself if it was created, else the one that creates it, directly or through others.

        The main thread, one whose creation was not seen, and a manager's client, which may come back, are themselves.
        """
        acting = name
        while acting not in self._created:
            acting, dot, _ = acting.rpartition(".")
            if not dot:
                return "m" if acting == "" and name[:2] == "m." else name
        return acting

    def has_ended(self, name: str) -> bool:
        """Return whether a thread has ended, or its creator has without it."""
        acting, threading = self.acting_for(name), sys.modules["threading"]
        if acting not in self._created:
            return False
        thread = self._threads.get(acting)
        if thread is None:
            return True
        was_started = threading.Thread.ident.fget(thread) is not None
        return was_started and all(each is not thread for each in threading.enumerate())

    def watch(self, threading: Any) -> None:
        """Name the threads that are created from now on."""
        replace(threading.Thread, "__init__", self._make_init)

    def _make_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def initialize(thread: Any, *arguments: Any, **keywords: Any) -> None:
            original(thread, *arguments, **keywords)
            threading = sys.modules.get("threading")  # a script may remove it, to import a patched one
            if threading is not None and get_ident() in threading._active:
                creator = self.current
                creator.threads += 1
                name = f"{creator.name}.{creator.threads}"
                setattr(thread, IDENTITY, name)
                if len(self._created) < MAX_ACTORS:
                    self._created[name] = None
                    self._threads[name] = thread

        return initialize

    def rename(self, name: str) -> None:
        """Rename the calling thread."""
        setattr(sys.modules["threading"].current_thread(), IDENTITY, name)
        self.current.__init__(self)  # type: ignore[misc]

    def forget(self) -> None:
        """Start afresh, also in a forked child, whose only thread is the main one."""
        self._codes.clear()
        self.names.clear()
        self._created.clear()
        self._threads.clear()
        self._numbers = count()
        for name in _UNNAMED:
            self.code(name)
        self.current = ThreadActor(self)


class ThreadActor(_local):
    """The names and codes of the calling thread."""

    # Seen by a finalizer that runs while its thread is being named.
    name, (code, put, get, look), threads, futures, importing = _UNNAMED[0], range(len(_UNNAMED)), 0, 0, ""

    def __init__(self, actors: Actors) -> None:
        threading: Any = sys.modules.get("threading")
        # current_thread() would make an object for a thread that is not Python's.
        thread = None if threading is None else threading._active.get(get_ident())
        is_main = threading is not None and thread is None and get_ident() == threading.main_thread().ident
        self.name = "m" if is_main else name_of(thread)
        self.code = actors.code(self.name)
        self.put, self.get, self.look = [actors.code(self.name + action) for action in ACTIONS]
        self.threads = 0  # created by this thread, as its futures
        self.futures = 0
        self.importing = ""  # the module that this thread imports, and by which others are imported


def name_of(thread: Any) -> str:
    """Return the name of a thread; of one whose creation was not seen, Python's own name."""
    if thread is None:
        return _UNNAMED[0]
    if thread is sys.modules["threading"].main_thread():
        return "m"
    return str(getattr(thread, IDENTITY, "")) or "@" + label(thread)
