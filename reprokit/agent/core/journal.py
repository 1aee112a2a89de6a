"""Writes this process's lines of metrics.jsonl: whole lines with one write, so that they never mix and survive SIGKILL.

The file is opened and closed each time. A descriptor that stayed open would change the numbers of the program's own
descriptors. It could also be closed, or written to by mistake, in programs that close or replace unknown descriptors.
Opening is slow, above all under strace. So the lines of steps are buffered where SIGKILL cannot lose them
(buffered_lines.py), and their numbers are records in a file of their own (NumberRecords). When lines are flushed
depends on them alone, not on the clock: a replay must do what the recording did.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from _functools import partial  # type: ignore[import-not-found]  # functools imports six modules
from _thread import allocate_lock

from .buffered_lines import BufferedLines, make_directory, map_part
from .json_text import to_json
from .launch_plan import read_plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

MAX_LINE = 15 << 20  # bytes; readers reject lines of 16 MiB
BUFFERED_KINDS = frozenset(["loss", "log", "epoch", "weights", "collective"])  # they come with each step or epoch
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
FORMAT = 1
DIRECTORY = "numbers"
MAX_FILES = 1000  # of processes with the same identity
MAX_BYTES = 4 << 30  # of a file
MAX_TEXT = 4096  # bytes of what a series is
WINDOW = 64 << 10  # a multiple of all sizes of pages
PREFERRED_ADDRESS = 0x2E0000100000  # behind that of buffered lines
HEAD, HEAD_SIZE = "<8sIII256sI8x", 288  # magic, format, number of the file, process id, identity, CRC-32
RECORD = "<IIiqQ"  # behind the check: series, lines written before, epoch, step, bits
TEXT = "<II20s"  # likewise of series 0: bytes of the text from here on, and the first of them
SIZE = 32  # bytes of a record
ABSENT_EPOCH, ABSENT_STEP = -1 << 31, -1 << 63
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
_OLD = os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


_FLAGS |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # never wait for a FIFO in its place


class Journal:
    """Writes the lines of one process, numbered from 0."""

    def __init__(self, run: str, identity: str) -> None:
        self._run = run
        self._path = run + "/metrics.jsonl"
        self._environment_identity = identity
        self._identity: str | None = identity
        self._quoted = to_json(identity)
        self._numbers = itertools.count()  # next() on it is atomic, and safe inside a finalizer as no lock is
        # Read once: where native/shim/sources/place.c does not know the agent's lines, it takes a recorded read.
        self._epoch = time.time() - time.monotonic()
        self._broken = False
        self._buffer = BufferedLines(run)
        self._records = NumberRecords(run)
        self._put_loss: dict[tuple[str, str], Callable[..., bool]] = {}  # compiled code, by a loss's name and dtype
        self._lock = allocate_lock()
        self._announced = True
        self.written = False
        self.first_write_of_fork: Callable[[], None] | None = None
        self._forks: int | None = None  # counted here if there is no shim
        self._forked_as = ""

    def name_processes(self) -> None:
        """Count this process's forks, and rename programs that it starts; needed without the shim."""
        self._forks = 0
        os.environ["REPROKIT_ID"] = self.identity + "/started"
        os.register_at_fork(before=self._before_fork)

    def _before_fork(self) -> None:
        self._forks = (self._forks or 0) + 1
        self._forked_as = f"{self.identity}/{self._forks}"

    @property
    def identity(self) -> str:
        """The name of this process within the run."""
        if self._identity is None:
            self._name_fork()
        return self._identity or ""

    @property
    def known_identity(self) -> str:
        """The name of this process; empty in a forked child that has not needed it yet, as finding it is slow."""
        return self._identity or ""

    def write(self, kind: str, fields: Mapping[str, object], *, aside: bool = False) -> None:
        """Append one line; a file that cannot be written is ignored silently.

        With ``aside``, the line alone does not make a forked child write its final lines.
        """
        self.write_text(kind, _text(fields), aside=aside)

    def write_text(self, kind: str, text: str, *, aside: bool = False) -> None:
        """Append one line like write(), with its fields as JSON text: `,"key":value`."""
        self._begin(aside)
        line = self._line(kind, text)
        if len(line) > MAX_LINE:
            line = self._line(
                "warning", _text({"text": f"a {kind} line of {len(line)} bytes was left out", "code": "line-left-out"})
            )
        self._write_line(kind in BUFFERED_KINDS, line)

    def _begin(self, aside: bool) -> None:
        """Name a forked child before its first line or number, after which it writes its final lines."""
        if self._identity is None:
            self._name_fork()
        if not (aside or self._announced):
            self._announced = True
            if self.first_write_of_fork is not None:
                self.first_write_of_fork()
        self.written = self.written or not aside

    def write_loss(self, name: str, step: int, dtype: str, number: Any) -> None:
        """Append a loss like write_value(), but by one compiled call, as it is part of each step's time."""
        put = self._put_loss.get((name, dtype))
        if put is None or not put(step, number):
            from .exact_values import from_number

            is_record = self.write_value("loss", name, step, None, from_number(dtype, number))
            if is_record and put is None:
                self._prepare_losses(name, dtype)

    def position(self) -> list[int]:
        """Return how many lines this process has numbered, and the bytes of its file of numbers that are used."""
        return [self._records.lines, self._records.used]

    def loss_writer(self, name: str, dtype: str) -> Callable[[int, float], bool] | None:
        """Return compiled code that appends a loss, or says that it did not; None if there is none, or not yet."""
        return self._put_loss.get((name, dtype))

    def write_value(self, kind: str, name: str, step: int | None, epoch: int | None, value: dict[str, Any]) -> bool:
        """Append a VALUE of a series: a number as a record, anything else as a line. Return whether it is a record."""
        from .exact_values import bits_of

        number = bits_of(value)
        self._begin(False)
        if number is not None and self._lock.acquire(False):  # otherwise another thread is writing
            try:
                if self._records.put(self.identity, kind, name, step, epoch, number):
                    return True
            finally:
                self._lock.release()
        place = {"step": step} if kind == "loss" else {"step": step, "epoch": epoch}
        self.write(kind, {"name": name, **place, "value": value})
        return False

    def _prepare_losses(self, name: str, dtype: str) -> None:
        """Prepare compiled code to write the losses of this name, if it is available."""
        from .native_module import load
        from .trail_library import path_of

        module = load(path_of(self._run)) if dtype in ("float32", "float64") else None
        if module is not None:
            series = self._records.series(self.identity, "loss", name, dtype)
            size = 4 if dtype == "float32" else 8
            self._put_loss[name, dtype] = partial(
                module.loss_record, self._records.struct_address(), self._lock, series, size
            )

    def _write_line(self, may_wait: bool, line: bytes) -> None:
        if not self._lock.acquire(False):  # another thread is writing, or a finalizer interrupts a write
            self._append(line)
            return
        try:
            self._buffer_or_write(may_wait, line)
        finally:
            self._lock.release()

    def _buffer_or_write(self, may_wait: bool, line: bytes) -> None:
        """Buffer a line, or write it after the buffered ones."""
        buffer = self._buffer
        if may_wait and buffer.append(line):
            return
        self._flush()
        if not (may_wait and buffer.append(line)):
            self._append(line)

    def close(self) -> None:
        """Write all buffered lines, at the end of the process."""
        if self._lock.acquire(False):
            try:
                self._flush()
                self._buffer.close()
                self._records.close()
            except OSError:  # a file is already gone
                pass
            finally:
                self._lock.release()

    def _line(self, kind: str, text: str) -> bytes:
        number = next(self._numbers)
        self._records.count_lines(number + 1)
        start = f'{{"k":"{kind}","p":{self._quoted},"n":{number},"t":{self._epoch + time.monotonic():.6f}'
        return f"{start}{text}}}\n".encode()

    def _flush(self) -> None:
        """Write all buffered lines."""
        lines = bytes(self._buffer.pending())
        self._append(lines, *self._buffer.clearing())
        if self._broken and not self._buffer.pending():
            self._buffer.append(lines)  # for the launcher

    def _append(self, lines: bytes, *afterwards: partial[Any]) -> None:
        """Append whole lines to the file, and make these calls if that succeeded, between which no handler comes."""
        if not lines or self._broken:
            return
        try:
            descriptor = os.open(self._path, _FLAGS, 0o600)
        except OSError:
            return
        try:
            written, *_ = map(partial.__call__, [partial(os.write, descriptor, lines), *afterwards])
        except OSError:
            return
        finally:
            os.close(descriptor)
        self._broken = written != len(lines)  # the disk is full: another line would be joined to the partial one

    def forget(self) -> None:
        """Start anew, in a forked child, under a name that is looked up at the first write."""
        self._identity = None
        if self._forks is not None:
            self._forks = 0
            os.environ["REPROKIT_ID"] = self._forked_as + "/started"
        self._numbers = itertools.count()
        self._buffer, self._lock = BufferedLines(self._run), allocate_lock()
        self._records, self._put_loss = NumberRecords(self._run), {}
        self._broken = self._announced = self.written = False

    def _name_fork(self) -> None:
        try:
            self._identity = self._forked_as or _identity_by_shim(self._run) or self._environment_identity + "/?"
        except Exception:  # this process has no shim
            self._identity = self._environment_identity + "/?"
        self._quoted = to_json(self._identity)


def _text(fields: Mapping[str, object]) -> str:
    return "".join([f',"{key}":{to_json(value)}' for key, value in fields.items()])


def _identity_by_shim(run: str) -> str:
    """Return the name of this process from the shim, which counts forks; only if the shim is loaded."""
    import ctypes

    shim = ctypes.CDLL(read_plan(run)["shim"], mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    shim.reprokit_process_identity.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
    buffer = ctypes.create_string_buffer(256)
    length = shim.reprokit_process_identity(buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace") if length else ""


class NumberRecords:
    """The file of one process. A forked child needs its own; callers see that no two threads write at once."""

    def __init__(self, run: str) -> None:
        self._directory = f"{run}/{DIRECTORY}"
        self._path = ""
        self._is_closed = False
        self._series: dict[tuple[str, str, str], int] = {}
        self._declared = 0  # also what an interrupt kept from being written
        self._lines = 0
        self._window = 0  # bytes of the file before it
        self._memory: Any = None  # a view of the mapped window
        self._struct: Any = None  # address, bytes used, size and lines, as compiled code reads them

    @property
    def lines(self) -> int:
        """How many lines this process has numbered."""
        return self._lines

    @property
    def used(self) -> int:
        """How many bytes of the file are used; 0 without one."""
        return 0 if self._struct is None else self._window + int(self._struct[1])

    def count_lines(self, count: int) -> None:
        """Note how many lines this process has numbered: they come before the next record."""
        self._lines = count
        if self._struct is not None:
            self._struct[3] = count

    def put(self, identity: str, kind: str, name: str, step: int | None, epoch: int | None, number: Any) -> bool:
        """Append a number, given as dtype and bits; return False if it is none of a record, or cannot be written."""
        import struct

        dtype, bits = number
        try:
            place = ABSENT_EPOCH if epoch is None else epoch, ABSENT_STEP if step is None else step
            series = self.series(identity, kind, name, dtype)
            return bool(series) and self._append(struct.pack(RECORD, series, self._lines, *place, bits))
        except (struct.error, OSError, AttributeError):  # a huge step, a full disk, or no posix_fallocate
            return False

    def series(self, identity: str, kind: str, name: str, dtype: str) -> int:
        """Return the number of a series, which is declared with its first record; 0 if it cannot be."""
        number = self._series.get((kind, name, dtype))
        if number is None and (self._path or self._create(identity)):
            import struct

            self._declared += 1
            text = to_json([self._declared, kind, name, dtype]).encode()
            if len(text) > MAX_TEXT:
                return 0
            for at in range(0, len(text), 20):
                if not self._append(struct.pack(TEXT, 0, len(text) - at, text[at : at + 20])):
                    return 0
            number = self._series[kind, name, dtype] = self._declared
        return number or 0

    def struct_address(self) -> int:
        """Return the address of the struct for compiled code (native/python/number.c)."""
        import ctypes

        return ctypes.addressof(self._struct)

    def close(self) -> None:
        """Close the file for good, and cut off what was not used of it."""
        self._is_closed = True
        if self._struct is not None:
            used = self._window + self._struct[1]
            self._struct[0] = 0
            os.truncate(self._path, used)

    def _append(self, body: bytes) -> bool:
        import struct
        import zlib

        if self._is_closed or not self._struct[0]:
            return False
        if self._struct[1] + SIZE > self._struct[2]:
            self._map_window(self._window + self._struct[2])
        used = self._struct[1]
        record = struct.pack("<I", zlib.crc32(body) or 1) + body
        # An interrupt between these leaves zeros, which readers count: nothing is written over.
        self._struct[1] = used + SIZE
        self._memory[used : used + SIZE] = record
        return True

    def _create(self, identity: str) -> bool:
        """Create the file, unless ctypes is not loaded: a loss must not load it. Return whether that worked."""
        if self._is_closed or "ctypes" not in sys.modules:
            return False
        import struct
        import zlib

        self._is_closed = True  # until the file is mapped
        make_directory(self._directory)
        name = identity.encode("utf-8", "backslashreplace")
        for number in range(MAX_FILES):
            path = f"{self._directory}/{zlib.crc32(name):016x}-{number}.numbers"
            try:
                os.close(os.open(path, _NEW, 0o600))
            except FileExistsError:
                continue
            self._path = path
            self._map_window(0)
            facts = struct.pack(HEAD, b"RKNUMBER", FORMAT, number, os.getpid(), name[:255], 0)[:-12]
            self._memory[:HEAD_SIZE] = facts + struct.pack("<I8x", zlib.crc32(facts))
            self._struct[1] = HEAD_SIZE
            self._is_closed = False
            return True
        return False

    def _map_window(self, start: int) -> None:
        """Append a window to the file, and map it where the window before it was."""
        if start + WINDOW > MAX_BYTES:
            raise OSError("there are too many numbers")
        import ctypes

        former = 0 if self._struct is None else self._struct[0]
        descriptor = os.open(self._path, _OLD)
        try:
            os.posix_fallocate(descriptor, start, WINDOW)  # as buffered_lines.map_new_file does
            address = map_part(descriptor, start, WINDOW, former or PREFERRED_ADDRESS, is_replaced=bool(former))
        finally:
            os.close(descriptor)
        if not address:
            self._is_closed = True
            if self._struct is not None:
                self._struct[0] = 0  # the window before it may be gone
            raise OSError("the file cannot be mapped")
        if self._struct is None:
            self._memory = memoryview((ctypes.c_char * WINDOW).from_address(address)).cast("B")
            self._struct = (ctypes.c_uint64 * 4)(address, 0, WINDOW, self._lines)
        self._window, self._struct[1] = start, 0
