"""Orders in pools of threads and processes: which worker takes the next task, and hands in the next result.

In a replay a task waits for the worker that had it in the recording: so its random numbers and the state of its worker
are the same. That costs the time by which a worker is slower than in the recording. Which thread submits first, whether
an executor starts a new worker for a task, and how many tasks joblib puts into a batch, depends on timing too.
"""

from __future__ import annotations

import sys
import weakref
from functools import partial
from zlib import crc32

from ..core.patching import Function, replace
from ..core.thread_names import WORKERS, target_of
from ..core.user_frames import is_users
from .callers import caller_outside
from .futures import RESULTS
from .turns import Choices
from .worker_turns import SEAT, WorkerTurns, watch_worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .tracks import Orders

BATCHES = "_reprokit_batches"  # attribute of a backend of joblib
SUBMITS = "_reprokit_submits"  # attribute of an executor
LONGEST_CALLBACK = 0.05  # seconds for which other results wait


class WorkerOrders:
    """Records or replays which worker of this process' pools takes each task and delivers each result."""

    def __init__(self, orders: Orders, run: str) -> None:
        self._orders = orders
        self._run = run
        self._pools: Any = weakref.WeakKeyDictionary()  # pools of processes, by their task queue
        orders.on_fork(self._pools.clear)

    def watch(self, module: Any) -> None:
        """Patch the pool classes of a module."""
        for owner, function, make in (
            ("BaseProcess", "start", self._make_start),
            ("BaseProcess", "run", self._make_run),
            ("ThreadPool", "_setup_queues", self._make_setup),
            ("ThreadPoolExecutor", "__init__", self._make_executor),
            ("ThreadPoolExecutor", "submit", self._make_submit),
            ("ProcessPoolExecutor", "submit", self._make_submit),
            ("ProcessPoolExecutor", "__init__", self._make_executor),
            ("AutoBatchingMixin", "compute_batch_size", self._make_batches),
        ):
            if owner in vars(module):
                replace(vars(module)[owner], function, make)

    def _make_start(self, original: Function) -> Function:
        def start(process: Any) -> Any:
            if target_of(process) in WORKERS:
                setattr(process, SEAT, self._orders.attempt(self._worker_seat, process._args[0]))
            return original(process)

        return start

    def _worker_seat(self, tasks: Any) -> tuple[str, int] | None:
        """Return the tracks' path and the next worker's number; the process object carries them to the worker."""
        if tasks not in self._pools:
            self._pools[tasks] = None  # stays so if something fails below
            name = self._orders.name("pool")
            file = f"{crc32(f'{self._orders.identity} {name}'.encode()):08x}"
            self._pools[tasks] = WorkerTurns(self._orders, name, f"{self._run}/turns", file) if name else None
        pool: WorkerTurns | None = self._pools[tasks]
        return None if pool is None else pool.next_worker()

    def _make_run(self, original: Function) -> Function:
        def run(process: Any) -> Any:
            seat = vars(process).get(SEAT)
            if seat is not None:
                self._orders.attempt(watch_worker, self._orders, seat, *process._args[:2])
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

    def _make_submit(self, original: Function) -> Function:
        def submit(executor: Any, *arguments: Any, **keywords: Any) -> Any:
            gate = vars(executor).get(SUBMITS)
            if gate is None:
                return original(executor, *arguments, **keywords)
            return gate.enter(partial(submit_now, executor, *arguments, **keywords), is_turn=_is_task)

        def submit_now(executor: Any, *arguments: Any, **keywords: Any) -> Any:
            semaphore = vars(executor).get("_idle_semaphore")
            if type(semaphore) is IdleSemaphore:
                self._orders.attempt(semaphore.wait)
            return original(executor, *arguments, **keywords)

        return submit

    def _order_executor(self, executor: Any) -> None:
        name = self._orders.name("executor") if executor._max_workers > 1 else ""
        if not name:
            return
        setattr(executor, SUBMITS, Gate(self._orders, f"{name} submits"))
        for attribute in ("_idle_semaphore", "_idle_worker_semaphore"):  # older versions have one or none
            semaphore = getattr(executor, attribute, None)
            if semaphore is not None:
                setattr(executor, attribute, IdleSemaphore(semaphore, self._orders, f"{name} idle"))
        if hasattr(executor, "_work_queue"):  # of threads
            gate, results = Gate(self._orders, f"{name} takes"), ResultTurns(self._orders, f"{name} results")
            executor._work_queue = TaskQueue(executor._work_queue, gate, results)

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
    """Serializes an action of several threads; in a replay in the recorded order."""

    def __init__(self, orders: Orders, name: str) -> None:
        threading: Any = sys.modules["threading"]
        self._actors = orders.actors
        self._lock = threading.Lock()
        self._track = orders.track(name)
        recorded = orders.recorded_actors(name) if orders.is_replay else ()
        self._turns = orders.turns(name, recorded, threading.Condition(self._lock)) if recorded else None
        self._note = self._track.note if self._turns is None else self._turns.advance
        self.is_replay = self._turns is not None

    def enter(self, action: Function, *arguments: Any, is_turn: Callable[[Any], bool]) -> Any:
        """Execute the action at this thread's turn; is_turn decides by the result whether it counts as one."""
        actor, turns = self._actors.current.code, self._turns
        if turns is not None:
            turns.enter(actor)
        try:
            with self._lock:
                result = action(*arguments)
                if is_turn(result):
                    self._note(actor)
        finally:
            if turns is not None:
                turns.leave()
        return result


class ResultTurns:
    """Orders the results of an executor's tasks, and the callbacks added to these, which a result makes run."""

    def __init__(self, orders: Orders, name: str) -> None:
        threading: Any = sys.modules["threading"]
        self._actors = orders.actors
        self._running = threading.RLock()
        self._guard = threading.Lock()
        recorded = orders.recorded_actors(name) if orders.is_replay else ()
        self._turns = orders.turns(name, recorded, threading.Condition(self._guard)) if recorded else None
        self._note = orders.track(name).note if self._turns is None else self._turns.advance

    def enter(self, action: Function, *arguments: Any) -> Any:
        """Execute the action once others have ended, or take long: a callback may wait for another result."""
        actor, turns = self._actors.current.code, self._turns
        if turns is not None:
            turns.enter(actor)
        is_alone = False
        try:
            is_alone = self._running.acquire(timeout=LONGEST_CALLBACK)
            with self._guard:
                self._note(actor)
            return action(*arguments)
        finally:
            if is_alone:
                self._running.release()


class TaskQueue:
    """Wraps a SimpleQueue of tasks, which threads take in turns. None, which stops a thread, is no task."""

    def __init__(self, queue: Any, gate: Gate, results: ResultTurns | None = None) -> None:
        self._queue = queue
        self._gate = gate
        self._results = results
        self.empty = queue.empty
        self.qsize = queue.qsize

    def put(self, item: Any) -> None:
        """Put a task; if the user's code submits it, its result and callbacks are ordered too."""
        if self._results is not None and item is not None:
            caller = caller_outside(("concurrent.futures.thread",))
            if caller is not None and is_users(caller.f_code.co_filename):
                setattr(item.future, RESULTS, self._results)
        self._queue.put(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take a task; a get that may fail only clears the queue, and is no turn."""
        if block and timeout is None:
            return self._gate.enter(self._queue.get, is_turn=_is_task)
        return self._queue.get(block, timeout)

    def get_nowait(self) -> Any:
        """Take a task if there is one; in a replay raise Empty to a worker, which then blocks in get()."""
        if sys._getframe(1).f_code.co_name != "_worker":
            return self._queue.get_nowait()
        if self._gate.is_replay or self._queue.empty():  # otherwise no thread holds the gate for long
            raise sys.modules["queue"].Empty
        return self._gate.enter(self._queue.get_nowait, is_turn=_is_task)


class ResultQueue:
    """Wraps a SimpleQueue of results, which threads put in turns."""

    def __init__(self, queue: Any, gate: Gate) -> None:
        self._queue = queue
        self._gate = gate
        self.get = queue.get

    def put(self, item: Any) -> None:
        """Put a result; None, which stops the pool's own thread, is no turn."""
        if item is None:
            self._queue.put(item)
        else:
            self._gate.enter(self._queue.put, item, is_turn=_is_put)


class IdleSemaphore:
    """Wraps the semaphore by which an executor learns whether a worker is idle or it must start one: a race."""

    def __init__(self, semaphore: Any, orders: Orders, name: str) -> None:
        self._semaphore = semaphore
        self._orders, self._name = orders, name
        self.release = semaphore.release

    def _outcomes(self) -> Choices | None:
        """Return the outcomes of this thread's calls."""
        outcomes: Choices | None = self._orders.attempt(self._orders.choices_named, self._name)
        return outcomes

    def wait(self) -> None:
        """In a replay, before the executor is locked: wait until a worker is idle, if one was in the recording."""
        outcomes = self._outcomes()
        if outcomes is not None and outcomes.is_replay and outcomes.peek() == "1":
            outcomes.until(self._is_there, "an idle worker")

    def _is_there(self, seconds: float) -> bool:
        is_there = self._semaphore.acquire(timeout=seconds)
        if is_there:
            self._semaphore.release()
        return bool(is_there)

    def acquire(self, *arguments: Any, **keywords: Any) -> bool:
        """Return whether a worker is idle; in a replay, whether one was in the recording."""
        outcomes, is_idle = self._outcomes(), self._semaphore.acquire(*arguments, **keywords)
        was_idle = bool(is_idle if outcomes is None else outcomes.as_recorded(int(is_idle)))
        if is_idle and not was_idle:
            self.release()
        return was_idle


def _is_task(item: Any) -> bool:
    return item is not None


def _is_put(_: Any) -> bool:
    return True
