"""Patches the modules in which the order of threads, processes or tasks matters."""

from __future__ import annotations

import sys

from ..core.agent import ORDERS, Agent
from ..frameworks.base import Adapter
from .conditions import ConditionOrders
from .imports import ImportOrders
from .locks import LockOrders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .dask_tasks import DaskOrders
    from .processes import ProcessOrders
    from .shared_memory import SharedMemory
    from .workers import WorkerOrders


POOLS = ("joblib._parallel_backends", "multiprocessing.pool", "multiprocessing.process")
EXECUTORS = ("concurrent.futures.process", "concurrent.futures.thread")
SHARING = ("context", "process", "shared_memory", "synchronize")  # of multiprocessing
PROCESSES = ("multiprocessing.connection", "multiprocessing.queues", "multiprocessing.synchronize")
DASK = ("dask.sizeof", "distributed.scheduler", "distributed.stealing")
LOADERS = "torch.utils.data.dataloader"  # PyTorch's adapter patches it too


class OrdersAdapter(Adapter):
    """Starts the recording or replay of orders in each module that is imported."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        if ORDERS in agent.keeps:
            agent.orders.actors.watch(sys.modules["threading"])
            LockOrders(agent.orders).watch(sys.modules["threading"])
            ConditionOrders(agent.orders).watch(sys.modules["threading"])
            ImportOrders(agent.orders).watch(sys.modules["_frozen_importlib"], agent.import_listeners)
            agent.listeners.append(((LOADERS,), self._watch_loaders))
            agent.listeners.append((("torch",), self._watch_torch))
        self._workers: WorkerOrders | None = None
        self._processes: ProcessOrders | None = None
        self._memory: SharedMemory | None = None
        self._dask: DaskOrders | None = None

    def instrument(self, name: str, module: Any) -> None:
        if ORDERS not in self._agent.keeps:
            return
        orders = self._agent.orders
        if name.startswith("multiprocessing.") and name.endswith(SHARING):
            self._shared_memory().watch(module)
        if name in POOLS or name in EXECUTORS:
            from .workers import WorkerOrders

            self._workers = self._workers or WorkerOrders(orders, self._agent.run)
            self._workers.watch(module)
        if name in PROCESSES:
            from .processes import ProcessOrders

            self._processes = self._processes or ProcessOrders(orders, self._agent.run)
            self._processes.watch(module)
        elif name == "queue":
            from .queues import QueueOrders

            QueueOrders(orders).watch(module)
        elif name == "concurrent.futures._base":
            from .futures import FutureOrders

            FutureOrders(orders).watch(module)
        elif name == "multiprocessing.managers":
            from .managers import ManagerOrders

            ManagerOrders(orders).watch(module)
        elif name == "multiprocessing.pool":
            from .pools import PoolOrders

            PoolOrders(orders).watch(module)
        elif name == "asyncio.base_events":
            from .loops import LoopOrders

            LoopOrders(orders).watch(module)
        elif name == "asyncio.timeouts":
            from .loops import LoopOrders

            LoopOrders(orders).watch_timeouts(module)
        elif name == "asyncio.selector_events":
            from .loops import LoopOrders

            LoopOrders(orders).watch_sockets(module)
        elif name == "asyncio.unix_events":
            from .loops import LoopOrders

            LoopOrders(orders).watch_programs(module)
        elif name == "ray._private.worker":
            from .ray_tasks import RayOrders

            RayOrders(orders).watch(module)
        elif name in DASK:
            from .dask_tasks import DaskOrders

            self._dask = self._dask or DaskOrders(orders)
            self._dask.watch(module)
        elif name == "joblib.parallel":
            from .joblib_jobs import JobOrders

            JobOrders(orders).watch(module)

    def _shared_memory(self) -> SharedMemory:
        from .shared_memory import SharedMemory

        self._memory = self._memory or SharedMemory(self._agent)
        return self._memory

    def _watch_torch(self, name: str, module: Any) -> None:
        self._shared_memory().watch_torch(module)

    def _watch_loaders(self, name: str, module: Any) -> None:
        from .loaders import LoaderOrders

        LoaderOrders(self._agent.orders).watch(module)
