"""Orders between processes: which one acquires a multiprocessing lock next, and the outcomes of polls.

All of multiprocessing's queues, values and events have such locks. Polls are `wait` of multiprocessing.connection, to
which `poll()`, `empty()` and a `get` with a timeout lead, and attempts to acquire a lock.
"""

from __future__ import annotations

import os
import re
from functools import partial
from zlib import crc32

from ..core.patching import Function, replace
from .callers import LIBRARIES, caller_outside, package_of, place
from .futures import END
from .tracks import Orders
from .turns import Choices
from .worker_turns import TurnLock, WorkerTurns, watch_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType
    from typing import Any


MAX_LOCKS = 1000  # watched in a process
TRACK = "lock"
INTERNAL_MODULES = frozenset(
    ["multiprocessing." + name for name in ("connection", "context", "queues", "sharedctypes", "synchronize")]
    + ["torch.multiprocessing", "torch.multiprocessing.queue"]
)
_NAME = re.compile("/[a-z0-9_-]{1,40}")  # of a semaphore


class ProcessOrders:
    """Records or replays the orders between this process and others."""

    def __init__(self, orders: Orders, run: str) -> None:
        self._orders = orders
        self._directory = f"{run}/turns"
        self._locks = 0

    def watch(self, module: Any) -> None:
        """Patch a module of multiprocessing."""
        if module.__name__ == "multiprocessing.connection":
            replace(module, "wait", self._make_wait)
        elif module.__name__ == "multiprocessing.queues":
            for name in "qsize", "full":
                replace(module.Queue, name, self._make_look)
        else:
            for kind in (module.Lock, module.RLock, module.Semaphore, module.BoundedSemaphore):
                replace(kind, "__init__", self._make_init)
            replace(module.SemLock, "__setstate__", self._make_setstate)
            replace(module.Condition, "__init__", self._make_condition)

    def _make_init(self, original: Function) -> Function:
        def initialize(lock: Any, *arguments: Any, **keywords: Any) -> None:
            original(lock, *arguments, **keywords)
            if not _is_counter(lock):
                self._orders.attempt(self._watch_new_lock, lock)

        return initialize

    def _make_condition(self, original: Function) -> Function:
        def initialize(condition: Any, *arguments: Any, **keywords: Any) -> None:
            original(condition, *arguments, **keywords)
            # The lock guards neither which waiter is woken nor which one has timed out before.
            for semaphore in condition._wait_semaphore, condition._woken_count:
                self._orders.attempt(self._watch_new_lock, semaphore)

        return initialize

    def _watch_new_lock(self, lock: Any) -> None:
        caller = _caller() if lock._semlock._get_value() < lock._semlock.SEM_VALUE_MAX else None
        name = self._orders.name(f"lock {place(caller)}") if caller is not None and self._locks < MAX_LOCKS else ""
        if name:
            self._locks += 1
            file = lock._semlock.name or f"/{crc32(f'{self._orders.identity} {name}'.encode()):08x}"
            if _NAME.fullmatch(file):
                WorkerTurns(self._orders, name, self._directory, file[1:], (TRACK,))
                self._order(lock, file)

    def _make_setstate(self, original: Function) -> Function:
        def restore(lock: Any, state: Any) -> None:
            original(lock, state)
            self._orders.attempt(self._order, lock, str(state[-1]))

        return restore

    def _order(self, lock: Any, file: str) -> None:
        path = f"{self._directory}{file}-{TRACK}"
        if _NAME.fullmatch(file) and os.path.exists(path):
            watch_lock(lock, TurnLock(self._orders, lock._semlock, path, self._actor, choices=self._choices))

    def _actor(self) -> int:
        return crc32(f"{self._orders.identity} {self._orders.actors.current.name}".encode())

    def _choices(self, kind: str) -> Choices | None:
        caller = _caller()
        return None if caller is None else self._orders.choices(kind, caller)

    def _make_look(self, original: Function) -> Function:
        def look(queue: Any) -> Any:
            choices = self._choices("look")
            result = original(queue)
            return result if choices is None else type(result)(choices.as_recorded(int(result)))

        return look

    def _make_wait(self, original: Function) -> Function:
        def wait(object_list: Iterable[Any], timeout: float | None = None) -> Any:
            choices = self._choices("ready")
            if choices is None:
                return original(object_list, timeout)
            objects = list(object_list)
            ready = wait_again(original, objects, timeout, choices) if choices.is_replay else None
            if ready is None:
                ready = original(objects, timeout)
                if not choices.is_replay:
                    for connection in ready:
                        choices.note(str(objects.index(connection)))
                    choices.note(END)
            return ready

        return wait


def wait_again(wait: Function, objects: list[Any], timeout: float | None, choices: Choices) -> Any:
    """Wait until the objects that were ready in the recording are, and return them; None if those are unknown."""
    ready = []
    for text in iter(choices.next, END):
        if text is None or not text.isdecimal() or int(text) >= len(objects):
            return None
        ready.append(objects[int(text)])
    for waitable in ready:
        if timeout is None:
            wait(objects, None)
        is_there = partial(wait, [waitable])
        if not choices.until(is_there, "what was ready", least=timeout or 0.0, is_external=True):
            return None
    return ready


def _is_counter(lock: Any) -> bool:
    """Return whether a condition or event created this semaphore for itself, guarded by its own lock."""
    creator = caller_outside(("multiprocessing.context",))
    name = "" if creator is None else creator.f_globals.get("__name__")
    return name == "multiprocessing.synchronize" and not lock._semlock._get_value()


def _caller() -> FrameType | None:
    caller = caller_outside(INTERNAL_MODULES)
    return None if caller is None or package_of(caller) in LIBRARIES else caller
