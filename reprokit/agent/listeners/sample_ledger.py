"""Records the samples of each optimizer step, beside the trail: RUN/samples (docs/format.md).

A listener, independent of frameworks. Steps are packed into blocks. The entries of the next block are buffered in a
memory-mapped file, the tail, so that SIGKILL loses nothing. Only its size decides when a block is written, not the
clock: a replay must do what the recording did.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
import zlib
from _thread import _local, allocate_lock
from functools import partial

from ..core.buffered_lines import make_directory, map_new_file
from ..core.json_text import to_json
from ..core.reader_names import file_name
from ..events.steps import (
    BackwardBegan,
    BackwardEnded,
    BatchFetched,
    BatchMoved,
    LoaderBegan,
    LoaderExhausted,
    ModelCalled,
    ModelReturned,
    OptimizerEnded,
    OptimizerMade,
    UpdateDone,
)
from .fetched_batches import (
    EVALUATED,
    FOLLOWED,
    NOT_CALLED,
    REACHED,
    TRAINED,
    UNSEEN,
    UNWATCHED,
    FetchedBatch,
    LoaderIteration,
    PendingBatches,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from ..core.agent import Agent
    from ..core.journal import Journal
    from ..events.steps import Events, Handler, TrainingEvent
    from .fetched_batches import BatchCall, BatchMemory

    class GradientFollower(Protocol):
        """Follows the gradients of a framework from the results of models to updates, and says what these had."""

        def add_optimizer(self, record: Any) -> None: ...
        def remove_optimizer(self, record: Any) -> None: ...
        def model_returned(self, calls: list[BatchCall], output: Any) -> None: ...
        def backward_began(self, batches: list[FetchedBatch]) -> None: ...
        def backward_ended(self, batches: list[FetchedBatch]) -> None: ...
        def update_done(self, batches: list[FetchedBatch], record: Any) -> None: ...
        def use_of(self, batch: FetchedBatch, record: Any) -> int: ...


LAST = FOLLOWED - 1  # the updates are followed again after so many, or a multiple more
_GRADIENT_EVENTS = frozenset([ModelReturned, BackwardBegan, BackwardEnded])
_new = object.__new__

FORMAT = 2  # 1: what a step had of its batches was not written
DIRECTORY = "samples"
MAX_BYTES = 1 << 30  # of one process, before they are compressed
MAX_FILES = 1000  # of processes with the same identity
MAX_PENDING = 1 << 16  # batches without a step: the process does not train
MAX_NUMBER = 1 << 16  # loaders and optimizers
MAX_KEY = 200  # characters of a sample's name
ENTRIES, NUMBERS = 16 << 10, 48 << 10  # bytes of the two areas of the tail
TAIL_HEAD = 64
PREFERRED_ADDRESS = 0x2E0001000000  # of the tail, behind that of buffered lines
BATCH, STEP, END, LOADER, SERIES, LEFT = range(1, 7)  # kinds of entries
INDICES, DIGEST, KEYS = range(1, 4)  # how the samples of a batch are identified
USE_SHIFT = 4  # the upper bits of a batch's form say what its step had of it
UNKNOWN_WORKER = 0xFFFFFFFF
HEAD = struct.Struct("<8sII256sI")
BLOCK = struct.Struct("<4sIQIIII")
ENTRY = struct.Struct("<BBHII")
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class FetchingThread(_local):
    """The pending batches of each thread."""

    def __init__(
        self, memory_of: Callable[[Any], BatchMemory] | None, begun: Callable[[PendingBatches], object]
    ) -> None:
        self.pending = PendingBatches(memory_of)
        begun(self.pending)


class SampleLedger:
    """The ledger of the samples of this process' steps."""

    def __init__(
        self,
        agent: Agent,
        events: Events,
        facts_of: Callable[[Any], dict[str, object]],
        epoch_of: Callable[[LoaderBegan], Any],
        digest: Callable[[Any], int | None],
        compiled: Any = None,
        memory_of: Callable[[Any], BatchMemory] | None = None,
        gradients: GradientFollower | None = None,
    ) -> None:
        self._agent, self._events, self._compiled = agent, events, compiled
        self._gradients = gradients
        self._memory_of = memory_of  # returns where values lie; None where calls of models are no events
        self._facts_of = facts_of  # returns the settings of a loader
        self._epoch_of = epoch_of  # returns the epoch that an iteration is, with name and number
        self._digest = digest  # digests a batch for which the trail has no digest
        self.forget()

    def forget(self) -> None:
        """Start afresh, also in a forked child, which needs a file of its own."""
        self._following: set[PendingBatches] = set()  # of the threads in which gradients are followed
        self._thread = FetchingThread(self._memory_of, self._follow)
        self._fetching: list[PendingBatches] = []  # of all threads that have fetched
        self._loaders: dict[str, int] = {}
        self._epochs: dict[int, int] = {}  # the last one of each loader
        self._series: dict[str, list[int]] = {}  # by optimizer: number and last step
        self._file = LedgerFile(self._agent.run, self._agent.journal, self._compiled)

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {
            **self._gradient_handlers(),
            LoaderBegan: self._loader_began,
            BatchFetched: self._batch_fetched,
            BatchMoved: lambda event: self._thread.pending.moved(event.before, event.after),
            ModelCalled: self._model_called,
            LoaderExhausted: self._loader_exhausted,
            UpdateDone: self._update_done,
        }

    def _gradient_handlers(self) -> dict[type[TrainingEvent], Handler]:
        gradients = self._gradients
        if gradients is None:
            return {}
        return {
            OptimizerMade: lambda event: gradients.add_optimizer(event.optimizer),
            OptimizerEnded: lambda event: gradients.remove_optimizer(event.optimizer),
            ModelReturned: self._model_returned,
            BackwardBegan: self._backward_began,
            BackwardEnded: self._backward_ended,
        }

    def _follow(self, pending: PendingBatches) -> None:
        """Hear of the events by which gradients are followed as long as they are in some thread."""
        (self._following.add if pending.follows else self._following.discard)(pending)
        self._events.mute(self, frozenset() if self._following else _GRADIENT_EVENTS)

    def failed(self, error: Exception, _handler: Handler) -> None:
        """End the ledger with a warning."""
        self._events.remove(self)
        self._agent.warn(f"no further step's samples are kept: {type(error).__name__}: {error}", "samples-ended")

    def finish(self) -> None:
        """Write the batches that no step followed, and the buffered entries."""
        self._agent.attempt(self._write_left_batches)
        self._file.close()

    def _write_left_batches(self) -> None:
        for pending in self._fetching:
            left = [batch for batch in pending.batches if batch.iteration.has_steps and not batch.waits]
            if left:
                entries = b"".join(_entry_of(batch, UNSEEN) for batch in left) + ENTRY.pack(LEFT, 0, 0, 0, 0)
                self._file.put(entries, b"".join(batch.numbers for batch in left))

    # Batches, until their step

    def _loader_began(self, event: LoaderBegan) -> None:
        series = self._epoch_of(event)
        facts = self._agent.attempt(self._facts_of, event.loader) if event.facts is None else event.facts
        text = to_json({"name": series.name, **(facts or {})})
        number = self._loaders.get(text)
        if number is None:
            number = self._loaders[text] = len(self._loaders)
            self._declare(LOADER, number, text)
        epoch = self._epochs[number] = max(series.number, self._epochs.get(number, -1) + 1)  # threads count anew
        event.notes[self] = LoaderIteration(number, epoch)

    def _declare(self, kind: int, number: int, text: str) -> None:
        if number >= MAX_NUMBER:
            raise RuntimeError(f"{MAX_NUMBER} loaders or optimizers are too many")
        data = text.encode()
        self._file.put(ENTRY.pack(kind, 0, number, 0, len(data)) + data, b"")

    # Code of each step is kept in few functions: each one outside the caches costs a microsecond or two.

    def _batch_fetched(self, event: BatchFetched) -> None:
        loader_began = event.began
        iteration = None if loader_began is None else loader_began.notes.get(self)
        if iteration is None:
            return
        pending = self._thread.pending
        if pending.use:
            if pending.use != TRAINED:
                pending.drop()
            pending.use, pending.first = NOT_CALLED, len(pending.batches)
        if not pending.is_listed:
            pending.is_listed = True
            self._fetching.append(pending)
        if len(pending.batches) >= MAX_PENDING:
            pending.batches = []
            pending.first = pending.kept = 0
        numbers = None if self._compiled is None else self._compiled.words(event.indices)
        if numbers is None:
            kind, count, text, numbers, size = self._identify(iteration, event)
        else:
            kind, count, text = INDICES, len(numbers) // 4, b""
            size = count
        iteration.fetched += 1
        batch = _new(FetchedBatch)
        batch.entry = ENTRY.pack(BATCH, kind, iteration.number, iteration.epoch, count) + text
        batch.iteration, batch.numbers, batch.value, batch.size = iteration, numbers, event.batch, size
        batch.calls, batch.shares, batch.is_followed, batch.waits = [], {}, pending.follows, iteration.is_ahead
        if self._memory_of is None or len(pending.batches) > pending.first:
            pending.add(batch)
        else:
            pending.batches.append(batch)

    def _identify(self, iteration: LoaderIteration, event: BatchFetched) -> tuple[int, int, bytes, bytes, int | None]:
        """Return kind, count, text and numbers that identify a batch's samples, if it has no list of small indices.

        And how many these are, where that is known.
        """
        indices = event.indices
        if type(indices) is not list:
            indices = indices.tolist() if hasattr(indices, "tolist") else indices
            indices = list(indices) if isinstance(indices, (list, tuple)) else [indices]
        try:
            return INDICES, len(indices), b"", struct.pack("<%dI" % len(indices), *indices), len(indices)
        except struct.error:
            pass
        keys = _keys(event.batch) if indices[0] is None else list(map(str, indices))
        if keys:
            text = to_json([key[:MAX_KEY] for key in keys]).encode()
            return KEYS, len(text), text, b"", len(keys)
        worker = UNKNOWN_WORKER if event.worker is None else event.worker
        number = iteration.batches.get(worker, 0)
        iteration.batches[worker] = number + 1
        digest = self._digest(event.batch) if event.digest is None else event.digest
        return DIGEST, 1, b"", struct.pack("<QII", digest or 0, worker, number), None

    def _model_called(self, event: ModelCalled) -> None:
        pending = self._thread.pending
        batches = pending.batches
        if not event.has_gradients:
            pending.called_without_gradients()
        elif pending.is_plain and not pending.follows and len(batches) == pending.first + 1 and self._memory_of:
            pending.use, pending.has_called, pending.calls = TRAINED, True, []  # the usual case of called()
            batches[-1].is_used, batches[-1].value = True, None
        elif batches or self._fetching:
            pending.called(event.arguments, event.keywords, self._fetching)

    def _loader_exhausted(self, event: LoaderExhausted) -> None:
        pending, loader_began = self._thread.pending, event.began
        if pending.use == EVALUATED:
            pending.drop()
        elif pending.use == NOT_CALLED:
            pending.exhausted()
        iteration = None if loader_began is None else loader_began.notes.get(self)
        if iteration is not None and pending.waits_for_steps(iteration):
            iteration.is_exhausted = True
        elif iteration is not None and (iteration.has_steps or pending.has(iteration)):
            self._file.put(_end_of(iteration), b"")

    # Gradients, where they are followed

    def _model_returned(self, event: ModelReturned) -> None:
        pending = self._thread.pending
        if pending.follows and pending.calls and self._gradients is not None:
            self._gradients.model_returned(pending.calls, event.output)

    def _backward_began(self, _event: BackwardBegan) -> None:
        pending = self._thread.pending
        if pending.follows and pending.batches and self._gradients is not None:
            self._gradients.backward_began(pending.batches)

    def _backward_ended(self, _event: BackwardEnded) -> None:
        pending = self._thread.pending
        if pending.follows and pending.batches and self._gradients is not None:
            self._gradients.backward_ended(pending.batches)

    # Steps

    def _update_done(self, event: UpdateDone) -> None:
        pending = self._thread.pending
        if (
            pending.is_plain
            and len(pending.batches) == 1
            and not (pending.follows or pending.updates % FOLLOWED == LAST)
        ):
            (batch,), record = pending.batches, event.optimizer
            iteration, series = batch.iteration, self._series.get(record.name)
            if series and iteration.has_steps and not (iteration.is_exhausted or iteration.is_drawn):
                pending.updates += 1
                pending.batches, pending.use, pending.kept, pending.first = [], NOT_CALLED, 0, 0
                iteration.stepped += 1
                step = record.steps - 1
                entry = batch.entry + ENTRY.pack(STEP, False, series[0], step - series[1], 0)  # whose use is UNWATCHED
                series[1] = step
                if self._file.compiled_put is None or not self._file.compiled_put(entry, batch.numbers):
                    self._put(entry, batch.numbers)
                return
        self._write_step(event, pending)

    def _write_step(self, event: UpdateDone, pending: PendingBatches) -> None:
        batches, is_drawn = pending.take()
        gradients = self._gradients if pending.follows else None
        follows = pending.follows
        pending.updated()
        if pending.follows is not follows:
            self._follow(pending)
        if not batches:
            return
        record: Any = event.optimizer
        step, series = record.steps - 1, self._series.get(record.name)
        if series is None:
            series = self._series[record.name] = [len(self._series), -1]
            self._declare(SERIES, series[0], to_json({"name": record.name}))
        entries = numbers = b""
        if gradients is not None:
            gradients.update_done(batches, record)
        if not all(batch.iteration.has_steps for batch in batches):
            batches = [each for batch in batches for each in (*batch.iteration.stepped_first(), batch)]
        for batch in batches:
            iteration = batch.iteration
            iteration.stepped += 1
            if iteration.is_exhausted and iteration.stepped == iteration.fetched:
                entries = _end_of(iteration) + entries
            is_drawn = is_drawn or iteration.is_drawn
            is_followed = gradients is not None and batch.is_followed
            use = gradients.use_of(batch, record) if gradients is not None and is_followed else UNWATCHED
            if iteration.is_drawn and use in (UNSEEN, REACHED):
                use = UNWATCHED
            entries, numbers = entries + _entry_of(batch, use), numbers + batch.numbers
        entries += ENTRY.pack(STEP, is_drawn, series[0], step - series[1], 0)
        series[1] = step
        self._put(entries, numbers)

    def _put(self, entries: bytes, numbers: bytes) -> None:
        if not self._file.put(entries, numbers):
            self._events.remove(self)
            self._agent.warn(f"no further step's samples are kept: {self._file.refusal}", "samples-ended")


def _entry_of(batch: FetchedBatch, use: int) -> bytes:
    return bytes((BATCH, batch.entry[1] | use << USE_SHIFT)) + batch.entry[2:]


def _end_of(iteration: LoaderIteration) -> bytes:
    return ENTRY.pack(END, 0, iteration.number, iteration.epoch, 0)


class LedgerFile:
    """The file of this process, and the buffer of its next block.

    An entry is written whole or not at all. It has bytes and numbers. A number has four bytes; those of each place are
    compressed together, as the high bytes of indices are much alike.
    """

    def __init__(self, run: str, journal: Journal, compiled: Any = None) -> None:
        self._directory, self._journal = f"{run}/{DIRECTORY}", journal
        self._guard = allocate_lock()
        self._path = self._tail = self.refusal = ""
        self._first = self._size = 0  # number of entries and of bytes written
        self._buffer: Any = None  # bytes of the buffer, normally the tail, and the numbers in its head
        self._head: Any = None
        self._buffer_state = (ctypes.c_uint64 * 4)(0, 0, ENTRIES, NUMBERS)  # struct waiting of native/python/ledger.c
        self.compiled_put: Any = None  # puts entries if there is room and nobody else does
        if compiled is not None:
            self.compiled_put = partial(compiled.ledger_put, ctypes.addressof(self._buffer_state), self._guard)

    def put(self, entries: bytes, numbers: bytes) -> bool:
        """Buffer entries that belong together; return False if the ledger takes no more."""
        if self.compiled_put is not None and self.compiled_put(entries, numbers):
            return True
        with self._guard:
            if self.refusal:
                return False
            if not (self._path and self._put_in_buffer(entries, numbers)):
                self._attempt(self._flush if self._path else self._create)
                if not (self.refusal or self._put_in_buffer(entries, numbers)):
                    self._attempt(self._write_block, 1, entries, numbers)  # larger than the whole buffer
            return not self.refusal

    def _put_in_buffer(self, entries: bytes, numbers: bytes) -> bool:
        head, used, count = self._head, len(entries) + self._head[2], len(numbers) + self._head[3]
        if used > ENTRIES or count > NUMBERS:
            return False
        self._buffer[TAIL_HEAD + ENTRIES + head[3] : TAIL_HEAD + ENTRIES + count] = numbers
        self._buffer[TAIL_HEAD + head[2] : TAIL_HEAD + used] = entries
        head[3] = count
        head[2] = used  # makes it visible to a reader
        self._buffer_state[1] += 1
        return True

    def _attempt(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            function(*arguments)
        except OSError as error:
            self.refusal = error.strerror or str(error)
        if self.refusal:
            self._buffer_state[0] = 0  # stops compiled code from using the buffer

    def _create(self) -> None:
        """Create the file, named by process and number: processes with the same identity have separate files."""
        make_directory(self._directory)
        name = self._journal.identity.encode("utf-8", "backslashreplace")
        prefix = f"{self._directory}/{hashlib.sha256(name).hexdigest()[:16]}"
        for number in range(MAX_FILES):
            path = f"{prefix}-{number}.samples"
            try:
                descriptor = os.open(path, _CREATE | _SAFE, 0o600)
            except FileExistsError:
                continue
            head = HEAD.pack(b"RKSAMPLE", FORMAT, number, name[:255], 0)
            self._path = path
            self._write(descriptor, head[:-4] + struct.pack("<I", zlib.crc32(head[:-4])))
            self._begin_tail(f"{prefix}-{number}.tail")
            return
        raise OSError("too many processes have the same identity")

    def _begin_tail(self, path: str) -> None:
        size = TAIL_HEAD + ENTRIES + NUMBERS
        try:
            address = map_new_file(path, size, PREFERRED_ADDRESS)
            self._tail = path
        except (OSError, AttributeError):  # a full disk, or a system without posix_fallocate
            address = 0
        memory = (ctypes.c_char * size).from_address(address) if address else ctypes.create_string_buffer(size)
        self._buffer = memoryview(memory).cast("B")
        self._head = self._buffer[:TAIL_HEAD].cast("Q")
        self._buffer[:8] = b"RKSTAIL\x01"
        self._buffer_state[0] = ctypes.addressof(memory)

    def _flush(self) -> None:
        """Write the buffered entries as a block."""
        count, entries, numbers = self._buffer_state[1], self._head[2], self._head[3]
        if count:
            areas = self._buffer[TAIL_HEAD:]
            self._write_block(count, bytes(areas[:entries]), bytes(areas[ENTRIES : ENTRIES + numbers]))

    def _write_block(self, count: int, entries: bytes, numbers: bytes) -> None:
        """Append a block; a block cut short by a full disk is removed."""
        payload = zlib.compress(entries + b"".join([numbers[place::4] for place in range(4)]), 1)
        facts = struct.pack("<QIIII", self._first, count, len(entries), len(numbers), len(payload))
        data = b"RKSB" + struct.pack("<I", zlib.crc32(facts + payload)) + facts + payload
        self._size += len(entries) + len(numbers)
        if self._size > MAX_BYTES:
            self.refusal = f"there are more than {MAX_BYTES} bytes of them"
            return
        self._write(os.open(self._path, _APPEND | _SAFE), data)
        if not self.refusal:
            self._first += count
            self._head[2] = self._head[3] = self._buffer_state[1] = 0
            self._head[1] = self._first

    def _write(self, descriptor: int, data: bytes) -> None:
        try:
            size = os.fstat(descriptor).st_size
            if os.write(descriptor, data) != len(data):
                os.ftruncate(descriptor, size)
                self.refusal = "the disk is full"
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Write the rest, at the end of the process."""
        with self._guard:
            if self._path and not self.refusal:
                self._attempt(self._end)
            self.refusal, self._buffer_state[0] = self.refusal or "the process ends", 0

    def _end(self) -> None:
        self._flush()
        if self._tail and not self.refusal:
            os.unlink(self._tail)


def _keys(batch: Any) -> list[str]:
    """Return the names of samples from readers such as WebDataset: file and key of each sample."""
    names = batch.get("__key__") if type(batch) is dict else None
    if isinstance(names, str):
        names, files = [names], [batch.get("__url__")]
    elif isinstance(names, (list, tuple)):
        files = batch.get("__url__")
    else:
        return []
    if not isinstance(files, (list, tuple)) or len(files) != len(names):
        files = [None] * len(names)
    parts = [file_name(file) if isinstance(file, str) else "" for file in files]
    return [f"{part}:{name}" if part else str(name) for part, name in zip(parts, names)]
