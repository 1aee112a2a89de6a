"""Executes pairs by the workers of a Dask cluster, an existing one or one of local processes."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Final

from reprokit.core.errors import CannotBegin, EngineUnusable, needed_for, reason
from reprokit.core.version import VERSION
from reprokit.run.messages import warn
from reprokit.study.description import Engine
from reprokit.study.engines.worker import work

OF_TERMINAL: Final = (signal.SIGINT, signal.SIGHUP)
PATIENCE: Final = 30  # seconds that a scheduler has to answer, and workers to come
# Read by each worker. Nothing of reprokit's is in it by reference, so that one which lacks reprokit can say so.
VERSION_THERE: Final = (
    "__import__('reprokit.study.engines.worker') and __import__('reprokit.core.version').version.VERSION"
)


def check(settings: Engine) -> None:
    """Refuse invalid settings."""
    with needed_for('kind = "dask"', "distributed"):
        import distributed  # noqa: F401
    if settings.options and not settings.address:
        raise EngineUnusable("engine.options are resources of workers, which need the address of a scheduler")
    if not all(isinstance(value, int | float) for value in settings.options.values()):
        raise EngineUnusable("engine.options are resources that a pair takes of a worker, so their values are numbers")


class Dask:
    """A client of a Dask cluster. Dask starts a task again whose worker died; the job's claim then ends it at once."""

    def __init__(self, settings: Engine, _directory: Path) -> None:
        from distributed import Client

        self._settings, self._futures = settings, {}  # type: tuple[Engine, dict[str, Any]]
        self._has_warned = False
        with ExitStack() as stack:
            where = settings.address or stack.enter_context(_processes(settings.parallel))
            self._client = stack.enter_context(_client(Client, where))
            self._check_workers()
            self._close = stack.pop_all()

    def _check_workers(self) -> None:
        """Raise CannotBegin unless there are workers, and all of them have this very reprokit."""
        try:
            self._client.wait_for_workers(1, timeout=PATIENCE)
        except TimeoutError:
            raise EngineUnusable(f"no worker is connected to {self._settings.address}") from None
        versions = self._client.run(eval, VERSION_THERE, on_error="return")
        for worker, version in versions.items():
            if isinstance(version, BaseException):
                words = " ".join(str(version).split())
                raise CannotBegin(f"worker {worker} cannot use reprokit: {words}; install reprokit {VERSION} there")
            if version != VERSION:
                raise CannotBegin(f"worker {worker} has reprokit {version}; install {VERSION} there, which this one is")

    def submit(self, place: str, name: str) -> None:
        """Submit the job of a pair."""
        resources = dict(self._settings.options) or None
        self._futures[name] = self._client.submit(
            _work, place, name, key=name, pure=False, retries=0, resources=resources
        )

    def ended(self, name: str) -> str | None:
        """Return how a job has ended."""
        future = self._futures[name]
        if not future.done():
            if self._client.status not in ("running", "connecting"):
                raise EngineUnusable(f"the connection to the Dask scheduler is gone ({self._client.status})")
            self._warn_without_workers()
            return None
        try:
            error = future.exception()
        except CancelledError:
            return "it was cancelled"
        return "" if error is None else reason(error)

    def _warn_without_workers(self) -> None:
        if not self._has_warned and self._settings.address and not self._client.scheduler_info()["workers"]:
            self._has_warned = True
            warn("no worker is connected to the Dask scheduler; waiting for one")

    def cancel(self, name: str) -> None:
        """Cancel a job that has not begun."""
        with suppress(Exception):
            self._futures[name].cancel()

    def close(self) -> None:
        """Disconnect from the cluster, and shut it down if it was started here."""
        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # it complains of whatever ends together
        with suppress(Exception):
            self._close.close()


@contextmanager
def _processes(count: int) -> Iterator[Any]:
    """Start a cluster of processes on this machine."""
    import dask
    from distributed import LocalCluster

    # Dask would set numbers of threads, which the trainings would inherit.
    with dask.config.set({"distributed.nanny.pre-spawn-environ": {}}):
        resource_tracker.ensure_running()  # which would let the signals through again
        # Ctrl-C is for the study, which ends its jobs; workers, which threads of this cluster start, inherit the mask.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, OF_TERMINAL)
        try:
            cluster = LocalCluster(
                n_workers=count,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                dashboard_address=None,
                memory_limit=0,
                silence_logs=logging.CRITICAL,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        with cluster:
            yield cluster


def _client(kind: Any, where: Any) -> Any:
    try:
        return kind(where, timeout=PATIENCE, set_as_default=False, name="reprokit-study")
    except Exception as error:
        raise EngineUnusable(f"the Dask scheduler cannot be reached: {reason(error)}") from None


def _work(place: str, name: str) -> None:
    """Execute a job; runs in a Dask worker."""
    from distributed import get_worker

    work(place, name, get_worker().address)
