"""Reads files of values by the libraries that know them, in a separate process (part_process).

Arrays of numbers are tensors. Texts, dates, records, cells and structures are values by their path; also what holds
others: its kind and size. What says when and by which program a file was written is noise.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import math
import os
import re
import struct
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

import numpy

from reprokit.diff.part_process import PartWriter, RefusedFile, most_of, serve  # noqa: F401 - the process is started by it

SHAPES = {"f": (2, 4, 8), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "c": (8, 16), "b": (1,)}
NAMES = {"f": "float", "i": "int", "u": "uint", "c": "complex"}
LONGEST = 1 << 16  # characters of a value that is shown; of longer ones the digest
MOST = 250_000  # values of a file
DEEPEST = 100  # levels of cells, structures and lists
WRITTEN = ("__header__", "__version__")  # of a MATLAB file: when and by what it was written
BOOK_WRITTEN = ("creator", "created", "modified", "lastModifiedBy", "version", "revision", "lastPrinted")
BOOK_LOOKS = re.compile(  # members of a workbook that are read as cells, or say how these look and where members are
    r"\[Content_Types\]\.xml|.*\.rels|docProps/(core|app)\.xml|xl/(styles|workbook|sharedStrings|calcChain)\.xml"
    r"|xl/(theme|worksheets|printerSettings)/.*"
)
PIXELS = (b"IDAT", b"fdAT", b"IEND")  # chunks of a PNG
STORAGE = frozenset([259, 273, 278, 279, 284, 317, 322, 323, 324, 325])  # tags of a TIFF: how its pixels are stored
DIRECTORIES = frozenset([330, 34665, 34853, 40965])  # tags that name further ones
MODE_DEPTHS = {"I;16": 16, "I;16B": 16, "I;16L": 16, "I": 32, "F": 32}  # bits of a channel; of other modes 8
TFLITE_NUMBERS = frozenset(  # types that NumPy has
    f"{name}{bits}" for name, sizes in (("float", (16, 32, 64)), ("complex", (64, 128))) for bits in sizes
) | {"bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}
SLICE = 1 << 22  # bytes of a file's array that are sent at a time


class ValueWriter:
    """Sends values and arrays, whatever they hold."""

    def __init__(self, parts: PartWriter):
        self._parts, self._sent = parts, 0

    def value(self, name: str, value: object, kind: str = "value") -> None:
        """Send one value as a text that stands for no other."""
        text = value.tobytes().hex() if isinstance(value, numpy.void) else repr(value)
        self.what(name, text, kind)

    def what(self, name: str, text: str, kind: str = "value") -> None:
        """Send what stands at a path: a text that is no value's."""
        self._sent += 1
        if self._sent > MOST:
            raise RefusedFile(f"it has more than {MOST:,} values")
        if len(text) > LONGEST:
            text = f"{len(text)} characters of SHA-256 {hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()}"
        self._parts.send(kind, name, text=text)

    def walk(self, name: str, value: object, depth: int = 0) -> None:
        """Send what an object holds."""
        if depth > DEEPEST:
            raise RefusedFile(f"{name[:200]!r} is nested deeper than {DEEPEST} levels")
        if isinstance(value, Mapping):
            self.what(name, f"mapping of {len(value)}")
            self._members(name, value.items(), depth)
        elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
            self.what(name, f"list of {len(value)}")
            self._members(name, enumerate(value), depth)
        elif hasattr(value, "tocoo"):  # a sparse matrix
            found: Any = value
            self.what(name, f"sparse {tuple(map(int, found.shape))}")
            self._members(name, ((part, getattr(found.tocsc(), part)) for part in ("data", "indices", "indptr")), depth)
        elif isinstance(value, numpy.ndarray):
            self.array(name, value, depth)
        elif isinstance(value, numpy.generic) and value.dtype.kind in SHAPES:
            self.array(name, numpy.asarray(value), depth)
        else:
            self.value(name, value.item() if isinstance(value, numpy.generic) else value)

    def _members(self, name: str, members: Iterable[tuple[object, object]], depth: int) -> None:
        for key, member in members:
            self.walk(under(name, str(key)), member, depth + 1)

    def array(self, name: str, array: Any, depth: int = 0) -> None:
        """Send an array: numbers as a tensor, the fields of records one by one, everything else value by value."""
        kind, size = array.dtype.kind, array.dtype.itemsize
        if array.dtype.names:
            self.what(name, f"{type(array).__name__} {getattr(array, 'classname', '')} {array.shape} of records")
            for field in array.dtype.names:
                column = array[field]
                is_single = column.dtype == object and column.size == 1
                self.walk(under(name, field), column.reshape(-1)[0] if is_single else column, depth + 1)
        elif size in SHAPES.get(kind, ()):
            dtype = "bool" if kind == "b" else f"{NAMES[kind]}{8 * size}"
            self._parts.spend(name, array.nbytes, array.nbytes)
            facts = {"dtype": dtype, "shape": list(array.shape), "big": False}
            self._parts.send("tensor", name, array.nbytes, **facts)
            flat = array.reshape(-1)
            for start in range(0, flat.size, SLICE):
                block = numpy.ascontiguousarray(flat[start : start + SLICE], dtype=array.dtype.newbyteorder("<"))
                self._parts.out.write(block.view(numpy.uint8).data)
        elif array.size == 1 and kind != "O":
            self._element(name, array.reshape(-1)[0], depth)
        else:
            self.what(name, f"{'cells' if kind == 'O' else array.dtype.str} {array.shape}")
            for number, item in enumerate(array.reshape(-1)):
                self._element(f"{name}/{number}", item, depth)

    def _element(self, name: str, item: object, depth: int) -> None:
        if isinstance(item, numpy.datetime64):
            self.value(name, f"{item} ({item.dtype.str[1:]})")
        elif isinstance(item, (numpy.void, numpy.longdouble, numpy.clongdouble)):
            self.value(name, item)
        else:
            self.walk(name, item, depth + 1)


def under(name: str, key: str) -> str:
    """Return the path of a member."""
    key = key.replace("~", "~0").replace("/", "~1")
    return f"{name}/{key}" if name else key


def matlab(file: IO[bytes], parts: PartWriter) -> None:
    """Send the variables of a MATLAB file of version 4 or 5."""
    from scipy.io import loadmat

    warnings.simplefilter("error")  # of imaginary parts, unreadable variables and names that are there twice
    writer = ValueWriter(parts)
    for name, value in sorted(loadmat(file, mat_dtype=True, verify_compressed_data_integrity=True).items()):
        if name in WRITTEN:
            writer.value(name, value, "noise")
        else:
            writer.walk(under("", name), value)


def netcdf(file: IO[bytes], parts: PartWriter) -> None:
    """Send dimensions, attributes and variables of a NetCDF file of version 3."""
    from scipy.io import netcdf_file

    writer = ValueWriter(parts)
    with netcdf_file(file, mmap=False, maskandscale=False) as opened:
        writer.walk("dimensions", dict(sorted(opened.dimensions.items())))
        writer.walk("@", dict(sorted(opened._attributes.items())))  # scipy has no public list of them
        for name, variable in sorted(opened.variables.items()):
            writer.value(f"{name}/dimensions", tuple(variable.dimensions))
            writer.walk(f"{name}@", dict(sorted(variable._attributes.items())))
            writer.walk(under("", name), numpy.asarray(variable.data))


def image(file: IO[bytes], parts: PartWriter) -> None:
    """Send the pixels of each picture of a PNG or TIFF, and all that the file says beside them."""
    from PIL import Image, ImageSequence

    writer, stored = ValueWriter(parts), os.fstat(file.fileno()).st_size
    Image.open(file, formats=("PNG", "TIFF")).verify()  # of a PNG every checksum, and its end
    file.seek(0)
    with Image.open(file, formats=("PNG", "TIFF")) as opened:
        is_png = opened.format == "PNG"
        if is_png:
            _chunks(file, writer)
        pictures = getattr(opened, "n_frames", 1)
        for number, picture in enumerate(ImageSequence.Iterator(opened)):
            name = "" if pictures == 1 else str(number)
            depth = _png_depth(file) if is_png else _tags(under(name, "tags"), picture, writer)
            if depth > MODE_DEPTHS.get(picture.mode, 8):
                raise RefusedFile(f"Pillow reads its {depth} bits of a pixel's channel as 8")
            writer.value(under(name, "mode"), picture.mode)
            parts.spend("pixels", 8 * picture.width * picture.height, stored)
            writer.array(under(name, "pixels"), numpy.asarray(picture))  # of a palette's picture its numbers


def _png_depth(file: IO[bytes]) -> int:
    """Return the bits of a channel, which stand in the first chunk."""
    return os.pread(file.fileno(), 1, 24)[0]


def _chunks(file: IO[bytes], writer: ValueWriter) -> None:
    """Send what a PNG says beside its pixels: each chunk, known or not."""
    at, end, numbers, frames = 8, os.fstat(file.fileno()).st_size, Counter[str](), 0
    while at + 12 <= end:
        length, kind = struct.unpack(">I4s", os.pread(file.fileno(), 8, at))
        if kind not in PIXELS:
            name = kind.decode("latin-1")
            numbers[name] += 1
            data = os.pread(file.fileno(), length, at + 8)
            place = under(under("", "chunks"), f"{name} {numbers[name]}")
            writer.value(place, data, "noise" if kind == b"tIME" else "value")
            if kind == b"acTL":
                frames = int.from_bytes(data[:4], "big")
        at += 12 + length
        if kind == b"IEND":
            break
    if numbers["fcTL"] != frames:
        raise RefusedFile(f"it says that it has {frames} moving pictures, and has {numbers['fcTL']}")
    if at < end:
        writer.value("bytes behind the end", os.pread(file.fileno(), end - at, at))


def _tags(name: str, picture: Any, writer: ValueWriter) -> int:
    """Send the tags of a TIFF's picture that do not say where its pixels lie; return the bits of a channel."""
    tags = dict(picture.tag_v2)
    if not DIRECTORIES.isdisjoint(tags):
        raise RefusedFile("it has directories within its pictures")
    for number, value in sorted(tags.items()):
        if number not in STORAGE:
            writer.walk(under(name, str(number)), value)
    samples = tags.get(277, 1)
    if samples != len(picture.getbands()):
        raise RefusedFile(f"Pillow reads {len(picture.getbands())} of its {samples} channels")
    return max(int(bits) for bits in tags.get(258, (1,)))


def yaml(file: IO[bytes], parts: PartWriter) -> None:
    """Send every value of every document by its path; a value that is named again is sent again."""
    import yaml as library

    safe_loader = getattr(library, "CSafeLoader", library.SafeLoader)

    def walk(name: str, node: Any, depth: int = 0) -> None:
        if depth > DEEPEST:
            raise RefusedFile(f"{name[:200]!r} is nested deeper than {DEEPEST} levels")
        if isinstance(node, library.MappingNode):
            if not all(isinstance(key, library.ScalarNode) for key, _ in node.value):
                raise RefusedFile(f"a key of {name[:200]!r} is no single value")
            keys = [loader.construct_object(key) for key, _ in node.value]
            others = sorted(repr(key) for key in keys if not isinstance(key, str))
            text = f"{tagged(node, 'map')} of {len(keys)}"
            writer.what(name, f"{text} with the keys {', '.join(others)}, which are no texts" if others else text)
            members = zip(keys, (value for _, value in node.value), strict=True)
            for key, value in sorted(members, key=lambda member: not isinstance(member[0], str)):  # 1 is behind "1"
                walk(under(name, str(key)), value, depth + 1)
        elif isinstance(node, library.SequenceNode):
            writer.what(name, f"{tagged(node, 'seq')} of {len(node.value)}")
            for number, value in enumerate(node.value):
                walk(under(name, str(number)), value, depth + 1)
        else:
            known = node.tag.startswith("tag:yaml.org,2002:") and node.tag in safe_loader.yaml_constructors
            if known:
                writer.value(name, loader.construct_object(node))
            else:
                writer.what(name, f"{node.tag} {node.value!r}")

    def tagged(node: Any, usual: str) -> str:
        shown = {"map": "mapping", "seq": "list"}[usual]
        return shown if node.tag == f"tag:yaml.org,2002:{usual}" else f"{node.tag} {shown}"

    writer, loader, number = ValueWriter(parts), safe_loader(file.read()), 0
    while loader.check_node():
        walk("value" if not number else f"value {number + 1}", loader.get_node())
        number += 1


def workbook(file: IO[bytes], parts: PartWriter) -> None:
    """Send every cell of every sheet of an .xlsx: values, formulas, and what these gave when the file was written.

    How it looks is noise: the digests of the members. Of what else is stored, such as comments, the digests are values.
    """
    import openpyxl

    writer = ValueWriter(parts)
    with zipfile.ZipFile(file) as archive:
        if len(set(archive.namelist())) < len(archive.namelist()):
            raise RefusedFile("it has two members of the same name")
        for member in archive.infolist():
            parts.spend(member.filename, member.file_size, member.compress_size)
        for member in archive.infolist():
            place = under(under("", "stored"), member.filename)
            kind = "noise" if BOOK_LOOKS.fullmatch(member.filename) else "value"
            writer.value(place, hashlib.sha256(archive.read(member)).hexdigest(), kind)
    given, results = (openpyxl.load_workbook(file, read_only=True, data_only=is_result) for is_result in (False, True))
    for name, value in sorted(vars(given.properties).items()):
        if value is not None:
            writer.value(f"properties/{name}", value, "noise" if name in BOOK_WRITTEN else "value")
    writer.value("sheets", tuple((sheet, given[sheet].sheet_state) for sheet in given.sheetnames))
    for scope, names in ("", given.defined_names), *((sheet.title, sheet.defined_names) for sheet in given.worksheets):
        for name, defined in sorted(names.items()):
            writer.value(under(under("names", scope) if scope else "names", name), defined.attr_text)
    for sheet, of_sheet in zip(given.worksheets, results.worksheets, strict=True):
        sheet.reset_dimensions()  # what a sheet says of its size may be less than it has
        of_sheet.reset_dimensions()
        for row, of_row in zip(sheet.iter_rows(), of_sheet.iter_rows(), strict=True):
            for cell, result in zip(row, of_row, strict=True):
                if cell.value is not None:
                    place = under(under("", sheet.title), cell.coordinate)
                    if cell.data_type == "e":
                        writer.what(place, f"error {cell.value}")
                    elif cell.data_type == "f" and not isinstance(cell.value, str):  # a formula of several cells
                        writer.value(place, (type(cell.value).__name__, sorted(vars(cell.value).items())))
                    else:
                        writer.value(place, cell.value)
                    if result.value != cell.value:  # what its formula gave
                        writer.value(f"{place} (result)", result.value)


def tflite(file: IO[bytes], parts: PartWriter) -> None:
    """Send the tensors of a TFLite model by name, and all else that it says by path."""
    schema, data, writer = _tflite_schema(), file.read(), ValueWriter(parts)
    model = schema.ModelT.InitFromPackedBuf(data)
    types = {number: name.lower() for name, number in vars(schema.TensorType).items() if not name.startswith("_")}
    used = set[int]()
    sent = 0

    def content(number: int) -> Any:
        used.add(number)
        buffer = model.buffers[number]
        stored = data[buffer.offset : buffer.offset + buffer.size] if buffer.offset > 1 else buffer.data
        if buffer.offset > 1 and len(stored) < buffer.size:
            raise RefusedFile(f"buffer {number} ends behind the end of the file")
        return numpy.frombuffer(stored, numpy.uint8) if isinstance(stored, bytes) else stored

    def send(name: str, number: int, type_: str, shape: tuple[int, ...] | None) -> None:
        """Send the elements of a buffer: as bytes where its type or shape is none that NumPy has."""
        nonlocal sent
        stored = content(number)
        if stored is None:
            return
        sent += len(stored)
        if sent > most_of(len(data)):
            raise RefusedFile(f"its buffers are one, and unpack to {sent} bytes, more than are read")
        kind = numpy.dtype(type_).newbyteorder("<") if type_ in TFLITE_NUMBERS else None
        is_whole = kind is not None and shape is not None and len(stored) == kind.itemsize * math.prod(shape)
        writer.array(name, stored.view(kind).reshape(shape) if is_whole else stored)

    for number, graph in enumerate(model.subgraphs or ()):
        for tensor in graph.tensors or ():
            name = under(f"subgraphs/{number}/tensors", (tensor.name or b"").decode("utf-8", "backslashreplace"))
            shape = None if tensor.shape is None else tuple(map(int, tensor.shape))
            send(name, tensor.buffer, types.get(tensor.type, ""), shape or ())
            tensor.buffer = None  # where the elements are stored
            _walk_tables(writer, f"{name}@", tensor)
        if any(operator.largeCustomOptionsOffset > 1 for operator in graph.operators or ()):
            raise RefusedFile("options of its operators stand behind the model")
        graph.tensors = [tensor.name for tensor in graph.tensors or ()]
    for entry in model.metadata or ():
        send(under("metadata", (entry.name or b"").decode("utf-8", "backslashreplace")), entry.buffer, "", None)
        entry.buffer = None
    for number in range(len(model.buffers or ())):
        if number not in used:
            send(f"buffers/{number}", number, "", None)
    model.buffers = None
    _walk_tables(writer, "model", model)


def _tflite_schema() -> Any:
    """Return the module of TFLite's classes, without the library that it is a part of."""
    for package, place in (("ai_edge_litert", ()), ("tensorflow", ("lite", "python"))):
        found = importlib.util.find_spec(package)
        for directory in found.submodule_search_locations or () if found is not None else ():
            path = os.path.join(directory, *place, "schema_py_generated.py")
            spec = importlib.util.spec_from_file_location("schema_py_generated", path)
            if os.path.exists(path) and spec is not None and spec.loader is not None:
                schema = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(schema)
                _refuse_unknown_fields(schema)
                return schema
    raise RefusedFile("neither ai_edge_litert nor tensorflow is installed: pip install ai-edge-litert")


class FieldCounter:
    """Stands for a builder, which is told how many fields a table has."""

    def StartObject(self, fields: int) -> None:  # noqa: N802 - flatbuffers' name
        self.fields = fields


def _refuse_unknown_fields(schema: Any) -> None:
    """Let tables be refused that have fields or kinds of options which are not in the schema: they would be lost.

    Tables may share what they hold, so that a small file may be read as any number of them.
    """
    tables = itertools.count(1)

    def checked(unpack: Any, fields: int) -> Any:
        def _unpack(table: Any, packed: Any) -> None:
            if next(tables) > MOST:
                raise RefusedFile(f"it has more than {MOST:,} tables")
            stored, place = packed._tab.Bytes, packed._tab.Pos
            start = place - struct.unpack_from("<i", stored, place)[0]
            offsets = struct.unpack_from(f"<{struct.unpack_from('<H', stored, start)[0] // 2}H", stored, start)[2:]
            unpack(table, packed)
            options = [
                name for name in vars(table) if getattr(table, f"{name}Type", 0) and getattr(table, name) is None
            ]
            if any(offsets[fields:]) or options:
                raise RefusedFile("it has fields that the installed TFLite does not know: install a later one")

        return _unpack

    for name, kind in list(vars(schema).items()):
        if name.endswith("T") and hasattr(kind, "_UnPack") and hasattr(schema, f"{name[:-1]}Start"):
            counter = FieldCounter()
            getattr(schema, f"{name[:-1]}Start")(counter)
            kind._UnPack = checked(kind._UnPack, counter.fields)


def _walk_tables(writer: ValueWriter, name: str, value: Any) -> None:
    """Send what a table holds, and the tables below it."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            _walk_tables(writer, f"{name}/{number}", item)
    elif hasattr(value, "_UnPack"):
        writer.what(name, type(value).__name__)
        for key, item in vars(value).items():
            _walk_tables(writer, f"{name}/{key}", item)
    elif value is not None:
        writer.walk(name, value)
