"""Reads a store, a directory of files that hold arrays together, in a separate process (part_process).

Arrays are tensors by their names in the store; their storage format is noise. Other entries, such as metadata, are
values. Arrays of texts, dates and records are read by the library zarr, if it is there and they are made by codecs that
execute nothing; of others, the files are values by their digests.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import posixpath
import stat
import sys
import zipfile
from collections.abc import Iterable, Iterator
from typing import IO, Any

import numpy
import tensorstore

from reprokit.diff.part_process import PartWriter, RefusedFile, serve
from reprokit.diff.value_process import MOST, ValueWriter, under

DRIVERS = {".zarray": "zarr", "zarr.json": "zarr3"}  # by the name of the entry that describes an array
BLOCK = 16 << 20  # bytes of an array per read
MOST_ENTRIES, LONGEST_ENTRY = 300_000, 1 << 20
LONGEST_METADATA = 64 << 20  # bytes of a file of Zarr, which may repeat what all others say
NUMBERS = ("bool", "int", "uint", "float", "bfloat", "complex")  # how the names of types of numbers begin
CONSOLIDATED = "consolidated_metadata"
MEANING = frozenset(["shape", "dtype", "data_type", "attributes", "node_type", CONSOLIDATED])  # sent by other names
PACKERS = ("blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd")
# Codecs of texts and records; others, such as pickle, may execute what they read.
CODECS = frozenset([*PACKERS, "bytes", "crc32c", "shuffle", "transpose", "vlen-bytes", "vlen-utf8"])
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


class StoreFiles:
    """The files of a store: those in the working directory that `source` names, or the members of a zip archive."""

    def __init__(self, source: IO[bytes], is_archive: bool = False) -> None:
        self._archive = zipfile.ZipFile(source) if is_archive else None
        self.sizes = _sizes(source) if self._archive is None else _members(self._archive)

    def blocks(self, name: str) -> Iterator[bytes]:
        """Yield the content of a file."""
        with open(name, "rb") if self._archive is None else self._archive.open(name) as file:
            while block := file.read(BLOCK):
                yield block

    def held(self, place: str, names: Iterable[str]) -> dict[str, bytes]:
        """Return the content of files below a place, by their names there."""
        base = os.path.join(place, "") if place else ""
        return {name.removeprefix(base): b"".join(self.blocks(name)) for name in names}

    def array(self, place: str, driver: str, names: Iterable[str]) -> Any:
        """Return the array of files below a place, by tensorstore."""
        if self._archive is None:
            files = {"driver": "file", "path": os.path.join(os.getcwd(), place, "")}
            return tensorstore.open({"driver": driver, "kvstore": files}).result()
        context, memory = tensorstore.Context(), {"driver": "memory"}  # its own driver wants each name once
        store = tensorstore.KvStore.open(memory, context=context).result()
        for name, content in self.held(place, names).items():
            store.write(name, content).result()
        return tensorstore.open({"driver": driver, "kvstore": memory}, context=context).result()

    def metadata(self, name: str) -> dict[str, Any]:
        """Return what a file of metadata says."""
        data = b"".join(itertools.islice(self.blocks(name), LONGEST_METADATA // BLOCK + 1))
        value = json.loads(data) if len(data) <= LONGEST_METADATA else None
        if not isinstance(value, dict):
            raise RefusedFile(f"{name[:200]!r} has no metadata that are read")
        return value


def zarr_archive(source: IO[bytes], parts: PartWriter) -> None:
    """Send the groups, arrays and attributes of a Zarr store in a zip archive."""
    _zarr(StoreFiles(source, is_archive=True), parts)


def zarr(source: IO[bytes], parts: PartWriter) -> None:
    """Send groups, arrays and attributes of a Zarr store in the working directory; `source` names its files."""
    _zarr(StoreFiles(source), parts)


def _zarr(files: StoreFiles, parts: PartWriter) -> None:
    writer, sizes = ValueWriter(parts), files.sizes
    owned: dict[str, list[str]] = {}  # files that describe nothing, by the group or array in whose directory they are
    kinds = (*DRIVERS, ".zgroup", ".zattrs")
    metadata = {name: files.metadata(name) for name in sizes if posixpath.basename(name) in kinds}
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
            if _is_read(writer, parts, place, files, name, described, owned.get(place, [])):
                owned[place] = [own for own in owned.get(place, ()) if posixpath.basename(own) == ".zmetadata"]
        else:
            writer.what(under(place, "kind"), "group")
        _consolidated(writer, place, described, metadata)
    for name in sorted(name for names in owned.values() for name in names):
        if posixpath.basename(name) == ".zmetadata":
            _consolidated(writer, posixpath.dirname(name), {CONSOLIDATED: files.metadata(name)}, metadata)
        else:
            writer.value(under("files", name), _digest(files.blocks(name)))


def _is_read(
    writer: ValueWriter,
    parts: PartWriter,
    place: str,
    files: StoreFiles,
    name: str,
    described: dict[str, Any],
    owned: list[str],
) -> bool:
    """Send the elements of an array, or what describes it if none of the libraries reads it; return which of both."""
    driver, stored = DRIVERS[posixpath.basename(name)], sum(files.sizes[own] for own in owned)
    try:
        array = files.array(place, driver, [name, *owned])
    except Exception:  # whatever the library has against it: its files can still be compared
        array = None
    if array is not None and array.dtype.name.startswith(NUMBERS):
        _array(parts, place or "array", array, stored)
        return True
    values = _other_values(files, place, [name, *owned], described, stored)
    if values is None:
        writer.what(place or "array", f"array of a type that is not read, compared by its files: {_text(described)}")
        return False
    if values.dtype.kind == "T":  # texts of any length
        values = values.astype(object)
    parts.spend(place, values.nbytes, stored)
    writer.array(place or "array", values)
    return True


def _other_values(
    files: StoreFiles, place: str, names: list[str], described: dict[str, Any], stored: int
) -> numpy.ndarray[Any, Any] | None:
    """Return an array of texts, dates or records; None if it is one that is not read."""
    try:
        import zarr as library

        shape = described["shape"]
        if not CODECS.issuperset(_codecs(described)) or math.prod(shape) > MOST or stored > LONGEST_METADATA:
            return None
        buffer = library.core.buffer.cpu.Buffer
        held = {key: buffer.from_bytes(content) for key, content in files.held(place, names).items()}
        array = library.open_array(library.storage.MemoryStore(held, read_only=True), mode="r")
        return numpy.asarray(array[...])
    except Exception:  # as above
        return None


def _codecs(described: dict[str, Any]) -> Iterator[str]:
    """Yield the names of the codecs of an array of either version."""
    for codec in (*(described.get("filters") or ()), described.get("compressor"), *described.get("codecs", ())):
        if codec is not None:
            yield str(codec.get("id", codec.get("name")))


def _digest(blocks: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for block in blocks:
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


def _members(archive: zipfile.ZipFile) -> dict[str, int]:
    """Return the packed sizes of the members of an archive by name: the last of each, as Zarr reads them."""
    sizes = {member.filename: member.compress_size for member in archive.infolist() if not member.is_dir()}
    if sum(archive.getinfo(name).file_size for name in sizes) > (256 << 20) + 1100 * sum(sizes.values()):
        raise RefusedFile("its members unpack to more than is read")
    return sizes


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
