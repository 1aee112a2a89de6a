"""Orders of queue.Queue, LifoQueue, PriorityQueue and SimpleQueue: which thread's put or get came first.

Of a queue that gives items in the order in which they came, puts have a track and gets have one; of others both have
the same. They are noted where the queue's own lock is held. What `empty()`, `get_nowait()` and the like answered has a
track for each thread that asked, as it tells what others had done by then.
"""

from __future__ import annotations

import sys
import time
import weakref
from functools import partial

from ..core.patching import replace
from .tracks import Patience

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from .tracks import Answers, Orders, Track, Turns

    Method = Callable[..., Any]

ORDER = "_reprokit_order"  # attribute of a queue
SLICE = 0.5  # seconds for which an item that was there in the recording is waited for at once
POOLS = ("concurrent.futures.thread", "multiprocessing.pool")  # whose tasks go to whichever thread is free
LARGEST = 10_000  # a size from there on is not given again


class RecordedQueue:
    """The turns of one queue, being recorded."""

    def __init__(self, orders: Orders, name: str, merged: bool) -> None:
        self._orders = orders
        self._name = name
        self.puts = orders.track(f"{name} put")
        self.gets = self.puts if merged else orders.track(f"{name} get")
        self._answers: dict[int, Track] = {}

    def answer(self, answer: int) -> None:
        """Note what a call that polls has answered in this thread."""
        actors = self._orders.actors
        me = actors.mine.code
        track = self._answers.get(me)
        if track is None:
            track = self._answers[me] = self._orders.track(f"{self._name} asked by {actors.mine.name}")
        track.note(actors.code(str(min(answer, LARGEST))))
        if not track.is_written and self._is_shared(me):
            self._orders.attempt(track.begin)

    def _is_shared(self, me: int) -> bool:
        tracks = self.puts, self.gets
        return any(track.is_written or track.first not in (-1, me) for track in tracks)


class ReplayedQueue:
    """The turns of one queue, given again."""

    def __init__(self, orders: Orders, name: str, merged: bool, queue: Any) -> None:
        self._orders = orders
        self._name = name
        condition = sys.modules["threading"].Condition(queue.mutex)
        self.puts = orders.turns(f"{name} put", condition)
        self.gets = self.puts if merged else orders.turns(f"{name} get", condition)
        self._answers: dict[str, Answers] = {}
        self._since = time.monotonic()

    def answer(self) -> int | None:
        """Return what the recorded call answered; None where there is none."""
        name = self._orders.actors.mine.name
        answers = self._answers.get(name)
        if answers is None:
            answers = self._answers[name] = self._orders.answers(f"{self._name} asked by {name}")
        text = answers.next()
        return None if text is None or not text.isdecimal() or int(text) >= LARGEST else int(text)

    def call(self, turns: Turns | None, refused: type[Exception], call: Method, block: Any, timeout: Any) -> Any:
        """Have a thread put or get at its turn."""
        is_known = False
        if not block or timeout is not None:
            answer = self.answer()
            if answer is None:
                return call(block, timeout)
            if not answer:
                raise refused
            is_known = True
        if turns is None:
            return self._come(refused, call) if is_known else call(block, timeout)
        turns.enter()
        try:
            return self._come(refused, call) if is_known else call(block, timeout)
        finally:
            turns.leave()

    def _come(self, refused: type[Exception], call: Method) -> Any:
        """Wait for what was there in the recording."""
        patience = Patience(self._orders, self._since)
        while True:
            try:
                return call(True, SLICE)
            except refused:
                if patience.is_over(False):
                    self._orders.has_given_up = True
                    raise


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
        for name in ("empty", "full", "qsize"):
            replace(queue.Queue, name, self._make_answer)
        replace(queue.Queue, "put", lambda original: self._make_caller_of_put(original, queue.Full))
        replace(queue.Queue, "get", lambda original: self._make_caller_of_get(original, queue.Empty))
        queue.SimpleQueue = _make_simple(queue, self._orders, self._order)

    def _make_init(self, original: Method) -> Method:
        def initialize(queue: Any, *arguments: Any, **keywords: Any) -> None:
            original(queue, *arguments, **keywords)
            setattr(queue, ORDER, self._orders.attempt(self._order, queue, sys._getframe(1)))

        return initialize

    def _order(self, queue: Any, caller: FrameType) -> RecordedQueue | ReplayedQueue | None:
        name = self._orders.name(f"{caller.f_code.co_filename.rpartition('/')[2]}:{caller.f_lineno}")
        if not name:
            return None
        self._known.add(queue)
        kinds: Any = sys.modules["queue"]
        merged = isinstance(queue, (kinds.LifoQueue, kinds.PriorityQueue))
        if self._replays:
            return ReplayedQueue(self._orders, name, merged, queue)
        return RecordedQueue(self._orders, name, merged)

    def _make_put(self, original: Method) -> Method:
        return self._advancing_put(original) if self._replays else self._noting_put(original)

    def _make_get(self, original: Method) -> Method:
        return self._advancing_get(original) if self._replays else self._noting_get(original)

    def _noting_put(self, original: Method) -> Method:
        actors = self._orders.actors

        def _put(queue: Any, item: Any) -> None:
            original(queue, item)
            order = queue.__dict__.get(ORDER)
            if order is not None:
                order.puts.note(actors.mine.code)

        return _put

    def _noting_get(self, original: Method) -> Method:
        actors = self._orders.actors

        def _get(queue: Any) -> Any:
            item = original(queue)
            order = queue.__dict__.get(ORDER)
            if order is not None:
                order.gets.note(actors.mine.code)
            return item

        return _get

    def _advancing_put(self, original: Method) -> Method:
        def _put(queue: Any, item: Any) -> None:
            original(queue, item)
            order = queue.__dict__.get(ORDER)
            if order is not None and order.puts is not None:
                order.puts.advance()

        return _put

    def _advancing_get(self, original: Method) -> Method:
        def _get(queue: Any) -> Any:
            item = original(queue)
            order = queue.__dict__.get(ORDER)
            if order is not None and order.gets is not None:
                order.gets.advance()
            return item

        return _get

    def _make_answer(self, original: Method) -> Method:
        def answer(queue: Any) -> Any:
            order = queue.__dict__.get(ORDER)
            if order is None:
                return original(queue)
            if self._replays:
                given = order.answer()
                return original(queue) if given is None else type(original(queue))(given)
            found = original(queue)
            order.answer(int(found))
            return found

        return answer

    def _make_caller_of_put(self, original: Method, full: type[Exception]) -> Method:
        if self._replays:
            return self._replayed_put(original, full)

        def put(queue: Any, item: Any, block: Any = True, timeout: Any = None) -> None:
            if block and timeout is None:
                original(queue, item)
            else:
                self._note_answer(queue, full, partial(original, queue, item, block, timeout))

        return put

    def _make_caller_of_get(self, original: Method, empty: type[Exception]) -> Method:
        if self._replays:
            return self._replayed_get(original, empty)

        def get(queue: Any, block: Any = True, timeout: Any = None) -> Any:
            if block and timeout is None:
                return original(queue)
            return self._note_answer(queue, empty, partial(original, queue, block, timeout))

        return get

    def _note_answer(self, queue: Any, refused: type[Exception], call: Method) -> Any:
        """Call put or get, and note whether it was refused."""
        order = queue.__dict__.get(ORDER)
        try:
            result = call()
        except refused:
            if order is not None:
                order.answer(0)
            raise
        if order is not None:
            order.answer(1)
        return result

    def _replayed_put(self, original: Method, full: type[Exception]) -> Method:
        def put(queue: Any, item: Any, block: Any = True, timeout: Any = None) -> None:
            order = queue.__dict__.get(ORDER)
            if order is None:
                original(queue, item, block, timeout)
            else:
                order.call(order.puts, full, partial(original, queue, item), block, timeout)

        return put

    def _replayed_get(self, original: Method, empty: type[Exception]) -> Method:
        def get(queue: Any, block: Any = True, timeout: Any = None) -> Any:
            order = queue.__dict__.get(ORDER)
            if order is None:
                return original(queue, block, timeout)
            return order.call(order.gets, empty, partial(original, queue), block, timeout)

        return get

    def _forget(self) -> None:
        """In a forked child: the parent's queues are not watched."""
        for queue in list(self._known):
            setattr(queue, ORDER, None)
        self._known.clear()


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

        def __new__(cls) -> Any:
            caller = sys._getframe(1)
            if caller.f_globals.get("__name__") in POOLS:
                return original()
            found = super().__new__(cls)
            queue = found._queue = module.Queue.__new__(module.Queue)
            initialize(queue)
            queue.mutex = threading.RLock()
            for name in ("not_empty", "not_full", "all_tasks_done"):
                setattr(queue, name, threading.Condition(queue.mutex))
            setattr(queue, ORDER, orders.attempt(order, queue, caller))
            return found

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
