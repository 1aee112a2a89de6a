"""Writes snapshots atomically, and only if the disk has room for them; reads untrusted ones.

Files that are read are untrusted: sizes are bounded, digests checked, and nothing is executed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import stat
from operator import index as whole
from posix import listdir  # not os.listdir, in whose place the agent sees what the training lists

from .header import SnapshotHeader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, BinaryIO, NoReturn, Union

    Bytes = Union[bytes, bytearray, memoryview]

FORMAT = 1
HEADER = "snapshot.json"
TENSORS = "tensors.safetensors"
PARTIAL = ".partial-"
PREFIX = "step-"
SPARE = 64 << 10  # bytes for the header, and for the file system's directories
KEEP_FREE = 0.05  # share of the free disk space that is left
BLOCK = 1 << 24  # bytes that are written or read at once
MAX_RANK = 64
MAX_HEADER = 64 << 20
MAX_TENSORS = 100 << 20  # bytes of the JSON before the tensors, as in every reader of safetensors
# Header fields that two runs may differ in: they say where and when a step was captured.
NOT_COMPARED = frozenset(["command", "created", "directory", "environment", "host", "notes", "pid", "versions"])
COMPLEX = "C128"  # missing in safetensors: stored as F64 with a last axis of two, and listed in snapshot.json
_BITS = {"F": (64, 32, 16), "I": (64, 32, 16, 8), "U": (64, 32, 16, 8), "C": (64,)}
_KINDS = {"F": "float", "I": "int", "U": "uint", "C": "complex"}
NAMES = {f"{kind}{bits}": f"{_KINDS[kind]}{bits}" for kind in _BITS for bits in _BITS[kind]}
SIZES = {spelled: int(spelled[1:]) // 8 for spelled in NAMES}  # bytes, by how safetensors spells a data type
SIZES.update(BOOL=1, BF16=2, F8_E4M3=1, F8_E5M2=1, F8_E8M0=1, F8_E4M3FNUZ=1, F8_E5M2FNUZ=1)
# How NumPy, PyTorch and TensorFlow name these data types.
NAMES.update({"BOOL": "bool", "BF16": "bfloat16", COMPLEX: "complex128"})
NAMES.update({"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"})
NAMES.update({"F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz"})
DTYPES = {name: spelled for spelled, name in NAMES.items()}


class StoreError(Exception):
    """The reason why a snapshot was not written, in one line."""


class NoRoomError(StoreError):
    """The disk is too full for the snapshot."""


class Part:
    """A tensor to be written. ``read`` returns its bytes, and is called once, while the file is written."""

    def __init__(self, name: str, dtype: str, shape: Sequence[int], nbytes: int, read: Callable[[], Bytes]) -> None:
        self.name = name
        self.dtype = dtype  # as safetensors spells it: F32, BF16, I64, BOOL, C64, ...; also C128
        self.shape = tuple(int(size) for size in shape)
        self.nbytes = int(nbytes)
        self.read = read

    @property
    def stored_as(self) -> tuple[str, tuple[int, ...]]:
        """The data type and shape in the file."""
        return ("F64", (*self.shape, 2)) if self.dtype == COMPLEX else (self.dtype, self.shape)


def free_name(preferred: str, taken_names: set[str]) -> str:
    """Return a name that is not taken, with #2, #3, ... if needed, and mark it as taken."""
    name, number = preferred, 1
    while name in taken_names:
        number += 1
        name = f"{preferred}#{number}"
    taken_names.add(name)
    return name


class SnapshotContents:
    """The contents of a snapshot: its JSON header and its tensors."""

    def __init__(self, header: Mapping[str, Any], parts: Sequence[Part]) -> None:
        self.header = dict(header)
        self.parts = sorted(parts, key=lambda part: -SIZES.get(part.stored_as[0], 0))  # so that all are aligned


class Store:
    """The directory of a run's snapshots, which writes them within its limits."""

    def __init__(
        self, directory: str, max_snapshots: int = 3, max_bytes: int | None = None, fallback: str | None = None
    ) -> None:
        self.directory = directory
        run = os.path.basename(os.path.dirname(directory))
        self.fallback = None if fallback is None else Store(os.path.join(fallback, run), max_snapshots, max_bytes)
        self.max_snapshots = max_snapshots
        self.max_bytes = max_bytes
        self._write_count = 0

    def save(self, contents: SnapshotContents) -> str:
        """Write a snapshot, to the fallback if the disk is full; return its path. Raises StoreError if both fail."""
        try:
            return self._save(contents)
        except NoRoomError as error:
            if self.fallback is None:
                raise NoRoomError(f"{error} (--snapshot-fallback names another directory)") from None
            try:
                return self.fallback.save(contents)
            except StoreError as other:
                raise StoreError(f"{error}; nor is there one in the fallback: {other}") from None

    def _save(self, contents: SnapshotContents) -> str:
        name = _name(contents.header)
        try:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            self._require_few(name)
            index = index_of(contents.parts)
            self._require_room(contents, len(index))
            return self._write(name, contents, index)
        except OSError as error:
            raise StoreError(f"{self.directory}: {error.strerror or error}") from None

    def _require_few(self, name: str) -> None:
        """Raise StoreError if this rank has its maximum of snapshots; each rank of a training may have as many."""
        rank = _rank(name)
        snapshots = [entry for entry in listdir(self.directory) if entry.startswith(PREFIX) and _rank(entry) == rank]
        if len(snapshots) >= self.max_snapshots:
            raise StoreError(f"there are {len(snapshots)} already, and no more are kept (--max-snapshots)")

    def _require_room(self, contents: SnapshotContents, index: int) -> None:
        """Raise StoreError before anything is written if the snapshot is too large, or the disk too full for it."""
        needed = 8 + index + sum(part.nbytes for part in contents.parts) + SPARE
        if self.max_bytes is not None and needed > self.max_bytes:
            raise StoreError(f"it would have {needed:,} bytes, {self.max_bytes:,} are allowed (--snapshot-size)")
        disk = os.statvfs(self.directory)
        free = int(disk.f_bavail * disk.f_frsize * (1 - KEEP_FREE))
        if needed > free:
            raise NoRoomError(
                f"it needs {needed:,} bytes, and {self.directory} has only {free:,} to spare:"
                f" {needed - free:,} bytes are missing"
            )

    def _write(self, name: str, contents: SnapshotContents, index: bytes) -> str:
        self._write_count += 1
        partial = os.path.join(self.directory, f"{PARTIAL}{os.getpid()}-{self._write_count}")
        os.mkdir(partial, 0o700)
        try:
            with _create(partial, TENSORS) as file:
                digest = self._write_tensors(file, index, contents.parts)
                size = file.tell()
            header = _completed(contents, size, digest)
            with _create(partial, HEADER) as file:
                _write_all(file, header, "what is no tensor")
            _synchronize(partial)
            path = _rename(partial, os.path.join(self.directory, name))
        except BaseException:  # also an interrupt: nothing half-written is left
            _discard(partial)
            raise
        _synchronize(self.directory)
        return path

    @staticmethod
    def _write_tensors(file: BinaryIO, index: bytes, parts: Sequence[Part]) -> str:
        try:
            return write_tensors(file, index, parts)
        except NoRoomError as error:
            missing = 8 + len(index) + sum(part.nbytes for part in parts) - file.tell()
            raise NoRoomError(f"{error}; {missing:,} bytes are missing") from None


def _name(header: Mapping[str, Any]) -> str:
    rank = header.get("rank")
    return f"{PREFIX}{int(header.get('step') or 0):08d}" + ("" if rank is None else f"-rank{int(rank)}")


def _rank(name: str) -> str:
    """Return the part of a snapshot's name that identifies the rank."""
    return next((word for word in name.split("-") if word.startswith("rank")), "")


def index_of(parts: Sequence[Part]) -> bytes:
    """Return the safetensors index: the JSON before the tensors, padded to 8 bytes."""
    entries: dict[str, Any] = {}
    offset = 0
    for part in parts:
        if part.name in entries:
            raise StoreError(f"two tensors have the name {part.name!r}")
        dtype, shape = part.stored_as
        if dtype not in SIZES:
            raise StoreError(f"{part.name!r} has the data type {dtype}, which safetensors does not know")
        entries[part.name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + part.nbytes]}
        offset += part.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    if len(text) > MAX_TENSORS:
        raise StoreError(f"there are too many tensors: {len(parts):,}")
    return text + b" " * (-len(text) % 8)


def write_tensors(file: BinaryIO, index: bytes, parts: Sequence[Part]) -> str:
    """Write one tensor after the other, with one in memory at a time; return the digest of the whole file."""
    digest = hashlib.sha256()
    for data in (len(index).to_bytes(8, "little"), index):
        digest.update(data)
        _write_all(file, data, "the first tensor")
    for part in parts:
        for block in _blocks(part):
            digest.update(block)
            _write_all(file, block, f"the tensors from {part.name} on")
    file.flush()
    os.fsync(file.fileno())
    return digest.hexdigest()


def _blocks(part: Part) -> Iterator[memoryview]:
    data = memoryview(part.read())
    data = data.cast("B") if data.itemsize > 1 or data.ndim > 1 else data
    if data.nbytes != part.nbytes:
        raise StoreError(f"{part.name!r} has {data.nbytes} bytes, {part.nbytes} were expected")
    for start in range(0, data.nbytes, BLOCK):
        yield data[start : start + BLOCK]


def _write_all(file: BinaryIO, data: Any, description: str) -> None:
    """Write to an unbuffered file; raises NoRoomError with the description of what did not fit."""
    rest = memoryview(data)
    try:
        while rest.nbytes:
            rest = rest[file.write(rest) :]
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise NoRoomError(f"{error.strerror} after {file.tell():,} bytes: {description} did not fit") from None
        raise


def _completed(contents: SnapshotContents, size: int, digest: str) -> bytes:
    """Return snapshot.json with facts about the tensors' file, and its own digests last."""
    header = plain({"format": FORMAT, **contents.header})
    header["complex"] = [part.name for part in contents.parts if part.dtype == COMPLEX]
    header["tensors"] = {"file": TENSORS, "size": size, "sha256": digest}
    header["digest"] = comparable_digest(header)
    header["check"] = seal(header)
    text = json.dumps(header, indent=1, allow_nan=False).encode() + b"\n"
    if len(text) > MAX_HEADER:
        raise StoreError(f"what is no tensor comes to {len(text):,} bytes, more than {MAX_HEADER:,}")
    return text


def seal(header: Mapping[str, Any]) -> str:
    """Return the checksum of snapshot.json: SHA-256 of its sorted, compact text without the checksum itself."""
    return _sha256({key: value for key, value in header.items() if key != "check"})


def comparable_digest(header: Mapping[str, Any]) -> str:
    """Return a digest that captures of one step share: without paths, times, host and process ids."""
    excluded = {"check", "digest", *NOT_COMPARED}
    rest = {key: value for key, value in header.items() if key not in excluded}
    for key in ("trigger", "also"):
        rest[key] = _without_places(rest.get(key))
    return _sha256(rest)


def _without_places(trigger: Any) -> Any:
    """Return a trigger, or a list of them, without places in the code, whose paths may differ."""
    if isinstance(trigger, list):
        return [_without_places(item) for item in trigger]
    return {key: trigger[key] for key in trigger if key != "where"} if isinstance(trigger, dict) else trigger


def _sha256(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def plain(value: Any) -> Any:
    """Return a value as plain JSON types; other numbers and objects become integers or texts."""
    if isinstance(value, dict):
        return {str(key): plain(value[key]) for key in value}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and value - value != 0:
        return value.hex()
    if isinstance(value, (str, int, float)) or value is None:
        return value
    return whole(value) if hasattr(value, "__index__") else str(value)


def _create(directory: str, name: str) -> BinaryIO:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return os.fdopen(os.open(os.path.join(directory, name), flags, 0o600), "wb", buffering=0)


def _rename(partial: str, target: str) -> str:
    """Rename the finished snapshot to its name, or to the next free one; return the path."""
    for number in range(1, 1000):
        path = target if number == 1 else f"{target}-{number}"
        try:
            os.rename(partial, path)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
        else:
            return path
    raise StoreError(f"{target} and its next numbers are taken")


def _discard(partial: str) -> None:
    try:
        for name in (TENSORS, HEADER):
            if os.path.lexists(os.path.join(partial, name)):
                os.unlink(os.path.join(partial, name))
        os.rmdir(partial)
    except OSError:  # the launcher tries again
        pass


def _synchronize(directory: str) -> None:
    """Flush a directory's entries to the disk, if the file system supports it."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


class SnapshotError(Exception):
    """What is wrong with a snapshot that is read, in one line."""


class SavedTensor:
    """A tensor of a snapshot, mapped from the file."""

    def __init__(self, name: str, dtype: str, shape: tuple[int, ...], data: memoryview) -> None:
        self.name = name
        self.dtype = dtype  # as safetensors spells it, or C128
        self.shape = shape
        self.data = data  # read-only bytes, mapped


class SnapshotFile:
    """An open snapshot: its header (snapshot.json) and its tensors, mapped into memory."""

    def __init__(self, path: str) -> None:
        """Open the snapshot in this directory, and check all digests; raises SnapshotError."""
        self.path = path
        self.header = read_header(path)
        self.tensors = _tensors(path, self.header)

    @property
    def facts(self) -> SnapshotHeader:
        """The header, typed."""
        return SnapshotHeader.read(self.header)


def read_header(path: str) -> dict[str, Any]:
    """Return the parsed snapshot.json, after its checksums were verified; raises SnapshotError."""
    where = os.path.join(path, HEADER)
    data = _read(where, path)
    try:
        header = json.loads(data.decode("utf-8"), parse_constant=_refuse, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise SnapshotError(f"{where} is cut short or no JSON ({_words(error)}); the snapshot cannot be used") from None
    if not isinstance(header, dict):
        raise SnapshotError(f"{where} is no JSON object; the snapshot cannot be used")
    version = header.get("format")
    if type(version) is int and version > FORMAT:
        raise SnapshotError(f"{where} has format {version}, this reprokit reads up to {FORMAT}; upgrade reprokit")
    if type(version) is not int or version < 1:
        raise SnapshotError(f"{where} has no format; the snapshot cannot be used")
    if header.get("check") != seal(header) or header.get("digest") != comparable_digest(header):
        raise SnapshotError(f"{where} was altered: its check does not fit; the snapshot cannot be used")
    return header


def saved_optimizers(header: SnapshotHeader, count: int) -> list[dict[str, Any]]:
    """Return entries for so many optimizers: in order, but those of the captured step first if there are more."""
    saved, captured = list(header.optimizers), header.trigger.optimizers
    if count > len(saved):
        raise SnapshotError(f"the snapshot has {len(saved)} optimizers, not {count}")
    if count < len(saved):
        saved.sort(key=lambda entry: entry.get("name") not in captured)
    return saved[:count]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key occurs twice in an object")
    return content


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name[:20]} is no number")


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _open(where: str, directory: str) -> int:
    """Open a regular file, never through a symbolic link; return its descriptor."""
    if not os.path.isdir(directory):
        raise SnapshotError(f"{directory} is no directory; name the directory of a snapshot")
    try:
        descriptor = os.open(where, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise SnapshotError(f"{directory} holds no {os.path.basename(where)}: it is no whole snapshot") from None
    except OSError as error:
        raise SnapshotError(f"{where}: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SnapshotError(f"{where} is no regular file")
    return descriptor


def _read(where: str, directory: str) -> bytes:
    with os.fdopen(_open(where, directory), "rb") as file:
        data = file.read(MAX_HEADER + 1)
    if len(data) > MAX_HEADER:
        raise SnapshotError(f"{where} is larger than {MAX_HEADER:,} bytes; the snapshot cannot be used")
    return data


def _tensors(path: str, header: dict[str, Any]) -> dict[str, SavedTensor]:
    """Return the tensors by name, after the file's size, digest and index were verified."""
    where = os.path.join(path, TENSORS)
    facts = header.get("tensors")
    if not isinstance(facts, dict) or facts.get("file") != TENSORS:
        raise SnapshotError(f"{os.path.join(path, HEADER)} names no {TENSORS}; the snapshot cannot be used")
    descriptor = _open(where, path)
    try:
        size = os.fstat(descriptor).st_size
        if size != facts.get("size"):
            raise SnapshotError(f"{where} is cut short: it has {size:,} bytes and was written with {facts.get('size')}")
        if size < 8:
            raise SnapshotError(f"{where} is no safetensors file; the snapshot cannot be used")
        view = memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))
    finally:
        os.close(descriptor)
    if _sha256_of(view) != facts.get("sha256"):
        raise SnapshotError(f"{where} was altered: its digest does not fit; the snapshot cannot be used")
    try:
        return _entries(view, header.get("complex"))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise SnapshotError(f"{where}: {_words(error)}; the snapshot cannot be used") from None


def _sha256_of(view: memoryview) -> str:
    digest = hashlib.sha256()
    for start in range(0, len(view), BLOCK):
        digest.update(view[start : start + BLOCK])
    return digest.hexdigest()


def _entries(view: memoryview, complexes: Any) -> dict[str, SavedTensor]:
    length = int.from_bytes(view[:8], "little")
    if length > min(MAX_TENSORS, len(view) - 8):
        raise ValueError("its index goes beyond its end")
    index = json.loads(bytes(view[8 : 8 + length]).decode("utf-8"), object_pairs_hook=_object)
    if not isinstance(index, dict):
        raise ValueError("its index is no JSON object")
    data = view[8 + length :]
    return {name: _tensor(name, index[name], data, complexes or ()) for name in index if name != "__metadata__"}


def _tensor(name: str, entry: Any, data: memoryview, complexes: Any) -> SavedTensor:
    dtype, (start, end) = entry["dtype"], entry["data_offsets"]
    shape = tuple(entry["shape"])
    if dtype not in SIZES or len(shape) > MAX_RANK or not all(type(n) is int and n >= 0 for n in (*shape, start, end)):
        raise ValueError(f"the entry of {name[:100]!r} is none")
    count = 1
    for size in shape:
        count *= size
    if not start <= end <= len(data) or end - start != count * SIZES[dtype]:
        raise ValueError(f"the bytes of {name[:100]!r} do not fit its shape")
    if name in complexes and dtype == "F64" and shape[-1:] == (2,):
        dtype, shape = COMPLEX, shape[:-1]
    return SavedTensor(name, dtype, shape, data[start:end])
