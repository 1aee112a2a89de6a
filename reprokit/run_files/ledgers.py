"""Reads the ledgers of a run: which samples each optimizer step was made of. See docs/format.md.

The files may come from somebody else: every length is compared with what is there before it is used, and what
does not fit is RunDamaged. Memory is bounded by the largest block, however long the training was.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import IO

import msgspec

from reprokit.core import untrusted_json
from reprokit.core.bounds import bounded_names
from reprokit.core.errors import RunDamaged, RunTooNew
from reprokit.model.run import SealedFile
from reprokit.run_files import rundir
from reprokit.run_files.rundir import SAMPLES, RunDirectory

FORMAT = 2  # of agent/listeners/sample_ledger.py, as is what follows
ENDING, TAIL_ENDING = ".samples", ".tail"
MAX_BYTES = 1 << 30  # of a file, before they were compressed
MAX_BLOCK = 256 << 20
MAX_TEXT = 16 << 20  # bytes of the names of a batch's samples
MAX_BATCHES = 1 << 17  # of one step
_HEAD, _BLOCK, _ENTRY = struct.Struct("<8sII256sI"), struct.Struct("<4sIQIIII"), struct.Struct("<BBHII")
_FACTS = 8  # bytes of a block's head before what its check is over
_BATCH, _STEP, _END, _LOADER, _SERIES, _LEFT = range(1, 7)
_INDICES, _DIGEST, _KEYS = range(1, 4)
_USE_SHIFT = 4
_DRAWN = 1  # form of a step
_UNKNOWN_WORKER = 0xFFFFFFFF
_TAIL = struct.Struct("<8sQQQ")
_TAIL_HEAD, _TAIL_ENTRIES, _TAIL_NUMBERS = 64, 16 << 10, 48 << 10
_WORDS = {_INDICES: 1, _DIGEST: 4, _KEYS: 0}

Sample = int | str  # an index, or the name or digest of what has none


class SampleLoader(msgspec.Struct, frozen=True):
    """A data loader, and how it chooses its samples."""

    name: str  # "loader#0", as in metrics.jsonl
    dataset: str = ""  # class
    sampler: str = ""  # class; empty where the data set is iterable
    workers: int | None = None
    replacement: bool = False  # a sample can come again
    left_over: int = 0  # the most samples that an epoch leaves out, as they fill no batch
    samples: int | None = None  # in each epoch, where that is known


class _Named(msgspec.Struct, frozen=True):
    """The name of an optimizer."""

    name: str


class BatchUse(Enum):
    """What the update of a step had of a batch, as autograd's graph shows it."""

    UNWATCHED = 0  # not known: of other frameworks, on devices, and in runs of older releases
    UNSEEN = 1  # no gradient of it was seen
    REACHED = 2  # a gradient of it, of which samples is not known
    PARTLY = 3  # of some of its samples
    WHOLLY = 4  # of all of them


class SampleBatch(msgspec.Struct, frozen=True):
    """A batch that a loader gave."""

    loader: SampleLoader
    epoch: int
    samples: Sequence[Sample]  # of a batch of which only a digest is known, that alone; empty where nothing is
    is_digest: bool = False
    worker: int | None = None  # that made it, where only a digest is known
    number: int | None = None  # of that worker's batches
    use: BatchUse = BatchUse.UNWATCHED


class SampleStep(msgspec.Struct, frozen=True):
    """An optimizer step, and the batches that it was made of."""

    optimizer: str
    number: int
    batches: list[SampleBatch]
    is_drawn: bool = False  # these were only drawn before it: which of them it used is not known

    @property
    def samples(self) -> list[Sample]:
        """All samples of the step."""
        return [sample for batch in self.batches for sample in batch.samples]


class BatchesLeft(msgspec.Struct, frozen=True):
    """Batches that were drawn in a training, and that no further step followed."""

    batches: list[SampleBatch]


class EpochDone(msgspec.Struct, frozen=True):
    """States that a loader had no further batch."""

    loader: SampleLoader
    epoch: int


LedgerEvent = SampleStep | EpochDone | BatchesLeft


class ProcessLedger:
    """The ledger of one process."""

    def __init__(self, run: RunDirectory, name: str):
        self._run, self._name = run, name
        self._path = run.path / SAMPLES / name
        with os.fdopen(run.open(f"{SAMPLES}/{name}"), "rb") as file:
            self.process = self._head(file)

    def _head(self, file: IO[bytes]) -> str:
        data = file.read(_HEAD.size)
        if len(data) < _HEAD.size:
            raise self._damaged(0, "it is cut short")
        magic, version, incarnation, identity, check = _HEAD.unpack(data)
        if magic != b"RKSAMPLE":
            raise self._damaged(0, "it is no ledger of samples")
        if version > FORMAT:
            raise RunTooNew(f"{self._path} has format {version}, this reprokit reads up to {FORMAT}; upgrade reprokit")
        if check != zlib.crc32(data[:-4]):
            raise self._damaged(0, "its head does not match its check")
        name: str = identity.partition(b"\0")[0].decode("utf-8", "replace")
        return f"{name} (start {incarnation + 1})" if incarnation else name

    def _damaged(self, offset: int, problem: str) -> RunDamaged:
        return RunDamaged(f"{self._path}, at byte {offset}: {problem}; the run cannot be used")

    def read(self) -> Iterator[LedgerEvent]:
        """Yield the steps, the ends of epochs, and what was left, in the order in which they came."""
        state = _LedgerState()
        for offset, entries, numbers in self._blocks():
            try:
                yield from state.read(entries, numbers)
            except (ValueError, RecursionError, struct.error, msgspec.MsgspecError) as error:
                raise self._damaged(offset, f"an entry does not fit ({error})") from None

    def _blocks(self) -> Iterator[tuple[int, bytes, memoryview]]:
        """Yield offset, entries and numbers of each block; last, those waiting for one when the process was killed."""
        first = total = 0
        tail = self._tail()
        with os.fdopen(self._run.open(f"{SAMPLES}/{self._name}"), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            at = file.seek(_HEAD.size)
            while at < size:
                head = file.read(_BLOCK.size)
                if len(head) < _BLOCK.size or _BLOCK.unpack(head)[6] > size - at - _BLOCK.size:
                    if tail is not None:  # the process was killed as it wrote what stands there, too
                        break
                    raise self._damaged(at, "a block is cut short")
                magic, check, begins, count, entries, numbers, length = _BLOCK.unpack(head)
                total += entries + numbers
                if magic != b"RKSB" or begins != first or numbers % 4:
                    raise self._damaged(at, "no block")
                if entries + numbers > MAX_BLOCK or total > MAX_BYTES + MAX_BLOCK:
                    raise self._damaged(at, "a block is larger than any that is written")
                payload = file.read(length)
                if check != zlib.crc32(head[_FACTS:] + payload):
                    raise self._damaged(at, "a block does not match its check")
                data = self._expanded(at, payload, entries + numbers)
                yield at, data[:entries], _joined(data[entries:])
                first, at = first + count, at + _BLOCK.size + length
        if tail is not None and tail[0] >= first:
            yield at, tail[1], tail[2]

    def _expanded(self, at: int, payload: bytes, size: int) -> bytes:
        decompressor = zlib.decompressobj()
        try:
            data = decompressor.decompress(payload, size + 1)
        except zlib.error:
            raise self._damaged(at, "a block cannot be decompressed") from None
        if len(data) != size or not decompressor.eof:
            raise self._damaged(at, "a block holds other than it says")
        return data

    def _tail(self) -> tuple[int, bytes, memoryview] | None:
        """Return the first entry's number, the entries and the numbers that waited for a block."""
        name = f"{SAMPLES}/{Path(self._name).stem}{TAIL_ENDING}"
        if not self._run.has(name):
            return None
        data = self._run.read(name, _TAIL_HEAD + _TAIL_ENTRIES + _TAIL_NUMBERS)
        magic, first, entries, numbers = _TAIL.unpack(data[: _TAIL.size].ljust(_TAIL.size, b"\0"))
        fits = magic == b"RKSTAIL\x01" and entries <= _TAIL_ENTRIES and numbers <= _TAIL_NUMBERS and not numbers % 4
        middle = _TAIL_HEAD + _TAIL_ENTRIES
        if not any(data) or not entries:
            return None
        if not fits or len(data) < middle + numbers:
            raise RunDamaged(f"{self._run.path / name} is no end of a ledger; the run cannot be used")
        words = memoryview(data[middle : middle + numbers]).cast("I")
        return first, data[_TAIL_HEAD : _TAIL_HEAD + entries], words


def _joined(planes: bytes) -> memoryview:
    """Return numbers of which all first bytes came first, then all second ones."""
    size = len(planes) // 4
    joined = bytearray(len(planes))
    for place in range(4):
        joined[place::4] = planes[place * size : (place + 1) * size]
    return memoryview(joined).cast("I")


class _LedgerState:
    """The state that decoding an entry needs from the entries before it."""

    def __init__(self) -> None:
        self._loaders: dict[int, SampleLoader] = {}
        self._series: dict[int, str] = {}
        self._steps: dict[int, int] = {}
        self._batches: list[SampleBatch] = []

    def read(self, entries: bytes, numbers: memoryview) -> Iterator[LedgerEvent]:
        """Yield what a block holds; raises ValueError and the like."""
        at = place = 0
        while at < len(entries):
            kind, form, number, first, count = _ENTRY.unpack_from(entries, at)
            at += _ENTRY.size
            text = b""
            form, use = (form & 15, BatchUse(form >> _USE_SHIFT)) if kind == _BATCH else (form, BatchUse.UNWATCHED)
            if kind in (_LOADER, _SERIES) or (kind == _BATCH and form == _KEYS):
                if count > min(len(entries) - at, MAX_TEXT):
                    raise ValueError("a text is cut short")
                text, at = entries[at : at + count], at + count
            if kind == _LOADER:
                self._loaders[number] = msgspec.convert(untrusted_json.loads(text), SampleLoader)
            elif kind == _SERIES:
                self._series[number] = msgspec.convert(untrusted_json.loads(text), _Named).name
            elif kind == _BATCH:
                size = _WORDS[form] * count if form in _WORDS else len(numbers) + 1
                if size > len(numbers) - place or (form == _DIGEST and count != 1):
                    raise ValueError("numbers are missing")
                if len(self._batches) >= MAX_BATCHES:
                    raise ValueError("a step has too many batches")
                self._batches.append(self._batch(number, first, form, numbers[place : place + size], text, use))
                place += size
            elif kind == _STEP:
                yield self._step(number, first, form == _DRAWN)
            elif kind == _END:
                yield EpochDone(self._loader(number), first)
            elif kind == _LEFT:
                batches, self._batches = self._batches, []
                yield BatchesLeft(batches)
            else:
                raise ValueError(f"its kind is {kind}")

    def _loader(self, number: int) -> SampleLoader:
        if number not in self._loaders:
            raise ValueError(f"there is no loader {number}")
        return self._loaders[number]

    def _batch(self, number: int, epoch: int, form: int, words: memoryview, text: bytes, use: BatchUse) -> SampleBatch:
        loader = self._loader(number)
        if form == _DIGEST:
            low, high, worker, order = words
            worker_number = None if worker == _UNKNOWN_WORKER else worker
            digest = low | high << 32
            return SampleBatch(loader, epoch, [f"{digest:016x}"] if digest else [], True, worker_number, order, use)
        if form == _KEYS:
            keys = msgspec.convert(untrusted_json.loads(text), list[str])
            return SampleBatch(loader, epoch, keys, use=use)
        return SampleBatch(loader, epoch, words, use=use)

    def _step(self, number: int, delta: int, is_drawn: bool) -> SampleStep:
        if number not in self._series:
            raise ValueError(f"there is no optimizer {number}")
        step = self._steps[number] = self._steps.get(number, -1) + delta
        batches, self._batches = self._batches, []
        return SampleStep(self._series[number], max(step, 0), batches, is_drawn)


def ledgers(run: RunDirectory) -> list[ProcessLedger]:
    """Return the ledgers of a run's processes; none where the run has none.

    Where run.json holds a seal, damage is raised before the first.
    """
    sealed = run.run.samples
    if sealed is not None and seal(run.path / SAMPLES) != sealed:
        raise RunDamaged(f"{run.path / SAMPLES} was altered since the run ended; the run cannot be used")
    unused = {*never_begun(run)}
    return [ProcessLedger(run, name) for name in bounded_names(run.path / SAMPLES, ENDING) if name not in unused]


def never_begun(run: RunDirectory) -> list[str]:
    """Return the names of the ledgers that their processes could not begin: which samples they had is not known."""
    return [name for name in bounded_names(run.path / SAMPLES, ENDING) if run.is_never_begun(f"{SAMPLES}/{name}")]


def seal(directory: Path) -> SealedFile | None:
    """Return size and digest of all ledgers of a finished run; None if there are none."""
    names = [name for ending in (ENDING, TAIL_ENDING) for name in bounded_names(directory, ending)]
    return rundir.seal_files(directory, names, "reprokit-samples-1")
