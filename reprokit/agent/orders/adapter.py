"""Patches the modules in which the order of threads, processes or tasks matters."""

from __future__ import annotations

import sys
from functools import partial

from ..core.agent import ORDERS, Adapter, Agent
from .conditions import ConditionOrders
from .imports import ImportOrders
from .locks import LockOrders
from .tracks import Orders, orders_of

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
        self._orders: Orders | None = None
        if ORDERS in agent.keeps:
            self._orders = orders = orders_of(agent)
            orders.actors.watch(sys.modules["threading"])
            LockOrders(orders).watch(sys.modules["threading"])
            ConditionOrders(orders).watch(sys.modules["threading"])
            ImportOrders(orders).watch(sys.modules["_frozen_importlib"], agent.imports.searched)
            agent.listeners.append(((LOADERS,), partial(self._watch_loaders, orders)))
            agent.listeners.append((("torch",), self._watch_torch))
        self._workers: WorkerOrders | None = None
        self._processes: ProcessOrders | None = None
        self._memory: SharedMemory | None = None
        self._dask: DaskOrders | None = None

    def instrument(self, name: str, module: Any) -> None:
        orders = self._orders
        if orders is None:
            return
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

    def _watch_loaders(self, orders: Orders, name: str, module: Any) -> None:
        from .loaders import LoaderOrders

        LoaderOrders(orders).watch(module)
