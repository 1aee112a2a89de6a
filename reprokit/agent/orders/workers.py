"""Orders in pools of threads and processes: which worker takes the next task, and hands in the next result.

A task waits in a replay for the worker that had it: so what it draws, afresh or from a generator of its worker, and
what its worker remembers is as it was. That costs the time by which one worker is slower than in the recording. Whether
a new worker was made for a task, and how many tasks joblib puts together, depends on time too, and is recorded.
"""

from __future__ import annotations

import sys
import weakref
from zlib import crc32

from ..core.patching import Function, replace
from ..core.thread_names import WORKERS
from .turns import Choices
from .worker_turns import SEAT, WorkerTurns, take_seat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .tracks import Orders

BATCHES = "_reprokit_batches"  # attribute of a backend of joblib


class WorkerOrders:
    """Records the orders in this process' pools, or gives them again."""

    def __init__(self, orders: Orders, run: str) -> None:
        self._orders = orders
        self._run = run
        self._pools: Any = weakref.WeakKeyDictionary()  # of processes, by the queue that holds their tasks
        orders.on_fork(self._pools.clear)

    def watch(self, module: Any) -> None:
        """Watch the classes of one of the modules."""
        for owner, function, make in (
            ("BaseProcess", "start", self._make_start),
            ("BaseProcess", "run", self._make_run),
            ("ThreadPool", "_setup_queues", self._make_setup),
            ("ThreadPoolExecutor", "__init__", self._make_executor),
            ("ProcessPoolExecutor", "__init__", self._make_executor),
            ("AutoBatchingMixin", "compute_batch_size", self._make_batches),
        ):
            if owner in vars(module):
                replace(vars(module)[owner], function, make)

    def _make_start(self, original: Function) -> Function:
        def start(process: Any) -> Any:
            target = getattr(process, "_target", None)
            if (getattr(target, "__module__", None), getattr(target, "__name__", None)) in WORKERS:
                setattr(process, SEAT, self._orders.attempt(self._seat, process._args[0]))
            return original(process)

        return start

    def _seat(self, tasks: Any) -> tuple[str, int] | None:
        """Return what the next worker of a pool needs to know; the process object takes it to the worker."""
        if tasks not in self._pools:
            self._pools[tasks] = None  # unless all goes well
            name = self._orders.name("pool")
            file = f"{crc32(f'{self._orders.identity} {name}'.encode()):08x}"
            self._pools[tasks] = WorkerTurns(self._orders, name, f"{self._run}/turns", file) if name else None
        pool: WorkerTurns | None = self._pools[tasks]
        return None if pool is None else pool.seat()

    def _make_run(self, original: Function) -> Function:
        def run(process: Any) -> Any:
            seat = vars(process).get(SEAT)
            if seat is not None:
                self._orders.attempt(take_seat, seat, *process._args[:2])
            return original(process)

        return run

    def _make_setup(self, original: Function) -> Function:
        def _setup_queues(pool: Any) -> None:
            original(pool)
            self._orders.attempt(self._order_pool, pool)

        return _setup_queues

    def _order_pool(self, pool: Any) -> None:
        name = self._orders.name("ThreadPool")
        if name:
            takes, results = Gate(self._orders, f"{name} takes"), Gate(self._orders, f"{name} results")
            pool._inqueue, pool._outqueue = TaskQueue(pool._inqueue, takes), ResultQueue(pool._outqueue, results)

    def _make_executor(self, original: Function) -> Function:
        def initialize(executor: Any, *arguments: Any, **keywords: Any) -> None:
            original(executor, *arguments, **keywords)
            self._orders.attempt(self._order_executor, executor)

        return initialize

    def _order_executor(self, executor: Any) -> None:
        name = self._orders.name("executor") if executor._max_workers > 1 else ""
        if not name:
            return
        for attribute in ("_idle_semaphore", "_idle_worker_semaphore"):  # older versions have one or none
            semaphore = getattr(executor, attribute, None)
            if semaphore is not None:
                setattr(executor, attribute, IdleWorkers(semaphore, Choices(self._orders, f"{name} idle")))
        if hasattr(executor, "_work_queue"):  # of threads
            executor._work_queue = TaskQueue(executor._work_queue, Gate(self._orders, f"{name} takes"))

    def _make_batches(self, original: Function) -> Function:
        def compute_batch_size(backend: Any) -> Any:
            size = original(backend)
            return self._orders.attempt(self._batch_size, backend, size) or size

        return compute_batch_size

    def _batch_size(self, backend: Any, size: int) -> int:
        sizes: Choices | None = vars(backend).get(BATCHES)
        if sizes is None:
            sizes = backend.__dict__[BATCHES] = Choices(self._orders, self._orders.name("joblib") + " batches")
        return sizes.as_recorded(size)


class Gate:
    """Lets one thread after another do something; in a replay in the recorded order."""

    def __init__(self, orders: Orders, name: str) -> None:
        threading: Any = sys.modules["threading"]
        self._actors = orders.actors
        self._lock = threading.Lock()
        self._track = orders.track(name)
        given = orders.given(name) if orders.is_replay else ()
        self._turns = orders.turns(given, threading.Condition(self._lock)) if given else None
        self._note = self._track.note if self._turns is None else self._turns.advance
        self.is_replay = self._turns is not None

    def enter(self, action: Function, *arguments: Any, is_turn: Callable[[Any], bool]) -> Any:
        """Do it at this thread's turn; whether it was one is seen by the result."""
        me, turns = self._actors.mine.code, self._turns
        if turns is not None:
            turns.enter(me)
        try:
            with self._lock:
                result = action(*arguments)
                if is_turn(result):
                    self._note(me)
        finally:
            if turns is not None:
                turns.leave()
        return result


class TaskQueue:
    """A SimpleQueue of tasks, which threads take in turns. What sends a thread home is no task."""

    def __init__(self, queue: Any, gate: Gate) -> None:
        self._queue = queue
        self._gate = gate
        self.put = queue.put
        self.empty = queue.empty
        self.qsize = queue.qsize

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take a task; who does not wait clears the queue, and takes none."""
        if block and timeout is None:
            return self._gate.enter(self._queue.get, is_turn=_is_task)
        return self._queue.get(block, timeout)

    def get_nowait(self) -> Any:
        """Take a task if there is one; in a replay a worker hears that there is none, and comes back to wait."""
        if sys._getframe(1).f_code.co_name != "_worker":
            return self._queue.get_nowait()
        if self._gate.is_replay or self._queue.empty():  # else whoever holds the gate will not do so for long
            raise sys.modules["queue"].Empty
        return self._gate.enter(self._queue.get_nowait, is_turn=_is_task)


class ResultQueue:
    """A SimpleQueue of results, which threads hand in in turns."""

    def __init__(self, queue: Any, gate: Gate) -> None:
        self._queue = queue
        self._gate = gate
        self.get = queue.get

    def put(self, item: Any) -> None:
        """Hand in a result; what sends the pool's own thread home is none."""
        if item is None:
            self._queue.put(item)
        else:
            self._gate.enter(self._queue.put, item, is_turn=_is_put)


class IdleWorkers:
    """An executor's semaphore: a new worker is made where none is idle, which is a race."""

    def __init__(self, semaphore: Any, found: Choices) -> None:
        self._semaphore = semaphore
        self._found = found
        self.release = semaphore.release

    def acquire(self, *arguments: Any, **keywords: Any) -> bool:
        """Return whether a worker is idle, or in a replay was."""
        return bool(self._found.as_recorded(int(self._semaphore.acquire(*arguments, **keywords))))


def _is_task(item: Any) -> bool:
    return item is not None


def _is_put(_: Any) -> bool:
    return True
