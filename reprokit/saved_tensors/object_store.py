"""Fetches the tensors of a run in an object store as files: all indexes, and shards when they are needed."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from reprokit.run_files import object_stores, rundir
from reprokit.saved_tensors.index import ENDING, KEY, MAX_BYTES

LISTING_AGE = 1.0  # seconds between listings of the store
HOME, LIST = "run/", "bundle.json"  # names that 'reprokit push' writes; the list is written last


class StoredTensors:
    """A temporary directory with files of the store."""

    def __init__(self, url: str) -> None:
        self._root, self._url = url.rstrip("/"), f"{url.rstrip('/')}/{HOME}{rundir.TENSORS}"
        self._base, self._store = object_stores.open_store(self._root), object_stores.open_store(self._url)
        self._scratch = tempfile.TemporaryDirectory(prefix="reprokit-trial-")
        self.path = Path(self._scratch.name)
        (self.path / rundir.TENSORS).mkdir()
        self._tags: dict[str, str] = {}
        self._is_over = False
        self._listed_at: float | None = None

    def refresh(self) -> bool:
        """Fetch the indexes that have changed; returns whether the run was complete in the store before that."""
        if self._is_over or (self._listed_at is not None and time.monotonic() - self._listed_at < LISTING_AGE):
            return self._is_over
        is_over = object_stores.found(self._base, self._root, LIST) is not None
        for meta in object_stores.listed(self._store, self._url):
            name, tag = str(meta["path"]), str(meta["e_tag"])
            is_index = name.endswith(ENDING) and KEY.fullmatch(name.removesuffix(ENDING))
            if is_index and self._tags.get(name) != tag and meta["size"] <= MAX_BYTES:
                self._fetch(name)
                self._tags[name] = tag
        self._listed_at, self._is_over = time.monotonic(), is_over
        return is_over

    def require(self, shard: str) -> None:
        """Fetch a shard unless it has been fetched."""
        if not (self.path / rundir.TENSORS / shard).exists():
            self._fetch(shard)

    def _fetch(self, name: str) -> None:
        place = self.path / rundir.TENSORS / name
        partial = place.with_name(f"{name}.partial")
        with open(partial, "wb") as file:
            for block in object_stores.content(self._store, self._url, name):
                file.write(block)
        partial.replace(place)
