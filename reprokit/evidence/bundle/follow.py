"""Writes the saved tensors of a run to an object store while the run goes on."""

from __future__ import annotations

import os
import time
from pathlib import Path

from reprokit.core.bounds import open_file
from reprokit.core.errors import ReprokitError
from reprokit.core.messages import warn
from reprokit.evidence.bundle import manifest
from reprokit.model.run import RUNNING
from reprokit.run_files import object_stores, rundir
from reprokit.run_files.rundir import RunDirectory
from reprokit.saved_tensors.index import ENDING, keys

POLL = 1.0  # seconds between polls, at least
SHARE = 20  # the wait before the next upload, as a multiple of the duration of the last one


class FollowedTensors:
    """The tensors of a run that the store holds so far."""

    def __init__(self, run: Path, url: str) -> None:
        self._directory = run / rundir.TENSORS
        self._url = f"{url.rstrip('/')}/{manifest.HOME}{rundir.TENSORS}"
        self._store = object_stores.open_store(self._url)
        self._shards = {str(meta["path"]) for meta in object_stores.listed(self._store, self._url)}
        self._sizes: dict[str, int] = {}  # uploaded bytes of each index

    def upload(self) -> None:
        """Write finished shards, then the indexes that refer to them."""
        for key in keys(self._directory):
            index = self._directory / f"{key}{ENDING}"
            with os.fdopen(open_file(index), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size == self._sizes.get(key):
                    continue
                self._upload_shards(key)
                object_stores.write(self._store, self._url, index.name, file.read(size))
            self._sizes[key] = size

    def _upload_shards(self, key: str) -> None:
        for path in sorted(self._directory.glob(f"{key}-*.safetensors")):
            if path.name not in self._shards:
                with os.fdopen(open_file(path), "rb") as shard:
                    object_stores.create(self._store, self._url, path.name, shard)
                self._shards.add(path.name)


def follow(path: Path, url: str) -> None:
    """Upload the tensors that a run saves until it has ended; retries while the store cannot be reached."""
    tensors, failure = FollowedTensors(path, url), ""
    run = RunDirectory(path)
    while run.run.status == RUNNING and not run.orphaned:
        began = time.monotonic()
        try:
            tensors.upload()
            failure = ""
        except ReprokitError as error:
            if not failure:
                warn(f"{error}; trying again")
            failure = str(error)
        time.sleep(max(POLL, SHARE * (time.monotonic() - began)))
        run = RunDirectory(path)
    tensors.upload()
