"""Reads an OCDBT store, as Orbax writes its checkpoints, in a separate process (part_process).

Zarr arrays are tensors by their names in the store; their storage format is noise. Other entries, such as metadata, are
values.
"""

from __future__ import annotations

import os
import sys
from typing import IO, Any

import numpy
import tensorstore

from reprokit.diff.part_process import PartWriter, RefusedFile, serve

DRIVERS = {".zarray": "zarr", "zarr.json": "zarr3"}  # by the name of the entry that describes an array
BLOCK = 16 << 20  # bytes of an array per read
MOST_ENTRIES, LONGEST_ENTRY = 300_000, 1 << 20


def read(_source: IO[bytes], parts: PartWriter) -> None:
    """Send the arrays of the store in the working directory, and all other entries."""
    spec = {"driver": "ocdbt", "base": f"file://{os.getcwd()}/"}
    store = tensorstore.KvStore.open(spec).result()
    keys = sorted(key.decode("utf-8", "backslashreplace") for key in store.list().result())
    if len(keys) > MOST_ENTRIES:
        raise RefusedFile(f"it has {len(keys)} entries, more than are read")
    arrays = {key.rpartition("/")[0]: DRIVERS[name] for key in keys if (name := key.rpartition("/")[2]) in DRIVERS}
    for name, driver in arrays.items():
        _array(parts, name, tensorstore.open({"driver": driver, "kvstore": {**spec, "path": f"{name}/"}}).result())
    for key in keys:
        if not any(key.startswith(f"{name}/") for name in arrays if name):
            value = store.read(key).result().value
            if len(value) > LONGEST_ENTRY:
                raise RefusedFile(f"the entry {key[:200]!r} has {len(value)} bytes")
            parts.send("value", key, text=repr(value))


def _array(parts: PartWriter, name: str, array: Any) -> None:
    size = array.size * array.dtype.numpy_dtype.itemsize
    parts.send("noise", f"{name}/storage", text=str(array.spec().to_json().get("metadata")))
    parts.spend(name, size, size)
    parts.send("tensor", name, size, dtype=array.dtype.name, shape=list(array.shape), big=False)
    length = array.shape[0] if array.rank else 1
    rows = max(1, BLOCK * length // max(1, size))
    for start in range(0, length, rows):
        block = array[start : min(start + rows, length)] if array.rank else array
        parts.out.write(numpy.ascontiguousarray(block.read().result()).reshape(-1).view(numpy.uint8).data)


if __name__ == "__main__":
    serve(int(sys.argv[1]), read)
