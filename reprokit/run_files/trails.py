"""Reads the trails of a run: for each optimizer step the digests of what it was made of. See docs/format.md.

The files may come from somebody else: every length is compared with what is there before it is used, and what
does not fit is RunDamaged. Memory is bounded by the names of the tensors, however long the training was.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from reprokit.core import native, untrusted_json
from reprokit.core.bounds import bounded_names
from reprokit.core.errors import RunDamaged, RunNotReadable, RunTooNew
from reprokit.model.run import MAX_STRIDE, SealedFile
from reprokit.run_files import rundir
from reprokit.run_files.rundir import TRAIL, RunDirectory

FORMAT = 5  # RKT_FORMAT of native/trail/trail.h
OLDEST = 4  # without digests by placement
ENDING = ".trail"
MAX_FILE = 4 << 30
MAX_SERIES = 4096  # of a file
MAX_TEXT = 64 << 20  # bytes of the names of a series' tensors
MAX_TENSORS = 1_000_000
MAX_KEPT = 16
MAX_PARTS = 64  # placements that have digests
LATE = 64  # steps at the end of a series that a killed process may have left unfinished

_HEAD = struct.Struct("<8sIIII256sQ QIIQQ")
_CHUNK = struct.Struct("<IHHQQIIQQQQ")
_RECORD = struct.Struct("<II10Q")
_HEAD_SIZE, _CHUNK_SIZE, _CHUNK_MAGIC = 512, 64, 0x4B435254
_SERIES, _STEPS, _TENSORS = 1, 2, 3
_GENERATORS = ("torch", "python", "numpy")
_FLAGS = {  # in the order of a record's numbers
    **{name: 1 << bit for bit, name in enumerate(("batch", "loss", "gradients", "parameters", *_GENERATORS))},
    "before": 128,
    "buffers": 2048,
    "inputs": 8192,
}
_PARTIAL, _UNCHANGED, _INPUTS_PARTIAL, _INPUTS_SEVERAL, _PASSED = 256, 4096, 16384, 32768, 65536
_NOT_FINITE, _RUINED = 131072, 262144
_UNSTEADY = {"gradients": 512, "parameters": 1024}
_REASONS = (
    "", "the disk was full", "the file size limit was reached", "the run directory could not be written",
    "memory could not be mapped",
)  # fmt: skip


class TrailStep(msgspec.Struct, frozen=True):
    """One optimizer step. A digest of None is not known: it cannot be compared, and is no difference."""

    number: int
    batch: int | None  # what came from DataLoaders since the step before
    loss: int | None
    gradients: int | None  # as they were after the step
    parameters: int | None  # likewise: what the step made of them
    torch: int | None  # the random states after the step
    python: int | None
    numpy: int | None
    before: int | None = None  # parameters as the step found them, where that was looked at
    buffers: int | None = None  # of the models whose parameters are updated, after the step
    inputs: int | None = None  # the tensors that models were called with since the step before
    unchanged: bool = False  # no parameter was changed since the step before, as far as the framework counts changes
    partial: bool = False  # some tensors could not be read, and are left out of gradients and parameters
    inputs_partial: bool = False  # there were calls or arguments that do not count
    inputs_several: bool = False  # one of which counts came after another call
    unsteady: tuple[str, ...] = ()  # what is not known because it changed while it was read
    passed: bool = False  # the trail passed over it, as it has one of so many steps: what is None was not looked at
    not_finite: bool = False  # of TensorFlow: a number that it returned, or a gradient, is not finite
    ruined: bool = False  # likewise: a weight after it
    parts: tuple[int, ...] = ()  # the parameters of each placement, where there are several; 0: not known


class TrailTensor(msgspec.Struct, frozen=True, array_like=True):
    """A parameter; its gradient goes by the same name."""

    name: str
    dtype: str
    shape: list[int]  # of what its process has of it
    placement: str = ""  # which part that is: ranks with the same text have the same part; of a DTensor only


class Digests(msgspec.Struct, frozen=True):
    """The digests of a step, tensor by tensor, in the order of the table. 0: there was nothing to read."""

    tensors: list[TrailTensor]
    gradients: Sequence[int]
    parameters: Sequence[int]


class _Text(msgspec.Struct, frozen=True):
    """The text in a series' chunk."""

    name: str
    kind: str = msgspec.field(name="class")
    tensors: list[TrailTensor] = []
    framework: str = "torch"
    generators: dict[str, int] = {}
    untouched: list[str] = []
    every: Annotated[int, msgspec.Meta(ge=1, le=MAX_STRIDE)] = 1
    always: Annotated[int, msgspec.Meta(ge=0, le=MAX_STRIDE)] = 16


class _Table(msgspec.Struct, frozen=True):
    """The tensors that an optimizer updates from one step on, until their number or shapes change."""

    series: int
    first: int
    tensors: list[TrailTensor]
    chunks: tuple[tuple[int, int, int], ...]  # first step, offset of the records, count
    kept: tuple[int, int] | None  # offset of the digests of single tensors, steps at each end
    size: int  # of a record


class _File:
    """A trail file mapped into memory, which the kernel reads as it is accessed."""

    def __init__(self, path: Path, fd: int):
        self.path = path
        self.check = native.checker()
        with os.fdopen(fd, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_FILE:
                raise self.damaged(0, f"it is larger than {MAX_FILE} bytes")
            if size < _HEAD_SIZE:
                raise self.damaged(0, "it is cut short")
            self.size = size
            self.map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)

    def damaged(self, offset: int, problem: str) -> RunDamaged:
        return RunDamaged(f"{self.path}, at byte {offset}: {problem}; the run cannot be used")

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the file, which may have become shorter since it was opened."""
        if offset + size > self.size or os.stat(self.path).st_size < offset + size:
            raise self.damaged(offset, "it is cut short")
        return self.map[offset : offset + size]


class Series:
    """The steps of one optimizer of one process, in order."""

    def __init__(
        self, file: _File, process: str, incarnation: int, text: _Text, tables: list[_Table], skipped: int = 0
    ):
        self._text = text
        self.skipped = skipped  # steps that are left out at the beginning
        self.process, self.incarnation = process, incarnation
        self.name = text.name  # "optimizer#0", as in metrics.jsonl
        self.kind = text.kind  # its class
        self.framework = text.framework  # whose random state `torch` is
        self.generators = text.generators  # the random states before the first step, where they are known
        self.every = text.every  # it has one in so many steps
        self.always = text.always  # and each of so many first ones
        self.untouched = text.untouched  # the generators that nobody had seeded or drawn from until then
        self._file, self._tables = file, tables
        self.count = self._count() - skipped

    @property
    def path(self) -> Path:
        """The file that it is in."""
        return self._file.path

    def later(self, skipped: int) -> Series:
        """Return the same without its first steps: as a training that was resumed behind them would have it."""
        text = msgspec.structs.replace(self._text, generators={}, untouched=[])
        return Series(self._file, self.process, self.incarnation, text, self._tables, self.skipped + skipped)

    def _count(self) -> int:
        """Return how many steps there are: up to the last record that is one."""
        for table in reversed(self._tables):
            for first, offset, count in reversed(table.chunks):
                for position in range(count - 1, -1, -1):
                    if any(self._file.read(offset + position * table.size, 4)):
                        return first + position + 1
        return 0

    def looked_at_from(self, step: int) -> int:
        """Return the first step from this one on that the trail does not pass over, unless it is the last one."""
        number = step + self.skipped
        return step if number < self.always else step - number % -self.every

    def looked_at_before(self, step: int) -> int:
        """Return the last step before this one that the trail does not pass over; -1 if there is none."""
        number = step - 1 + self.skipped
        return step - 1 - (0 if number < self.always else min(number % self.every, number - self.always + 1))

    def steps(self, start: int = 0, stop: int | None = None) -> Iterator[TrailStep]:
        """Yield the steps with these numbers."""
        for place in self.places(start, self.count if stop is None else min(stop, self.count)):
            yield from self._read(*place)

    def records(self, start: int, stop: int, width: int = 0) -> bytes:
        """Return the steps as they stand in the file: what is equal here is equal.

        With a width in bytes, as another trail of them has them: a record without digests of placements knows none.
        """
        blocks = []
        for first, offset, count, size in self.places(start, min(stop, self.count)):
            data = self._file.read(offset, count * size)
            is_other = width not in (0, size)
            places = range(0, len(data), size) if is_other else ()
            blocks += [self._widened(data[at : at + size], first + at // size, width) for at in places] or [data]
        return b"".join(blocks)

    def _widened(self, record: bytes, number: int, width: int) -> bytes:
        body = record[4 : _RECORD.size].ljust(width - 4, b"\0")
        is_whole = record[:4] == self._check_of(record[4:], number)
        return (self._check_of(body, number) if is_whole else record[:4]) + body

    def places(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield first step, offset in the file, count and size of contiguous records.

        A table ends where the next begins.
        """
        start, stop = start + self.skipped, stop + self.skipped
        ends = [*(table.first for table in self._tables[1:]), stop]
        for table, end in zip(self._tables, ends, strict=True):
            for first, offset, count in table.chunks:
                low, high = max(start, first), min(stop, end, first + count)
                if low < high:
                    yield low, offset + (low - first) * table.size, high - low, table.size

    def _read(self, number: int, offset: int, count: int, size: int) -> Iterator[TrailStep]:
        for position in range(0, count, 4096):
            some = min(4096, count - position)
            data = self._file.read(offset + position * size, some * size)
            for index in range(some):
                step, at = number + position + index, index * size
                yield self._step(step, offset + position * size + at, data[at : at + size])

    def check(self) -> None:
        """Raise RunDamaged where reading the steps would."""
        for number, offset, count, size in self.places(0, self.count):
            for position in range(0, count, 4096):
                at, some = offset + position * size, min(4096, count - position)
                wrong = native.first_wrong(self._file.read(at, some * size), size, number + position)
                for _ in self._read(number + position + wrong, at + wrong * size, some - wrong, size):
                    pass  # raises if it is not among the last ones of a killed process

    def _step(self, number: int, offset: int, record: bytes) -> TrailStep:
        _, flags, *values = _RECORD.unpack_from(record)
        if record[:4] != self._check_of(record[4:], number):
            if number + LATE < self.count + self.skipped:
                raise self._file.damaged(offset, f"step {number} does not match its check")
            flags = 0
        known = {
            name: value if flags & flag and not flags & _UNSTEADY.get(name, 0) else None
            for (name, flag), value in zip(_FLAGS.items(), values, strict=True)
        }
        unsteady = tuple(name for name, flag in _UNSTEADY.items() if flags & flag)
        more = (len(record) - _RECORD.size) // 8 if known["parameters"] is not None else 0
        facts = {
            "partial": bool(flags & _PARTIAL),
            "unchanged": bool(flags & _UNCHANGED),
            "inputs_partial": bool(flags & _INPUTS_PARTIAL),
            "inputs_several": bool(flags & _INPUTS_SEVERAL),
            "unsteady": unsteady,
            "passed": bool(flags & _PASSED),
            "not_finite": bool(flags & _NOT_FINITE),
            "ruined": bool(flags & _RUINED),
            "parts": struct.unpack_from(f"<{more}Q", record, _RECORD.size) if more else (),
        }
        return TrailStep(number=number - self.skipped, **facts, **known)  # type: ignore[arg-type]

    def _check_of(self, body: bytes, number: int) -> bytes:
        """Return what a record of this step begins with before this body."""
        return struct.pack("<I", self._file.check(body, number) & 0xFFFFFFFF or 1)

    @property
    def tables(self) -> list[tuple[int, list[TrailTensor]]]:
        """Return the steps from which other tensors were updated, with these tensors."""
        firsts = [
            (table.first - self.skipped, table.tensors)
            for before, table in zip([None, *self._tables], self._tables, strict=False)
            if before is None or before.tensors != table.tensors  # else only the stride has changed
        ]
        begun = [tensors for first, tensors in firsts if first <= 0]
        return [*((0, tensors) for tensors in begun[-1:]), *(later for later in firsts if later[0] > 0)]

    def kept(self) -> Iterator[int]:
        """Yield the steps whose tensors have digests of their own, in no order."""
        for table in self._tables:
            offset, kept = table.kept or (0, 0)
            for slot in range(2 * kept):
                (number,) = struct.unpack("<Q", self._file.read(offset + slot * (16 + 16 * len(table.tensors)), 8))
                if number > self.skipped:
                    yield number - 1 - self.skipped

    def tensors(self, step: int) -> list[TrailTensor]:
        """Return the table of tensors that a step updated."""
        return self._table(step).tensors

    def _table(self, step: int) -> _Table:
        first = step + self.skipped
        return next((table for table in reversed(self._tables) if table.first <= first), self._tables[0])

    def digests(self, step: int) -> Digests | None:
        """Return the digests of a step's tensors, which are kept of the first and last steps of each table."""
        slot = self.slot(step)
        if slot is None:
            return None
        tensors, step = self.tensors(step), step + self.skipped
        data, count = self._file.read(*slot), len(tensors)
        number, check = struct.unpack_from("<QQ", data)
        if number != step + 1:
            return None
        if self._file.check(data[16:], number) != check:
            raise self._file.damaged(slot[0], f"the digests of step {step} do not match their check")
        values = struct.unpack(f"<{2 * count}Q", data[16:])
        return Digests(tensors, values[:count], values[count:])

    def slot(self, step: int) -> tuple[int, int] | None:
        """Return where in the file a step's tensors have digests if they are kept, and the bytes; None if none are."""
        table, step = self._table(step), step + self.skipped
        if table.kept is None or step < table.first:
            return None
        offset, kept = table.kept
        done, size = step - table.first, 16 + 16 * len(table.tensors)
        return offset + (done if done < kept else kept + done % kept) * size, size

    def kept_bytes(self, step: int) -> bytes:
        """Return what stands in the file of a step's tensors; nothing where another step's digests, or none, do."""
        data = b"" if (slot := self.slot(step)) is None else self._file.read(*slot)
        return data if data[:8] == struct.pack("<Q", step + self.skipped + 1) else b""


class Trail:
    """The trail of one process: its series in the order in which they began."""

    def __init__(self, path: Path, fd: int):
        self._file = file = _File(path, fd)
        fields = _HEAD.unpack(file.read(0, _HEAD.size))
        magic, version, self.incarnation, _, _, identity, check, self._used, self._gave_up, _, self.lost, time = fields
        if magic != b"RKTRAIL\0":
            raise file.damaged(0, "it is no trail")
        if version > FORMAT:
            raise RunTooNew(f"{path} has format {version}, this reprokit reads up to {FORMAT}; upgrade reprokit")
        if version < OLDEST:
            raise RunNotReadable(f"{path} has format {version} of an earlier reprokit; record the run again")
        if check != file.check(file.read(0, 280), 0):
            raise file.damaged(0, "its head does not match its check")
        if not _HEAD_SIZE <= self._used <= file.size:
            raise file.damaged(288, "it is cut short")
        self.stepped = time / 1e9  # seconds since 1970, when a rank's last step was written; 0: not known
        self.process = identity.partition(b"\0")[0].decode("utf-8", "replace")
        self.series = self._series(list(self._chunks()))

    @property
    def size(self) -> int:
        """The bytes of the file."""
        return self._file.size

    @property
    def gave_up(self) -> str:
        """Why the process stopped writing its trail; empty if it did not."""
        reason = self._gave_up
        return _REASONS[reason] if reason < len(_REASONS) else f"reason {reason}"

    def _chunks(self) -> Iterator[tuple[int, int, int, int, int, int, int, int]]:
        """Yield offset, kind, series, first, count, kept, length and check of the text of each chunk."""
        at, file = _HEAD_SIZE, self._file
        while at < self._used:
            if self._used - at < _CHUNK_SIZE:
                raise file.damaged(at, "a chunk is cut short")
            head = file.read(at, _CHUNK_SIZE)
            magic, kind, series, size, first, count, kept, length, text_check, check, _ = _CHUNK.unpack(head)
            if magic != _CHUNK_MAGIC or check != file.check(head[:48], 0):
                raise file.damaged(at, "no chunk")
            if size < _CHUNK_SIZE or size % 8 or size > self._used - at or kind not in (_SERIES, _STEPS, _TENSORS):
                raise file.damaged(at, "a chunk is cut short")
            if _body(kind, count, kept, length) > size - _CHUNK_SIZE:
                raise file.damaged(at, "a chunk holds less than it says")
            yield at + _CHUNK_SIZE, kind, series, first, count, kept, length, text_check
            at += size

    def _series(self, chunks: list[tuple[int, int, int, int, int, int, int, int]]) -> list[Series]:
        tables: dict[str, list[_Table]] = {}
        texts: dict[str, _Text] = {}
        for offset, kind, number, first, count, _, length, check in chunks:
            if kind != _SERIES:
                continue
            text = self._text(offset, count, length, check)
            before = tables.setdefault(text.name, [])
            if len(texts) > MAX_SERIES or (before and before[-1].first > first):
                raise self._file.damaged(offset, "series out of order")
            texts[text.name] = text
            before.append(self._table(chunks, number, first, text.tensors))
        file = self._file
        return [Series(file, self.process, self.incarnation, texts[name], tables[name]) for name in tables]

    def _text(self, offset: int, count: int, length: int, check: int) -> _Text:
        data = self._file.read(offset, length)
        if self._file.check(data, 0) != check:
            raise self._file.damaged(offset, "the names of the tensors do not match their check")
        try:
            text = msgspec.convert(untrusted_json.loads(data), _Text)
        except (msgspec.MsgspecError, ValueError):
            raise self._file.damaged(offset, "the names of the tensors cannot be read") from None
        if len(text.tensors) != count:
            raise self._file.damaged(offset, f"{len(text.tensors)} names for {count} tensors")
        return text

    def _table(self, chunks: Sequence[tuple[int, ...]], number: int, first: int, tensors: list[TrailTensor]) -> _Table:
        steps: list[tuple[int, int, int]] = []
        kept, expected, parts = None, first, 0
        placements = len({tensor.placement for tensor in tensors})
        for offset, kind, series, begins, count, keeps, _, _ in chunks:
            if series != number:
                continue
            if kind == _STEPS:
                if begins != expected:
                    raise self._file.damaged(offset, "steps are missing")
                if keeps not in ((parts,) if steps else (0, placements)):
                    raise self._file.damaged(offset, f"digests of {keeps} of {placements} placements")
                steps.append((begins, offset, count))
                expected, parts = begins + count, keeps
            elif kind == _TENSORS:
                if count != len(tensors):
                    raise self._file.damaged(offset, f"digests of {count} tensors, not {len(tensors)}")
                kept = (offset, keeps)
        return _Table(number, first, tensors, tuple(steps), kept, _record_size(parts))


def longest_stride(trails: Iterable[Trail]) -> int:
    """Return of how many steps the sparsest series has one; 1 if all have each."""
    return max((series.every for trail in trails for series in trail.series if series.count > series.always), default=1)


def _record_size(parts: int) -> int:
    """Return the bytes of a step with digests of so many placements."""
    return _RECORD.size + 8 * parts


def _body(kind: int, count: int, kept: int, length: int) -> int:
    """Return the bytes that a chunk with this head must hold; an impossible number for an absurd head."""
    if kind == _STEPS:
        return count * _record_size(kept) if kept <= MAX_PARTS else MAX_FILE
    if count > MAX_TENSORS or length > MAX_TEXT or kept > MAX_KEPT or (kind == _TENSORS and not kept):
        return MAX_FILE
    return length if kind == _SERIES else 2 * kept * (16 + 16 * count)


def read(run: RunDirectory) -> Iterator[Trail]:
    """Yield the trails of a run's processes, one after the other; nothing where the run has none.

    Where run.json holds a seal, damage is raised before the first.
    """
    names = _names(run.path / TRAIL)
    sealed = run.run.trails
    if sealed is not None and seal(run.path / TRAIL) != sealed:
        raise RunDamaged(f"{run.path / TRAIL} was altered since the run ended; the run cannot be used")
    for name in names:
        yield Trail(run.path / TRAIL / name, run.open(f"{TRAIL}/{name}"))


def _names(directory: Path) -> list[str]:
    return bounded_names(directory, ENDING)


def seal(directory: Path) -> SealedFile | None:
    """Return size and digest of all trails of a finished run; None if there are none."""
    return rundir.seal_files(directory, _names(directory), "reprokit-trails-1")
