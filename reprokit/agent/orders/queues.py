"""Orders of queue.Queue, LifoQueue, PriorityQueue and SimpleQueue: which thread came first.

Puts, gets and looks are noted where the queue's own lock is held. A look is what tells how many items there are:
`empty()`, `qsize()`, a get that is refused. A queue of which all puts are one thread's, and all gets, is not written,
unless another thread looks.

In a replay puts wait for puts and gets for gets. If somebody looked, or the items do not come in the order of puts,
all of them wait for each other: a look then finds what it found in the recording.
"""

from __future__ import annotations

import sys
import time
import weakref
from functools import partial

from ..core.patching import Function, replace
from .actors import ACTIONS
from .tracks import Orders, creates_referent, place
from .turns import Patience, Turns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType
    from typing import Any

    Asked = tuple[Any, Any]  # block and timeout

ORDER = "_reprokit_order"  # attribute of a queue
SLICE = 0.5  # seconds for which an item that was there in the recording is waited for at once
POOLS = ("concurrent", "joblib", "loky", "multiprocessing")  # whose own queues follow pipes and other processes


class RecordedQueue:
    """The turns of one queue, being recorded."""

    def __init__(self, orders: Orders, name: str) -> None:
        self._orders = orders
        self._track = orders.track(name)
        self._putter = self._getter = self._looker = -1

    def put(self, code: int) -> None:
        """Note a put."""
        self._track.append(code)
        if code != self._putter:
            self._putter = self._another(code, self._putter)

    def get(self, code: int) -> None:
        """Note a get."""
        self._track.append(code)
        if code != self._getter:
            self._getter = self._another(code, self._getter)

    def look(self, code: int) -> None:
        """Note a look."""
        self._track.append(code)
        self._looker = self._another(code, -1)

    def _another(self, code: int, before: int) -> int:
        if not self._track.is_written and (before >= 0 or self._has_seen_others(code)):
            self._orders.attempt(self._track.begin)
        return code

    def _has_seen_others(self, code: int) -> bool:
        """Return whether somebody has looked, or does now, at what others have done."""
        names = self._orders.actors.names
        codes = [code for code in (code, self._looker, self._putter, self._getter) if code >= 0]
        actions = {names[code][-1] for code in codes}
        return ACTIONS[2] in actions and len({names[code][:-1] for code in codes}) > 1


class ReplayedQueue:
    """The turns of one queue, given again."""

    def __init__(self, orders: Orders, given: Sequence[str], queue: Any, is_fifo: bool) -> None:
        self._orders = orders
        self._since = time.monotonic()
        self._lock = queue.mutex
        self._is_bounded = queue.maxsize > 0
        condition = sys.modules["threading"].Condition(queue.mutex)
        puts, gets, looks = [[actor for actor in given if actor[-1:] == action] for action in ACTIONS]
        is_merged = bool(looks) or not is_fifo
        self.puts = orders.turns(given if is_merged else puts, condition)
        self.gets = self.puts if is_merged else orders.turns(gets, condition)
        self._looks = self.puts if is_merged else None

    def call(self, turns: Turns, code: int, refused: type[Exception], call: Function, asked: Asked) -> Any:
        """Have a thread put or get at its turn."""
        polls = not asked[0] or asked[1] is not None
        mine = self._orders.actors.mine
        look = mine.look if polls else -1
        turn = turns.enter(code, look, may_wait=not polls and (code == mine.get or self._is_bounded))
        try:
            if polls and turn == look:
                with self._lock:
                    turns.advance(look)
                raise refused
            return self._come(refused, call) if polls and turn == code else call(*asked)
        finally:
            turns.leave()

    def _come(self, refused: type[Exception], call: Function) -> Any:
        """Wait for what was there in the recording."""
        patience = Patience(self._orders, self._since)
        while True:
            try:
                return call(True, SLICE)
            except refused:
                if patience.is_over():
                    self._orders.lost += 1
                    raise

    def look(self, call: Function) -> Any:
        """Look at the turn of this thread."""
        turns, look = self._looks, self._orders.actors.mine.look
        if turns is None:
            return call()
        turn = turns.enter(look)
        found = call()
        if turn == look:
            with self._lock:
                turns.advance(look)
        turns.leave()
        return found


class QueueOrders:
    """Records the orders of this process' queues, or gives them again."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._replays = orders.is_replay
        self._known: Any = weakref.WeakSet()
        orders.on_fork(self._forget)

    def watch(self, queue: Any) -> None:
        """Watch the classes of the module queue."""
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
        is_others = _package(caller) in POOLS and not creates_referent(caller)
        name = "" if is_others else self._orders.name(place(caller))
        if not name:
            return None
        self._known.add(queue)
        if not self._replays:
            return RecordedQueue(self._orders, name)
        given, kinds = self._orders.given(name), sys.modules["queue"]
        is_fifo = not isinstance(queue, (kinds.LifoQueue, kinds.PriorityQueue))
        return ReplayedQueue(self._orders, given, queue, is_fifo) if given else None

    def _make_put(self, original: Function) -> Function:
        actors, replays = self._orders.actors, self._replays

        def _put(queue: Any, item: Any) -> None:
            original(queue, item)
            order = queue.__dict__.get(ORDER)
            if order is None:
                return
            if not replays:
                order.put(actors.mine.put)
            else:
                order.puts.advance(actors.mine.put)

        return _put

    def _make_get(self, original: Function) -> Function:
        actors, replays = self._orders.actors, self._replays

        def _get(queue: Any) -> Any:
            item = original(queue)
            order = queue.__dict__.get(ORDER)
            if order is None:
                return item
            if not replays:
                order.get(actors.mine.get)
            else:
                order.gets.advance(actors.mine.get)
            return item

        return _get

    def _make_look(self, original: Function, answer: Function) -> Function:
        """Return a method that looks, whose answer is this where the lock is held."""
        actors, replays = self._orders.actors, self._replays

        def look(queue: Any) -> Any:
            order = queue.__dict__.get(ORDER)
            if order is None:
                return original(queue)
            if replays:
                return order.look(partial(original, queue))
            with queue.mutex:
                order.look(actors.mine.look)
                return answer(queue)

        return look

    def _make_caller_of_put(self, original: Function, full: type[Exception]) -> Function:
        actors, replays = self._orders.actors, self._replays

        def recorded(queue: Any, item: Any, block: Any = True, timeout: Any = None) -> None:
            if (block and timeout is None) or queue.maxsize <= 0:
                original(queue, item, block, timeout)
            else:
                self._polled(queue, full, partial(original, queue, item), _is_full, (block, timeout))

        def replayed(queue: Any, item: Any, block: Any = True, timeout: Any = None) -> None:
            order = queue.__dict__.get(ORDER)
            if order is None:
                original(queue, item, block, timeout)
            else:
                asked = (True, None) if queue.maxsize <= 0 else (block, timeout)
                order.call(order.puts, actors.mine.put, full, partial(original, queue, item), asked)

        return replayed if replays else recorded

    def _make_caller_of_get(self, original: Function, empty: type[Exception]) -> Function:
        actors, replays = self._orders.actors, self._replays

        def recorded(queue: Any, block: Any = True, timeout: Any = None) -> Any:
            if block and timeout is None:
                return original(queue)
            return self._polled(queue, empty, partial(original, queue), _is_empty, (block, timeout))

        def replayed(queue: Any, block: Any = True, timeout: Any = None) -> Any:
            order = queue.__dict__.get(ORDER)
            if order is None:
                return original(queue, block, timeout)
            return order.call(order.gets, actors.mine.get, empty, partial(original, queue), (block, timeout))

        return replayed if replays else recorded

    def _polled(self, queue: Any, refused: type[Exception], call: Function, refuses: Function, asked: Asked) -> Any:
        """Call put or get; that it is refused is noted at a moment at which it would be."""
        order = queue.__dict__.get(ORDER)
        while True:
            try:
                return call(*asked)
            except refused:
                if order is None:
                    raise
                with queue.mutex:
                    if refuses(queue):
                        order.look(self._orders.actors.mine.look)
                        raise
            asked = (False, None)

    def _forget(self) -> None:
        """In a forked child: the parent's queues are not watched."""
        for queue in list(self._known):
            setattr(queue, ORDER, None)
        self._known.clear()


def _package(caller: FrameType) -> str:
    return str(caller.f_globals.get("__name__")).partition(".")[0]


def _is_empty(queue: Any) -> bool:
    return not int(queue._qsize())


def _is_full(queue: Any) -> bool:
    return bool(0 < queue.maxsize <= queue._qsize())


def _make_simple(module: Any, orders: Orders, order: Callable[[Any, FrameType], Any]) -> type:
    """Return what stands for SimpleQueue, whose own code cannot be asked who came first.

    A finalizer may put while its thread puts or gets: the lock is one that a thread can take again.
    """
    original, threading = module.SimpleQueue, sys.modules["threading"]
    initialize = module.Queue.__init__.__wrapped__

    class SimpleQueue:
        __doc__ = original.__doc__
        __slots__ = ("__weakref__", "_queue")
        _queue: Any

        def __new__(cls, *arguments: Any, **keywords: Any) -> Any:  # which a subclass may initialize itself by
            caller = sys._getframe(1)
            if _package(caller) in POOLS or ((arguments or keywords) and cls.__init__ is object.__init__):
                return original(*arguments, **keywords)
            found = super().__new__(cls)
            queue = found._queue = module.Queue.__new__(module.Queue)
            initialize(queue)
            queue.mutex = threading.RLock()
            for name in ("not_empty", "not_full", "all_tasks_done"):
                setattr(queue, name, threading.Condition(queue.mutex))
            setattr(queue, ORDER, orders.attempt(order, queue, caller))
            return found

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
