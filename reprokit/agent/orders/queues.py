"""Orders of queue.Queue, LifoQueue, PriorityQueue and SimpleQueue: which thread came first.

Puts, gets and looks are recorded while the queue's own lock is held. A look is what reveals the number of items:
`empty()`, `qsize()`, a get that fails. A queue with one putting and one getting thread is not written, unless another
thread looks.

In a replay puts wait for puts and gets for gets. If any thread looked, or the items do not come in the order of puts,
all of them wait for each other: so a look has the same result as in the recording.
"""

from __future__ import annotations

import sys
import weakref
from contextlib import suppress
from functools import partial

from ..core.patching import Function, replace
from .actors import ACTIONS
from .callers import creates_referent, package_of, place
from .tracks import Orders
from .turns import ReplayedTurns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType
    from typing import Any

    Blocking = tuple[Any, Any]  # block and timeout, as passed to put and get

ORDER = "_reprokit_order"  # attribute of a queue
POOLS = ("concurrent", "joblib", "loky", "multiprocessing")  # their own queues depend on other processes


class RecordedQueue:
    """Records the turns at one queue."""

    def __init__(self, orders: Orders, name: str) -> None:
        self._orders = orders
        self._track = orders.track(name)
        self._putter = self._getter = self._looker = -1

    def put(self, code: int) -> None:
        """Record a put."""
        self._track.append(code)
        if code != self._putter:
            self._putter = self._begin_if_shared(code, self._putter)

    def get(self, code: int) -> None:
        """Record a get."""
        self._track.append(code)
        if code != self._getter:
            self._getter = self._begin_if_shared(code, self._getter)

    def look(self, code: int) -> None:
        """Record a look."""
        self._track.append(code)
        self._looker = self._begin_if_shared(code, -1)

    def _begin_if_shared(self, code: int, previous: int) -> int:
        if not self._track.is_written and (previous >= 0 or self._is_observed(code)):
            self._orders.attempt(self._track.begin)
        return code

    def _is_observed(self, code: int) -> bool:
        """Return whether a thread has looked, or looks now, at a queue that other threads use."""
        names = self._orders.actors.names
        codes = [code for code in (code, self._looker, self._putter, self._getter) if code >= 0]
        actions = {names[code][-1] for code in codes}
        return ACTIONS[2] in actions and len({names[code][:-1] for code in codes}) > 1


class ReplayedQueue:
    """Replays the turns at one queue."""

    def __init__(self, orders: Orders, name: str, recorded: Sequence[str], queue: Any, is_fifo: bool) -> None:
        self._orders = orders
        self._lock = queue.mutex
        self._is_bounded = queue.maxsize > 0
        condition = sys.modules["threading"].Condition(queue.mutex)
        self._name = name
        puts, gets, looks = [[actor for actor in recorded if actor[-1:] == action] for action in ACTIONS]
        is_merged = bool(looks) or not is_fifo
        self.puts = orders.turns(name, recorded if is_merged else puts, condition, is_mixed=is_merged)
        self.gets = self.puts if is_merged else orders.turns(name, gets, condition)
        self._looks = self.puts if is_merged else None

    def call(self, turns: ReplayedTurns, code: int, error: type[Exception], call: Function, blocking: Blocking) -> Any:
        """Let this thread put or get at its turn."""
        polls = not blocking[0] or blocking[1] is not None
        actor = self._orders.actors.current
        look = actor.look if polls else -1
        turn = turns.enter(code, look, may_wait=not polls and (code == actor.get or self._is_bounded))
        try:
            if polls and turn == look:
                with self._lock:
                    turns.advance(look)
                raise error
            is_known = polls and turn == code and not self._orders.waits.are_over
            return self._retry(turns, error, call) if is_known else call(*blocking)
        finally:
            turns.leave()

    def _retry(self, turns: ReplayedTurns, error: type[Exception], call: Function) -> Any:
        """Retry a call that succeeded in the recording, until it does or that takes too long."""
        results: list[Any] = []

        def attempt(seconds: float) -> bool:
            with suppress(error):
                results.append(call(True, seconds))
            return bool(results)

        if not self._orders.waits.until(attempt, self._name, "what was there"):
            with self._lock:
                turns.give_up()
            raise error
        return results[0]

    def look(self, call: Function) -> Any:
        """Look at this thread's turn."""
        turns, look = self._looks, self._orders.actors.current.look
        if turns is None:
            return call()
        turn = turns.enter(look)
        result = call()
        if turn == look:
            with self._lock:
                turns.advance(look)
        turns.leave()
        return result


class QueueOrders:
    """Records or replays the orders of this process' queues."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._replays = orders.is_replay
        self._queues: Any = weakref.WeakSet()
        orders.on_fork(self._forget)

    def watch(self, queue: Any) -> None:
        """Patch the classes of the module queue."""
        replace(queue.Queue, "__init__", self._make_init)
        for kind in (queue.Queue, queue.LifoQueue, queue.PriorityQueue):
            replace(kind, "_put", self._make_put)
            replace(kind, "_get", self._make_get)
        replace(queue.Queue, "empty", lambda original: self._make_look(original, _is_empty))
        replace(queue.Queue, "full", lambda original: self._make_look(original, _is_full))
        replace(queue.Queue, "qsize", lambda original: self._make_look(original, lambda queue: queue._qsize()))
        replace(queue.Queue, "put", lambda original: self._make_caller_of_put(original, queue.Full))
        replace(queue.Queue, "get", lambda original: self._make_caller_of_get(original, queue.Empty))
        queue.SimpleQueue = _make_simple(queue, self._orders, self._order)

    def _make_init(self, original: Function) -> Function:
        def initialize(queue: Any, *arguments: Any, **keywords: Any) -> None:
            original(queue, *arguments, **keywords)
            setattr(queue, ORDER, self._orders.attempt(self._order, queue, sys._getframe(1)))

        return initialize

    def _order(self, queue: Any, caller: FrameType) -> RecordedQueue | ReplayedQueue | None:
        is_of_library = package_of(caller) in POOLS and not creates_referent(caller)
        name = "" if is_of_library else self._orders.name(place(caller))
        if not name:
            return None
        self._queues.add(queue)
        if not self._replays:
            return RecordedQueue(self._orders, name)
        recorded, classes = self._orders.recorded_actors(name), sys.modules["queue"]
        is_fifo = not isinstance(queue, (classes.LifoQueue, classes.PriorityQueue))
        return ReplayedQueue(self._orders, name, recorded, queue, is_fifo) if recorded else None

    def _make_put(self, original: Function) -> Function:
        actors, replays = self._orders.actors, self._replays

        def _put(queue: Any, item: Any) -> None:
            original(queue, item)
            order = queue.__dict__.get(ORDER)
            if order is None:
                return
            if not replays:
                order.put(actors.current.put)
            else:
                order.puts.advance(actors.current.put)

        return _put

    def _make_get(self, original: Function) -> Function:
        actors, replays = self._orders.actors, self._replays

        def _get(queue: Any) -> Any:
            item = original(queue)
            order = queue.__dict__.get(ORDER)
            if order is None:
                return item
            if not replays:
                order.get(actors.current.get)
            else:
                order.gets.advance(actors.current.get)
            return item

        return _get

    def _make_look(self, original: Function, answer: Function) -> Function:
        """Return the replacement of a method that looks; answer computes the result while the lock is held."""
        actors, replays = self._orders.actors, self._replays

        def look(queue: Any) -> Any:
            order = queue.__dict__.get(ORDER)
            if order is None:
                return original(queue)
            if replays:
                return order.look(partial(original, queue))
            with queue.mutex:
                order.look(actors.current.look)
                return answer(queue)

        return look

    def _make_caller_of_put(self, original: Function, full: type[Exception]) -> Function:
        actors, replays = self._orders.actors, self._replays

        def recorded(queue: Any, item: Any, block: Any = True, timeout: Any = None) -> None:
            if (block and timeout is None) or queue.maxsize <= 0:
                original(queue, item, block, timeout)
            else:
                self._poll(queue, full, partial(original, queue, item), _is_full, (block, timeout))

        def replayed(queue: Any, item: Any, block: Any = True, timeout: Any = None) -> None:
            order = queue.__dict__.get(ORDER)
            if order is None:
                original(queue, item, block, timeout)
            else:
                blocking = (True, None) if queue.maxsize <= 0 else (block, timeout)
                order.call(order.puts, actors.current.put, full, partial(original, queue, item), blocking)

        return replayed if replays else recorded

    def _make_caller_of_get(self, original: Function, empty: type[Exception]) -> Function:
        actors, replays = self._orders.actors, self._replays

        def recorded(queue: Any, block: Any = True, timeout: Any = None) -> Any:
            if block and timeout is None:
                return original(queue)
            return self._poll(queue, empty, partial(original, queue), _is_empty, (block, timeout))

        def replayed(queue: Any, block: Any = True, timeout: Any = None) -> Any:
            order = queue.__dict__.get(ORDER)
            if order is None:
                return original(queue, block, timeout)
            return order.call(order.gets, actors.current.get, empty, partial(original, queue), (block, timeout))

        return replayed if replays else recorded

    def _poll(self, queue: Any, error: type[Exception], call: Function, fails: Function, blocking: Blocking) -> Any:
        """Call put or get; record a failure only while the lock is held and it would still fail."""
        order = queue.__dict__.get(ORDER)
        while True:
            try:
                return call(*blocking)
            except error:
                if order is None:
                    raise
                with queue.mutex:
                    if fails(queue):
                        order.look(self._orders.actors.current.look)
                        raise
            blocking = (False, None)

    def _forget(self) -> None:
        """In a forked child: stop watching the parent's queues."""
        for queue in list(self._queues):
            setattr(queue, ORDER, None)
        self._queues.clear()


def _is_empty(queue: Any) -> bool:
    return not int(queue._qsize())


def _is_full(queue: Any) -> bool:
    return bool(0 < queue.maxsize <= queue._qsize())


def _make_simple(module: Any, orders: Orders, order: Callable[[Any, FrameType], Any]) -> type:
    """Return a replacement of SimpleQueue, whose C code does not reveal the order of threads.

    The lock is re-entrant, as a finalizer may put while its own thread puts or gets.
    """
    original, threading = module.SimpleQueue, sys.modules["threading"]
    initialize = module.Queue.__init__.__wrapped__

    class SimpleQueue:
        __doc__ = original.__doc__
        __slots__ = ("__weakref__", "_queue")
        _queue: Any

        def __new__(cls, *arguments: Any, **keywords: Any) -> Any:  # a subclass may pass arguments for its own __init__
            caller = sys._getframe(1)
            if package_of(caller) in POOLS or ((arguments or keywords) and cls.__init__ is object.__init__):
                return original(*arguments, **keywords)
            simple = super().__new__(cls)
            queue = simple._queue = module.Queue.__new__(module.Queue)
            initialize(queue)
            queue.mutex = threading.RLock()
            for name in ("not_empty", "not_full", "all_tasks_done"):
                setattr(queue, name, threading.Condition(queue.mutex))
            setattr(queue, ORDER, orders.attempt(order, queue, caller))
            return simple

        def __class_getitem__(cls, item: Any) -> Any:
            return original[item]

        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            self._queue.put(item)

        def put_nowait(self, item: Any) -> None:
            self._queue.put(item)

        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            return self._queue.get(block, timeout)

        def get_nowait(self) -> Any:
            return self._queue.get(False)

        def empty(self) -> bool:
            return bool(self._queue.empty())

        def qsize(self) -> int:
            return int(self._queue.qsize())

    SimpleQueue.__module__, SimpleQueue.__qualname__ = original.__module__, original.__qualname__
    return SimpleQueue
