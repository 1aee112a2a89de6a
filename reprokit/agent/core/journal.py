"""Writes this process's lines of metrics.jsonl: whole lines with one write, so that they never mix and survive SIGKILL.

The file is opened and closed each time. A descriptor that stayed open would change the numbers of the program's own
descriptors. It could also be closed, or written to by mistake, in programs that close or replace unknown descriptors.
Opening takes longer than the rest of a loss, and is slow under strace. So the lines of steps are buffered where SIGKILL
cannot lose them (buffered_lines.py). When they are flushed depends on the lines alone, not on the clock: a replay must
do what the recording did.
"""

from __future__ import annotations

import itertools
import os
import time
from _thread import allocate_lock
from functools import partial

from .buffered_lines import BufferedLines
from .json_text import to_json
from .launch_plan import read_plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

MAX_LINE = 15 << 20  # bytes; readers reject lines of 16 MiB
BUFFERED_KINDS = frozenset(["loss", "log", "epoch", "weights", "collective"])  # they come with each step or epoch
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
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
        self._loss_heads: dict[str, tuple[bytes, bytes]] = {}  # constant parts of loss lines, by the loss's name
        self._put_loss: Callable[..., bool] | None = None  # compiled code that appends a loss to the buffer
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
        if self._identity is None:
            self._name_fork()
        if not (aside or self._announced):
            self._announced = True
            if self.first_write_of_fork is not None:
                self.first_write_of_fork()
        line = self._line(kind, text)
        if len(line) > MAX_LINE:
            line = self._line("warning", _text({"text": f"a {kind} line of {len(line)} bytes was left out"}))
        self.written = self.written or not aside
        self._write_line(kind in BUFFERED_KINDS, line)

    def write_loss(self, name: str, step: int, dtype: str, number: Any) -> None:
        """Append the line of a loss like write(), but by one compiled call, as it is part of each step's time."""
        head = self._loss_heads.get(name)
        if head is None or not self._put_loss(self._lock, self._numbers, self._epoch, *head, step, dtype, number):  # type: ignore[misc]
            from .exact_values import from_number

            self.write("loss", {"name": name, "step": step, "value": from_number(dtype, number)})
            if head is None:
                self._prepare_losses(name)

    def _prepare_losses(self, name: str) -> None:
        """Prepare compiled code to write the loss lines of this name, if it is available."""
        address = self._buffer.struct_address()
        if address and self._put_loss is None:
            from .native_module import load
            from .trail_library import path_of

            module = load(path_of(self._run))
            self._put_loss = None if module is None else partial(module.loss_line, address)
        if address and self._put_loss is not None:
            head = f'{{"k":"loss","p":{self._quoted},"n":', f',"name":{to_json(name)},"step":'
            self._loss_heads[name] = head[0].encode(), head[1].encode()

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
            except OSError:  # the buffer's file is already gone
                pass
            finally:
                self._lock.release()

    def _line(self, kind: str, text: str) -> bytes:
        # Formatted by hand, as this takes half of a loss's time.
        start = f'{{"k":"{kind}","p":{self._quoted},"n":{next(self._numbers)},"t":{self._epoch + time.monotonic():.6f}'
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
        self._loss_heads, self._put_loss = {}, None
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
