"""The tensors of a run that is in an object store, as files: indexes at once, shards when needed."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from reprokit import object_stores, rundir
from reprokit.saved_tensors.index import ENDING, KEY, MAX_BYTES

RENEWED = 1.0  # seconds for which a list of the store is believed
HOME, LIST = "run/", "bundle.json"  # of what 'reprokit push' writes; the list comes last


class StoredTensors:
    """A directory that follows the store."""

    def __init__(self, url: str) -> None:
        self._root, self._url = url.rstrip("/"), f"{url.rstrip('/')}/{HOME}{rundir.TENSORS}"
        self._base, self._store = object_stores.open_store(self._root), object_stores.open_store(self._url)
        self._scratch = tempfile.TemporaryDirectory(prefix="reprokit-trial-")
        self.path = Path(self._scratch.name)
        (self.path / rundir.TENSORS).mkdir()
        self._tags: dict[str, str] = {}
        self._is_over = False
        self._looked: float | None = None

    def refresh(self) -> bool:
        """Fetch the indexes that have grown; returns whether the run was whole in the store before that."""
        if self._is_over or (self._looked is not None and time.monotonic() - self._looked < RENEWED):
            return self._is_over
        is_over = object_stores.found(self._base, self._root, LIST) is not None
        for meta in object_stores.listed(self._store, self._url):
            name, tag = str(meta["path"]), str(meta["e_tag"])
            is_index = name.endswith(ENDING) and KEY.fullmatch(name.removesuffix(ENDING))
            if is_index and self._tags.get(name) != tag and meta["size"] <= MAX_BYTES:
                self._fetch(name)
                self._tags[name] = tag
        self._looked, self._is_over = time.monotonic(), is_over
        return is_over

    def require(self, shard: str) -> None:
        """Fetch a shard, if it is not here."""
        if not (self.path / rundir.TENSORS / shard).exists():
            self._fetch(shard)

    def _fetch(self, name: str) -> None:
        place = self.path / rundir.TENSORS / name
        partial = place.with_name(f"{name}.partial")
        with open(partial, "wb") as file:
            for block in object_stores.content(self._store, self._url, name):
                file.write(block)
        partial.replace(place)
