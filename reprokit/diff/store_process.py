"""Reads a store, a directory of files that hold arrays together, in a separate process (part_process).

Arrays are tensors by their names in the store; their storage format is noise. Other entries, such as metadata, are
values. Of an array whose type tensorstore does not read, the files are values by their digests.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import posixpath
import stat
import sys
from typing import IO, Any

import numpy
import tensorstore

from reprokit.diff.part_process import PartWriter, RefusedFile, serve
from reprokit.diff.value_process import ValueWriter, under

DRIVERS = {".zarray": "zarr", "zarr.json": "zarr3"}  # by the name of the entry that describes an array
BLOCK = 16 << 20  # bytes of an array per read
MOST_ENTRIES, LONGEST_ENTRY = 300_000, 1 << 20
LONGEST_METADATA = 64 << 20  # bytes of a file of Zarr, which may repeat what all others say
NUMBERS = ("bool", "int", "uint", "float", "bfloat", "complex")  # how the names of types of numbers begin
CONSOLIDATED = "consolidated_metadata"
MEANING = frozenset(["shape", "dtype", "data_type", "attributes", "node_type", CONSOLIDATED])  # sent by other names
VALUES = ("fill_value", "dimension_names")  # of an array, beside its elements; all else says how it is stored


def read(_source: IO[bytes], parts: PartWriter) -> None:
    """Send the arrays of the OCDBT store in the working directory, and all other entries."""
    spec = {"driver": "ocdbt", "base": f"file://{os.getcwd()}/"}
    store = tensorstore.KvStore.open(spec).result()
    keys = sorted(key.decode("utf-8", "backslashreplace") for key in store.list().result())
    if len(keys) > MOST_ENTRIES:
        raise RefusedFile(f"it has {len(keys)} entries, more than are read")
    arrays = {key.rpartition("/")[0]: DRIVERS[name] for key in keys if (name := key.rpartition("/")[2]) in DRIVERS}
    for name, driver in arrays.items():
        array = tensorstore.open({"driver": driver, "kvstore": {**spec, "path": f"{name}/"}}).result()
        parts.send("noise", f"{name}/storage", text=str(array.spec().to_json().get("metadata")))
        _array(parts, name, array)
    for key in keys:
        if not any(key.startswith(f"{name}/") for name in arrays if name):
            value = store.read(key).result().value
            if len(value) > LONGEST_ENTRY:
                raise RefusedFile(f"the entry {key[:200]!r} has {len(value)} bytes")
            parts.send("value", key, text=repr(value))


def _array(parts: PartWriter, name: str, array: Any, stored: int | None = None) -> None:
    size = math.prod(array.shape) * array.dtype.numpy_dtype.itemsize
    parts.spend(name, size, size if stored is None else stored)
    parts.send("tensor", name, size, dtype=array.dtype.name, shape=list(array.shape), big=False)
    length = array.shape[0] if array.rank else 1
    rows = max(1, BLOCK * length // max(1, size))
    for start in range(0, length if size else 0, rows):
        block = array[start : min(start + rows, length)] if array.rank else array
        parts.out.write(numpy.ascontiguousarray(block.read().result()).reshape(-1).view(numpy.uint8).data)


def zarr(source: IO[bytes], parts: PartWriter) -> None:
    """Send groups, arrays and attributes of a Zarr store in the working directory; `source` names its files."""
    writer, sizes = ValueWriter(parts), _sizes(source)
    owned: dict[str, list[str]] = {}  # files that describe nothing, by the group or array in whose directory they are
    metadata = {name: _metadata(name) for name in sizes if posixpath.basename(name) in (*DRIVERS, ".zgroup", ".zattrs")}
    places = set(map(posixpath.dirname, metadata))
    for name in sizes.keys() - metadata.keys():
        place = posixpath.dirname(name)
        while place and place not in places:
            place = posixpath.dirname(place)
        owned.setdefault(place, []).append(name)
    for name, described in metadata.items():
        place, kind = posixpath.split(name)
        if kind == ".zattrs":
            writer.walk(f"{place}@", described)
            continue
        if kind == "zarr.json" or posixpath.join(place, ".zattrs") not in metadata:
            writer.walk(f"{place}@", described.get("attributes", {}))
        is_array = kind == ".zarray" or described.get("node_type") == "array"
        shown = MEANING.union(VALUES if is_array else ())
        storage = {key: value for key, value in described.items() if key not in shown}
        parts.send("noise", under(place, "storage"), text=_text(storage))
        if is_array:
            for key in VALUES:
                if described.get(key) is not None:
                    writer.walk(f"{place}/{key}", described[key])
            stored = sum(sizes[own] for own in owned.get(place, ()))
            if _is_read(writer, parts, place, DRIVERS[kind], described, stored):
                owned[place] = [own for own in owned.get(place, ()) if posixpath.basename(own) == ".zmetadata"]
        else:
            writer.what(under(place, "kind"), "group")
        _consolidated(writer, place, described, metadata)
    for name in sorted(name for names in owned.values() for name in names):
        if posixpath.basename(name) == ".zmetadata":
            _consolidated(writer, posixpath.dirname(name), {CONSOLIDATED: _metadata(name)}, metadata)
        else:
            writer.value(under("files", name), _digest(name))


def _is_read(
    writer: ValueWriter, parts: PartWriter, place: str, driver: str, described: dict[str, Any], stored: int
) -> bool:
    """Send the elements of an array, or what describes it if its type is none of numbers; return which of both."""
    folder = os.path.join(os.getcwd(), place, "")
    try:
        array = tensorstore.open({"driver": driver, "kvstore": {"driver": "file", "path": folder}}).result()
    except Exception:  # whatever the library has against it: its files can still be compared
        array = None
    if array is None or not array.dtype.name.startswith(NUMBERS):
        writer.what(place or "array", f"array of a type that is not read, compared by its files: {_text(described)}")
        return False
    _array(parts, place or "array", array, stored)
    return True


def _digest(name: str) -> str:
    digest = hashlib.sha256()
    with open(name, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _consolidated(writer: ValueWriter, place: str, described: dict[str, Any], metadata: dict[str, Any]) -> None:
    """Send what a store repeats of its metadata in one place, unless that is what the store holds."""
    repeated = described.get(CONSOLIDATED)
    entries = repeated.get("metadata") if isinstance(repeated, dict) else None
    if not isinstance(repeated, dict) or not isinstance(entries, dict):
        return
    base = f"{place}/" if place else ""
    below = {name.removeprefix(base): value for name, value in metadata.items() if name.startswith(base)}
    if "zarr_consolidated_format" in repeated:
        own = {name: value for name, value in below.items() if posixpath.basename(name) != "zarr.json"}
    else:
        own = {posixpath.dirname(name): value for name, value in below.items() if name.endswith("/zarr.json")}
    if _text(_without_repetition(entries)) != _text(_without_repetition(own)):
        writer.what(f"{base}consolidated metadata", f"not what the store holds: {_text(repeated)}")


def _without_repetition(entries: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {key: value for key, value in entry.items() if key != CONSOLIDATED} if isinstance(entry, dict) else entry
        for name, entry in entries.items()
    }


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _metadata(name: str) -> dict[str, Any]:
    """Return what a file of metadata says."""
    with open(name, "rb") as file:
        data = file.read(LONGEST_METADATA + 1)
    value = json.loads(data) if len(data) <= LONGEST_METADATA else None
    if not isinstance(value, dict):
        raise RefusedFile(f"{name[:200]!r} has no metadata that are read")
    return value


def _sizes(source: IO[bytes]) -> dict[str, int]:
    """Return the sizes of the files that belong to the store, by name; refuse one that may lead out of it."""
    sizes: dict[str, int] = {}
    for name in filter(None, source.read().decode("utf-8", "surrogateescape").split("\0")):
        kind = os.lstat(name)
        if stat.S_ISREG(kind.st_mode):
            sizes[name] = kind.st_size
        elif not stat.S_ISDIR(kind.st_mode):
            raise RefusedFile(f"{name[:200]!r} is a link, or no file")
    return sizes


if __name__ == "__main__":
    serve(int(sys.argv[1]), read)
