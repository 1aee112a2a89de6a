"""Runs tasks by the workers of a Dask cluster, an existing one or one of local processes."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from reprokit.core.errors import CannotBegin, EngineUnusable, reason
from reprokit.core.messages import warn
from reprokit.core.version import VERSION
from reprokit.run.environment import inherited
from reprokit.study import tasks
from reprokit.study.description import Engine
from reprokit.study.engines import apart_from_terminal, refused

LIBRARY: Final = "distributed"
CONFIG: Final = {  # of workers on this machine
    "distributed.nanny.pre-spawn-environ": {},  # Dask would set numbers of threads, which trainings would inherit
    "distributed.deploy.lost-worker-timeout": "1 day",  # a worker that died is started again, however long that takes
}
PATIENCE: Final = 30  # seconds that a scheduler has to answer, and workers to come
# Read by each worker. Nothing of reprokit's is in it by reference, so that one which lacks reprokit can say so.
VERSION_THERE: Final = "__import__('reprokit.study.tasks') and __import__('reprokit.core.version').core.version.VERSION"


def check(settings: Engine) -> None:
    """Refuse invalid settings."""
    if settings.options and not settings.address:
        raise EngineUnusable("engine.options are resources of workers, which need the address of a scheduler")
    if not all(isinstance(value, int | float) for value in settings.options.values()):
        raise EngineUnusable("engine.options are resources that a pair takes of a worker, so their values are numbers")


class Dask:
    """A client of a Dask cluster. Dask itself starts the task of a worker that died again, on another one."""

    def __init__(self, settings: Engine, directory: Path) -> None:
        self._settings, self._directory = settings, str(directory)
        self._futures: dict[str, Any] = {}
        self._has_warned = False
        with ExitStack() as stack:
            self._client = stack.enter_context(_client(settings))
            self._check_workers()
            self._close = stack.pop_all().close

    def _check_workers(self) -> None:
        """Raise CannotBegin unless there are workers, and all of them have this very reprokit."""
        try:
            self._client.wait_for_workers(1, timeout=PATIENCE)
        except TimeoutError:
            raise EngineUnusable(f"no worker is connected to {self._settings.address}") from None
        for worker, version in self._client.run(eval, VERSION_THERE, on_error="return").items():
            if version != VERSION:
                fails = isinstance(version, BaseException)
                why = f"cannot use reprokit: {reason(version)}" if fails else f"has reprokit {version}"
                raise CannotBegin(f"worker {worker} {why}; install reprokit {VERSION} there, which this one is")

    def submit(self, name: str) -> None:
        """Submit a task."""
        options = {"key": f"{name}-{uuid4().hex}", "retries": tasks.TRIES - 1, "pure": False}
        resources = dict(self._settings.options) or None
        self._futures[name] = self._client.submit(_work, self._directory, name, resources=resources, **options)

    def ended(self, name: str) -> str | None:
        """Return how a task has ended."""
        future = self._futures[name]
        if not future.done():
            if self._client.status not in ("running", "connecting"):
                raise EngineUnusable(f"the connection to the Dask scheduler is gone ({self._client.status})")
            if not self._has_warned and self._settings.address and not self._client.scheduler_info()["workers"]:
                self._has_warned = True
                warn("no worker is connected to the Dask scheduler; waiting for one", "no-worker")
            return None
        try:
            error = future.exception()
        except CancelledError:
            return "it was cancelled"
        return "" if error is None else reason(error)

    def close(self) -> None:
        """Cancel what waits, disconnect from the cluster, and shut it down if it was started here."""
        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # it complains of whatever ends together
        with suppress(Exception):
            self._client.cancel([future for future in self._futures.values() if not future.done()])
        with suppress(Exception):
            self._close()


@contextmanager
def _client(settings: Engine) -> Iterator[Any]:
    """Connect to a scheduler, or to one of this process with workers on this machine."""
    import dask
    from distributed import Client, LocalCluster

    with ExitStack() as stack:
        where = settings.address
        if not where:
            stack.enter_context(dask.config.set(CONFIG))
            resource_tracker.ensure_running()  # which would let the signals through again
            options = {"host": "127.0.0.1", "dashboard_address": None, "memory_limit": 0, "threads_per_worker": 1}
            with apart_from_terminal():  # also workers that threads of this cluster start
                cluster = LocalCluster(n_workers=settings.parallel, silence_logs=logging.CRITICAL, **options)
            where = stack.enter_context(cluster)
        with refused("the Dask scheduler cannot be reached"):
            client = Client(where, timeout=PATIENCE, set_as_default=False, name="reprokit-study")
        yield stack.enter_context(client)


# In a worker


def _work(directory: str, name: str) -> None:
    from distributed import get_worker

    tasks.work(directory, name, get_worker().address, _environment())


def _environment() -> dict[str, str]:
    """Return the worker's environment without the thread counts that Dask has set for itself."""
    variables, config = inherited(), sys.modules["dask.config"]
    with suppress(OSError), open(f"/proc/{os.getppid()}/environ", "rb") as file:
        of_nanny = {os.fsdecode(entry.partition(b"=")[0]) for entry in file.read().split(b"\0")}
        for name, value in (config.get("distributed.nanny.pre-spawn-environ", None) or {}).items():
            if variables.get(name) == str(value) and name not in of_nanny:
                del variables[name]
    return variables
