"""Where a study and those who make its pairs leave things for each other: a shared directory, or an fsspec store.

What lies there was written by other machines, so nothing larger than asked for is read of it.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias
from uuid import uuid4

from reprokit.core.errors import StoreUnreachable, needed_for, refused_as
from reprokit.run_files.rundir import open_regular

PATIENCE: Final = 60.0  # seconds that a store has to answer before a study begins
MAX_REASON: Final = 300  # characters


def is_url(place: str) -> bool:
    """Return whether a place is a URL for fsspec."""
    return "://" in place or "::" in place


def opened(place: str) -> Depot:
    """Return the depot at a path or a URL, which need not exist yet."""
    return DepotStore(place) if is_url(place) else DepotDirectory(Path(place))


def below(place: str, name: str) -> str:
    """Return the place of this name below another one."""
    if "::" in place:  # of chained file systems the first has the path
        first, _, rest = place.partition("::")
        return f"{first.rstrip('/')}/{name}::{rest}"
    return f"{place.rstrip('/')}/{name}"


def check(place: str) -> None:
    """Raise StoreUnreachable, in one line, unless a file can be written there and read back, and in time."""
    failed: list[BaseException] = []
    thread = threading.Thread(target=_caught, args=(lambda: _probe(opened(place), place), failed), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if thread.is_alive():
        raise StoreUnreachable(f"the store {place} does not answer within {PATIENCE:g} s")
    for error in failed:
        raise error


def _caught(call: Callable[[], None], failed: list[BaseException]) -> None:
    try:
        call()
    except BaseException as error:
        failed.append(error)


def _probe(depot: Depot, place: str) -> None:
    name = f"probe-{uuid4().hex[:12]}"
    depot.put(name, b"reprokit")
    data = depot.get(name, 100)
    depot.remove(name)
    if data != b"reprokit":
        raise StoreUnreachable(f"the store {place} does not give back what was written into it")


class DepotDirectory:
    """Keeps small named files, each whole or not at all, in a directory that all machines reach by the same path."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def put(self, name: str, data: bytes) -> None:
        """Write a file, over one that may be there."""
        with refused_as(StoreUnreachable, self._path):
            os.replace(self._written(name, data), self._path / name)

    def create(self, name: str, data: bytes) -> bool:
        """Write a file that must be new; False if it is there already."""
        try:
            partial = self._written(name, data)
            try:
                os.link(partial, self._path / name)
            finally:
                os.unlink(partial)
        except FileExistsError:
            return False
        except OSError as error:
            raise StoreUnreachable(f"{self._path}: {error.strerror}") from None
        return True

    def _written(self, name: str, data: bytes) -> str:
        (self._path / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(prefix=".", suffix=".partial", dir=(self._path / name).parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        return partial

    def get(self, name: str, limit: int) -> bytes | None:
        """Return a file; None if there is none. One that is larger than the limit is cut one byte behind it."""
        try:
            with open(self._path / name, "rb", opener=open_regular) as file:
                return file.read(limit + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StoreUnreachable(f"{self._path / name}: {error.strerror}") from None

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        with suppress(OSError):
            (self._path / name).unlink()


class DepotStore:
    """Keeps the same files below a URL that fsspec reaches: an object store, a server, a directory."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()  # a file system of fsspec's is for one thread at a time
        with needed_for("a store that is a URL", "fsspec"):
            from fsspec.core import url_to_fs
        filesystem_and_path = self._tried(lambda: url_to_fs(url, use_listings_cache=False))
        self._system, self._root = filesystem_and_path[0], str(filesystem_and_path[1]).rstrip("/")

    def put(self, name: str, data: bytes) -> None:
        """Write a file, over one that may be there."""
        self._tried(lambda: self._put(name, data))

    def _put(self, name: str, data: bytes) -> None:
        path = f"{self._root}/{name}"
        self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._system.pipe_file(path, data)

    def create(self, name: str, data: bytes) -> bool:
        """Write a file that must be new; False if it is there already."""
        # Few stores can do both at once. Who looks here twice for one name does so one after the other.
        if self.get(name, 0) is not None:
            return False
        self.put(name, data)
        return True

    def get(self, name: str, limit: int) -> bytes | None:
        """Return a file; None if there is none. One that is larger than the limit is cut one byte behind it."""
        data = self._tried(lambda: self._get(f"{self._root}/{name}", limit))
        return None if data is None else bytes(data)[: limit + 1]

    def _get(self, path: str, limit: int) -> bytes | None:
        try:
            with self._system.open(path, "rb") as file:
                data: bytes = file.read(limit + 1)
                return data
        except FileNotFoundError:
            return None

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        with suppress(Exception), self._lock:
            self._system.rm_file(f"{self._root}/{name}")

    def _tried(self, call: Callable[[], Any]) -> Any:
        """Call a function of fsspec's and turn its many kinds of errors into StoreUnreachable."""
        try:
            with self._lock:
                return call()
        except Exception as error:
            raise StoreUnreachable(f"the store {self._url} cannot be reached: {_reason(error)}") from None


Depot: TypeAlias = DepotDirectory | DepotStore


def _reason(error: BaseException) -> str:
    """Return one line that describes an exception."""
    words = " ".join(str(error).split())[:MAX_REASON]
    return f"{words} ({type(error).__name__})" if words else type(error).__name__
