"""Orders of the locks that the user's code makes: which thread acquires a Lock or RLock of threading next.

Conditions, semaphores, events and barriers are made of such locks. Locks of libraries are left alone.
"""

from __future__ import annotations

import sys
import weakref
from _thread import TIMEOUT_MAX, RLock, allocate_lock
from functools import partial
from itertools import starmap

from ..core.user_frames import is_users
from .callers import creates_referent, place
from .tracks import Orders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any


MAX_LOCKS = 10_000  # watched in a process
_BLOCKING = (True,)


class LockKind(type):
    """The type of ordered locks: isinstance accepts plain locks in their place, and the reverse."""

    plain: type

    def __instancecheck__(cls, instance: object) -> bool:
        return type(instance) in (cls, cls.plain)


class OrderedLock(metaclass=LockKind):
    """Wraps a lock: records which thread acquired it, or in a replay enforces the recorded order.

    An exception of a signal handler leaves it as it leaves a plain lock: never held without a ``with`` to release it.
    """

    # The releasing functions are the plain lock's own: a handler could run between a wrapper's code and theirs.
    __slots__ = ("__exit__", "__weakref__", "_actors", "_advance", "_guard", "_lock", "_orders", "_turns", "release")
    __class__ = property(lambda lock: type(lock._lock))
    plain: type = type(allocate_lock())

    def __init__(self, lock: Any, orders: Orders, name: str, condition: Callable[..., Any]) -> None:
        recorded = orders.recorded_actors(name) if orders.is_replay else ()
        self._lock, self.release, self.__exit__ = lock, lock.release, lock.__exit__
        self._orders = orders
        self._actors = orders.actors
        self._guard = RLock()  # of the turns: held briefly, and re-entrant because of finalizers
        self._turns = orders.turns(name, recorded, condition(self._guard)) if recorded else None
        advance: Callable[[int], object] = orders.track(name).note if self._turns is None else self._turns.advance
        self._advance = advance

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)

    def __repr__(self) -> str:
        return repr(self._lock)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._lock.__reduce_ex__(protocol)  # raises the same error for copy and pickle

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock; in a replay at this thread's turn."""
        if not blocking or timeout != -1:
            return self._poll(blocking, timeout, sys._getframe(1))
        return self._acquire(self._lock.acquire)  # type: ignore[no-any-return]

    def _acquire(self, acquire: Callable[..., Any], *arguments: Any, is_turn: bool = True) -> Any:
        turns, actor = self._turns, self._actors.current.code
        if is_turn and turns is not None:
            turns.enter(actor)
            turns.leave()  # the holder may wait for something else: other threads wait for it with a timeout
        acquired: list[Any] = []
        try:
            acquired += starmap(acquire, (arguments,))  # stores the result before a signal handler can run
            if acquired[0] is False or not is_turn:
                return acquired[0]
            if turns is None:
                self._advance(actor)
            else:
                with self._guard:
                    turns.advance(actor)
            return acquired[0]
        except BaseException:
            if acquired and acquired[0] is not False:
                self.release()
            raise

    def _poll(self, blocking: bool, timeout: float, caller: FrameType) -> bool:
        """Try to acquire the lock; in a replay with the recorded outcome."""
        if timeout != -1 and not (blocking and 0 <= timeout <= TIMEOUT_MAX):
            return bool(self._lock.acquire(blocking, timeout))  # raises an error
        choices = self._orders.choices("acquire", caller)
        text = choices.next() if choices is not None and choices.is_replay else None
        if choices is not None and text == "0":
            return False
        if choices is not None and text == "1":
            acquire = partial(self._acquire, self._lock.acquire, True)
            return bool(choices.until(acquire, "the thread that had it", least=timeout))
        acquired = bool(self._acquire(self._lock.acquire, blocking, timeout))
        if choices is not None and not choices.is_replay:
            choices.note(str(int(acquired)))
        return acquired

    def __enter__(self) -> bool:
        if self._turns is not None:
            return self._acquire(self._lock.acquire)  # type: ignore[no-any-return]
        acquired: list[bool] = []  # as in _acquire, in fewer steps
        try:
            acquired += map(self._lock.acquire, _BLOCKING)
            self._advance(self._actors.current.code)
            return True
        except BaseException:
            if acquired:
                self.release()
            raise

    def _is_owned(self) -> bool:
        return bool(self._lock.locked())  # a Condition would try to acquire it

    def forget(self) -> None:
        """In a forked child: stop recording and replaying, as only one thread is left."""
        self._turns, self._advance = None, _ignore


class OrderedRLock(OrderedLock):
    """Wraps an RLock; acquiring it again in the same thread is no turn."""

    __slots__ = ()
    plain = type(RLock())

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock; in a replay at this thread's turn."""
        if self._lock._is_owned():
            return self._acquire(self._lock.acquire, is_turn=False)  # type: ignore[no-any-return]
        return super().acquire(blocking, timeout)

    def __enter__(self) -> bool:
        return self.acquire() if self._lock._is_owned() else super().__enter__()

    def _is_owned(self) -> bool:
        return bool(self._lock._is_owned())

    def _acquire_restore(self, state: Any) -> None:
        self._acquire(self._lock._acquire_restore, state)


class LockOrders:
    """Records or replays the orders of this process' locks."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._locks: Any = weakref.WeakSet()
        orders.on_fork(self._forget)

    def watch(self, threading: Any) -> None:
        """Watch the locks that are created from now on."""
        self._condition, self._file = threading.Condition, threading.__file__
        threading.Lock = self._make_factory("Lock", threading.Lock, OrderedLock)
        threading.RLock = self._make_factory("RLock", threading.RLock, OrderedRLock)

    def _make_factory(self, name: str, original: Callable[..., Any], ordered_class: type[OrderedLock]) -> Any:
        """Return a replacement of threading.Lock or RLock: a class, as isinstance accepts it since Python 3.13."""

        class LockMaker(type):
            def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
                lock = original(*arguments, **keywords)
                return self._orders.attempt(self._wrap_lock, lock, ordered_class, sys._getframe(1)) or lock

            def __instancecheck__(cls, instance: object) -> bool:
                return isinstance(instance, ordered_class)

        return LockMaker(name, (), {"__doc__": original.__doc__, "__module__": "threading"})

    def _wrap_lock(self, lock: Any, ordered_class: type[OrderedLock], caller: FrameType | None) -> OrderedLock | None:
        while caller is not None and (caller.f_code.co_filename == self._file or _is_generated(caller)):
            caller = caller.f_back
        if caller is None or len(self._locks) >= MAX_LOCKS:
            return None
        if not is_users(caller.f_code.co_filename) and not creates_referent(caller):
            return None
        name = self._orders.name(f"threading {place(caller)}")
        if not name:
            return None
        ordered_lock = ordered_class(lock, self._orders, name, self._condition)
        self._locks.add(ordered_lock)
        return ordered_lock

    def _forget(self) -> None:
        for lock in list(self._locks):
            lock.forget()
        self._locks.clear()


def _is_generated(caller: FrameType) -> bool:
    """Return whether this function was generated from text by a library, as dataclasses do."""
    name = caller.f_code.co_filename
    return name == "<string>" and not is_users(name)


def _ignore(_: int) -> None:
    pass
