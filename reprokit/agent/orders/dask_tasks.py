"""Places of Dask's tasks: which worker of a cluster executed each one; and what it draws for itself.

Its scheduler chooses by how long tasks took and who was done first. In a replay it gives each task to the worker that
had it, without waiting for anyone. Workers are known by their names, where these are not addresses.
"""

from __future__ import annotations

import sys
import weakref
from array import array
from hashlib import blake2b

from ..core.patching import Function, replace
from ..core.thread_names import without_ids
from .recording import packed
from .tracks import MAX_TURNS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .tracks import Orders

MAX_TASKS = 1 << 20  # of a scheduler
KEY_SIZE = 8  # bytes of a key's digest


class TaskPlaces:
    """The workers that executed the tasks of one scheduler; written at the latest when the process ends."""

    def __init__(self, orders: Orders, name: str) -> None:
        self._orders, self._name = orders, name
        texts = orders.recorded_actors(name) if orders.is_replay else ()
        self._recorded = dict(text.partition(" ")[::2] for text in texts)
        self._done: set[str] = set()  # in a replay: keys of tasks that a worker has executed
        self._unwritten: list[str] = []
        self._count = self.exact = self.moved = 0
        orders.register(self)

    @property
    def unused(self) -> int:
        """The number of recorded tasks that no worker executed."""
        return len(self._recorded.keys() - self._done)

    def recorded_of(self, task: Any) -> str:
        """Return the name of the worker that had a task; "" if it is not known."""
        return self._recorded.get(_digest(task), "") if self._recorded else ""

    def note(self, task: Any, worker: Any) -> None:
        """Note that a worker has had a task."""
        key, name = _digest(task), _name(worker)
        if self._orders.is_replay:
            if key in self._recorded and key not in self._done:
                self._done.add(key)
                is_same = self._recorded[key] == name
                self.exact, self.moved = self.exact + is_same, self.moved + (not is_same)
        elif name and self._count < MAX_TASKS:
            self._count += 1
            self._unwritten.append(f"{key} {name}")
            if len(self._unwritten) >= MAX_TURNS:
                self.write()

    def write(self) -> None:
        """Write what was noted since the last write."""
        texts, self._unwritten = list(dict.fromkeys(self._unwritten)), []
        if texts:
            self._orders.write(self._name, packed(array("H", range(len(texts))), texts))


class EvenSamples:
    """Stands for the module random where Dask estimates sizes, which it does as often as messages come.

    What it drew of the training's generator would differ in each run. Here every n-th item is a sample.
    """

    @staticmethod
    def sample(items: Sequence[Any], count: int) -> list[Any]:
        """Return this number of items."""
        return [items[number * len(items) // count] for number in range(count)]

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.modules["random"], name)


class DaskOrders:
    """Records or replays which worker of a scheduler in this process gets each task."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._places: Any = weakref.WeakKeyDictionary()  # by scheduler
        orders.on_fork(self._places.clear)

    def watch(self, module: Any) -> None:
        """Patch distributed.scheduler, distributed.stealing or dask.sizeof."""
        if module.__name__ == "dask.sizeof":
            module.random = EvenSamples()
        if hasattr(module, "WorkStealing"):
            replace(module.WorkStealing, "move_task_request", self._make_request)
        if hasattr(module, "SchedulerState"):
            replace(module.SchedulerState, "_add_to_processing", self._make_add)
            replace(module.SchedulerState, "_exit_processing_common", self._make_exit)

    def _places_of(self, scheduler: Any) -> TaskPlaces | None:
        if scheduler not in self._places:
            name = self._orders.name("dask")
            self._places[scheduler] = TaskPlaces(self._orders, name) if name else None
        places: TaskPlaces | None = self._places[scheduler]
        return places

    def _make_add(self, original: Function) -> Function:
        def add(scheduler: Any, task: Any, worker: Any, *arguments: Any, **keywords: Any) -> Any:
            recorded = self._orders.attempt(self._recorded_worker, scheduler, task)
            return original(scheduler, task, worker if recorded is None else recorded, *arguments, **keywords)

        return add

    def _recorded_worker(self, scheduler: Any, task: Any) -> Any:
        """Return the worker that had a task in the recording; None if it is not known, or may not have it now."""
        places = self._places_of(scheduler)
        name = places.recorded_of(task) if places is not None else ""
        if not name:
            return None
        valid_workers = scheduler.valid_workers(task)
        workers = scheduler.running if valid_workers is None else scheduler.running & valid_workers
        return next((worker for worker in workers if _name(worker) == name), None)

    def _make_exit(self, original: Function) -> Function:
        def leave(scheduler: Any, task: Any, *arguments: Any, **keywords: Any) -> Any:
            self._orders.attempt(self._note, scheduler, task)
            return original(scheduler, task, *arguments, **keywords)

        return leave

    def _note(self, scheduler: Any, task: Any) -> None:
        places, worker = self._places_of(scheduler), task.processing_on
        if places is not None and worker is not None:
            places.note(task, worker)

    def _make_request(self, original: Function) -> Function:
        def request(stealing: Any, task: Any, victim: Any, thief: Any) -> Any:
            had_it = self._orders.attempt(self._recorded_worker, stealing.scheduler, task)
            return "" if had_it is not None and had_it is not thief else original(stealing, task, victim, thief)

        return request


def _digest(task: Any) -> str:
    return blake2b(repr(task.key).encode(errors="backslashreplace"), digest_size=KEY_SIZE).hexdigest()


def _name(worker: Any) -> str:
    """Return a worker's name; "" if it is an address or another that does not repeat."""
    name = str(worker.name)
    return "" if name == worker.address or without_ids(name)[1] else name
