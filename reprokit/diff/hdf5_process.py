"""Reads an HDF5 file in a separate process (part_process).

Nothing outside of the file is opened: no external links, no external or virtual storage, no plugins.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator
from typing import IO, Any

import h5py
import numpy

from reprokit.diff.part_process import PartWriter, RefusedFile, serve

BLOCK = 4 << 20  # bytes of a dataset per read
CACHE = 64 << 20  # bytes of the cache of unpacked chunks
SHORT = 64  # elements of the longest attribute shown as a value
LONGEST_ATTRIBUTE = 16 << 20
DEEPEST_RECORD, MOST_COLUMNS = 4, 64  # records within records; fields that are sent apart: each by a read of all
NUMBERS = {"f": (2, 4, 8), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "c": (8, 16)}
NAMES = {"f": "float", "i": "int", "u": "uint", "c": "complex"}


class Hdf5Reader:
    """Reads a file from its root, and sends its parts."""

    def __init__(self, file: h5py.File, parts: PartWriter):
        self._file, self._parts, self.send = file, parts, parts.send
        self._seen: dict[tuple[int, int], str] = {}

    def read(self) -> None:
        """Send all groups, datasets and attributes; members of a group in order of name."""
        self._seen[_address(self._file["/"])] = "/"
        self._attributes("", self._file["/"])
        pending = [("", self._file["/"])]
        while pending:
            path, group = pending.pop()
            for name in sorted(group):
                child_path = f"{path}/{name}" if path else name
                item = self._member(child_path, group, name)
                if isinstance(item, h5py.Group):
                    pending.append((child_path, item))

    def _member(self, path: str, group: Any, name: str) -> Any:
        """Send the parts of a member; return the member at its first visit, else None."""
        link = group.get(name, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            return self.send("value", path, text=f"external link to {link.path!r} in {link.filename!r}")
        if isinstance(link, h5py.SoftLink):
            return self.send("value", path, text=f"soft link to {link.path!r}")
        item = group[name]
        address = _address(item)
        if address in self._seen:
            return self.send("value", path, text=f"the same object as {self._seen[address]!r}")
        self._seen[address] = path
        if isinstance(item, h5py.Dataset):
            self._dataset(path, item)
        elif isinstance(item, h5py.Datatype):
            self.send("value", path, text=f"type {_type_text(item.dtype)}")
        else:
            self.send("value", path, text="group")
        self._attributes(path, item)
        return item

    def _dataset(self, path: str, dataset: Any) -> None:
        if dataset.external:
            return self.send("value", path, text=f"stored outside of the file, in {dataset.external!r}")
        if dataset.is_virtual:
            return self.send("value", path, text=f"made of other datasets: {dataset.virtual_sources()!r}")
        layout = (dataset.chunks, dataset.compression, dataset.compression_opts, dataset.shuffle, dataset.fletcher32)
        self.send("noise", f"{path}/storage", text=repr((*layout, dataset.scaleoffset)))
        dtype = dataset.dtype
        if dataset.shape is None:
            return self.send("value", path, text=f"empty {_type_text(dtype)}")
        if dtype.hasobject:
            return self._objects(path, dataset, dtype)
        name, text = _type(dtype)
        if text:
            self.send("value", f"{path}/type", text=text)
        size = math.prod(dataset.shape) * dtype.itemsize
        offset = dataset.id.get_offset() if dataset.chunks is None else None
        if offset is not None and dataset.id.get_create_plist().get_nfilters() == 0 and not dtype.names:
            facts = {"dtype": name, "shape": list(dataset.shape), "big": dtype.byteorder == ">"}
            return self.send("place", path, offset=offset, bytes=size, meaning=_meaning(dtype), **facts)
        self._parts.spend(path, size, dataset.id.get_storage_size())
        columns = list(_columns(dtype))
        if dtype.names:
            self.send("value", f"{path}/shape", text=str(list(dataset.shape)))
        for fields, column in columns if len(columns) <= MOST_COLUMNS else [((), dtype)]:
            self._column(path, dataset, fields, column)
        return None

    def _column(self, path: str, dataset: Any, fields: tuple[str, ...], dtype: Any) -> None:
        """Send the elements of a dataset, or of one field of its records."""
        base, inner = dtype.subdtype or (dtype, ())
        name = "/".join((path, *(field.replace("~", "~0").replace("/", "~1") for field in fields)))
        facts = {"dtype": _type(base)[0], "shape": [*dataset.shape, *inner], "big": base.byteorder == ">"}
        self.send("tensor", name, math.prod(dataset.shape) * dtype.itemsize, meaning=_meaning(base), **facts)
        for selection in _blocks(dataset.shape, dataset.dtype.itemsize, dataset.chunks):
            block = dataset[selection]
            for field in fields:
                block = block[field]
            self._parts.out.write(numpy.ascontiguousarray(block).tobytes())

    def _objects(self, path: str, dataset: Any, dtype: Any) -> None:
        """Send texts, references and lists of variable length one by one."""
        count = math.prod(dataset.shape)
        self._parts.spend(path, 16 * count, dataset.id.get_storage_size())
        self.send("value", path, text=f"{_type_text(dtype)} {list(dataset.shape)}")
        number = 0
        for selection in _blocks(dataset.shape, 4096, dataset.chunks):
            for item in numpy.asarray(dataset[selection], dtype=object).reshape(-1):
                self.send("value", f"{path}/{number}", text=self._exact_text(item))
                number += 1

    def _attributes(self, path: str, item: Any) -> None:
        for name in sorted(item.attrs):
            name_of_attribute = f"{path}@{name}"
            attribute = item.attrs.get_id(name)
            size = math.prod(attribute.shape) * attribute.dtype.itemsize
            if size > LONGEST_ATTRIBUTE:
                raise RefusedFile(f"the attribute {name_of_attribute[:200]!r} has {size} bytes")
            self._attribute(name_of_attribute, item.attrs[name])

    def _attribute(self, name: str, value: Any) -> None:
        if isinstance(value, (str, bytes)):
            is_json = isinstance(value, str) and value[:1] in ("{", "[")
            self.send("json" if is_json else "value", name, text=value if is_json else repr(value))
        elif isinstance(value, h5py.Empty):
            self.send("value", name, text=f"empty {_type_text(value.dtype)}")
        elif isinstance(value, numpy.ndarray) and not value.dtype.hasobject and value.size > SHORT:
            dtype, text = _type(value.dtype)
            self.send("value", f"{name}/type", text=f"{text}{value.dtype.byteorder if text else ''}")
            facts = {"dtype": dtype, "shape": list(value.shape), "big": value.dtype.byteorder == ">"}
            self.send("tensor", name, value.nbytes, **facts)
            self._parts.out.write(value.tobytes())
        elif isinstance(value, numpy.ndarray):
            texts = [self._exact_text(item) for item in value.reshape(-1)]
            self.send("value", name, text=f"{_type_text(value.dtype)} {list(value.shape)}: {', '.join(texts)}")
        else:
            self.send("value", name, text=f"{_type_text(getattr(value, 'dtype', None))} {self._exact_text(value)}")

    def _exact_text(self, item: Any) -> str:
        """Return the exact text of an item."""
        if isinstance(item, h5py.RegionReference):
            return f"region of {self._target_text(item)}"
        if isinstance(item, h5py.Reference):
            return f"reference to {self._target_text(item)}"
        if isinstance(item, numpy.ndarray):
            return f"[{', '.join(self._exact_text(element) for element in item.reshape(-1))}]"
        if isinstance(item, numpy.void):
            return (
                repr(item.tobytes())
                if not item.dtype.hasobject
                else repr([self._exact_text(element) for element in item.item()])
            )
        if isinstance(item, (numpy.floating, numpy.complexfloating)):
            return f"{item!r} {item.tobytes().hex()}" if item != item else repr(item.item())
        return repr(item.item() if isinstance(item, numpy.generic) else item)

    def _target_text(self, reference: Any) -> str:
        if not reference:
            return "nothing"
        name = h5py.h5r.get_name(reference, self._file.id)
        return repr(name.decode("utf-8", "backslashreplace")) if name else "an object without a name"


def _address(item: Any) -> tuple[int, int]:
    info = h5py.h5o.get_info(item.id)
    return info.fileno, info.addr


def _type_text(dtype: Any) -> str:
    """Return an unambiguous description of a type."""
    if dtype is None:
        return "object"
    enum = h5py.check_enum_dtype(dtype)
    if enum is not None:
        return f"enum {dtype.str} {sorted(enum.items(), key=str)}"
    text = h5py.check_string_dtype(dtype)
    if text is not None:
        return f"text {text.encoding} {text.length}"
    if h5py.check_ref_dtype(dtype) is not None:
        return "reference"
    inner = h5py.check_vlen_dtype(dtype)
    if inner is not None:
        return f"lists of {_type_text(inner)}"
    return str(dtype.descr if dtype.names else dtype.name)


def _type(dtype: Any) -> tuple[str, str]:
    """Return the dtype for the tensor, and a description of the type if the dtype does not say it all."""
    enum = h5py.check_enum_dtype(dtype)
    if enum is None and dtype.kind in NUMBERS and dtype.itemsize in NUMBERS[dtype.kind]:
        return f"{NAMES[dtype.kind]}{8 * dtype.itemsize}", ""
    if dtype.kind == "b":
        return "bool", ""
    if enum is not None:
        return f"{NAMES[dtype.kind]}{8 * dtype.itemsize}", _type_text(dtype)
    return f"raw{dtype.itemsize}", _type_text(dtype)


def _columns(dtype: Any, fields: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the fields of records, those of records within them too, with their types; else the type alone."""
    if not dtype.names or len(fields) > DEEPEST_RECORD:
        yield fields, dtype
    for name in dtype.names or () if len(fields) <= DEEPEST_RECORD else ():
        yield from _columns(dtype[name], (*fields, name))


def _meaning(dtype: Any) -> str:
    """Return what the bytes of an element mean: see dtypes.shown."""
    is_time = dtype.kind in "mM" and dtype.byteorder != ">"
    return "S" if dtype.kind == "S" else dtype.str[1:] if is_time else ""


def _blocks(shape: tuple[int, ...], size: int, chunks: tuple[int, ...] | None) -> Iterator[Any]:
    """Yield selections that cover a dataset in C order, of at most BLOCK bytes each if possible."""
    if not shape:
        yield ()
        return
    if 0 in shape:
        return
    axis = 0
    while axis < len(shape) - 1 and math.prod(shape[axis + 1 :]) * size > BLOCK:
        axis += 1
    step = max(1, BLOCK // (math.prod(shape[axis + 1 :]) * size))
    if chunks and chunks[axis] < step:
        step -= step % chunks[axis]
    for before in itertools.product(*(range(length) for length in shape[:axis])):
        for start in range(0, shape[axis], step):
            yield (*before, slice(start, min(start + step, shape[axis])))


def read(source: IO[bytes], parts: PartWriter) -> None:
    """Send all parts of a file."""
    with h5py.File(source, "r", rdcc_nbytes=CACHE) as file:
        Hdf5Reader(file, parts).read()


if __name__ == "__main__":
    serve(int(sys.argv[1]), read)
