"""Writes this process's lines of metrics.jsonl: whole lines with one write, so that they never mix and survive SIGKILL.

The file is opened and closed each time. A descriptor that stayed open would change the numbers that the program gets
for its own, and would be lost or worse, written to by mistake, in programs that close or replace all descriptors they
do not know. As that takes longer than the rest of a loss, and each open is a stop where strace watches, the lines of
each step wait for each other where SIGKILL cannot take them (buffered_lines.py). They are written by their number
alone, not by the clock: a replay must do what the recording did.
"""

from __future__ import annotations

import itertools
import os
import time
from _thread import allocate_lock

from .buffered_lines import HeldLines
from .json_text import to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

MAX_LINE = 15 << 20  # readers refuse lines of 16 MiB
HELD = frozenset(["loss", "log", "epoch", "weights", "collective"])  # kinds of lines that come with each step or epoch
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
_FLAGS |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # a FIFO in its place is not waited for


class Journal:
    """The lines of one process, numbered from 0."""

    def __init__(self, run: str, identity: str) -> None:
        self._run = run
        self._path = run + "/metrics.jsonl"
        self._environment_identity = identity
        self._identity: str | None = identity
        self._quoted = to_json(identity)
        self._numbers = itertools.count()  # next() on it is atomic, and safe inside a finalizer as no lock is
        # Read once: with record --clock, each read takes one that was recorded for the training.
        self._epoch = time.time() - time.monotonic()
        self._broken = False
        self._held = HeldLines(run)
        self._loss_heads: dict[str, tuple[bytes, bytes]] = {}  # parts of lines, by the name of the losses
        self._put_loss: Callable[..., bool] | None = None  # by compiled code, once there is a place for it
        self._guard = allocate_lock()
        self._announced = True
        self.written = False
        self.first_write_of_fork: Callable[[], None] | None = None
        self._forks: int | None = None  # counted here where there is no shim
        self._forked_as = ""

    def name_processes(self) -> None:
        """Without the shim: count this process's forks, and let programs that it starts have another name."""
        self._forks = 0
        os.environ["REPROKIT_ID"] = self.identity + "/started"
        os.register_at_fork(before=self._before_fork)

    def _before_fork(self) -> None:
        self._forks = (self._forks or 0) + 1
        self._forked_as = f"{self.identity}/{self._forks}"

    @property
    def identity(self) -> str:
        """The name of this process."""
        if self._identity is None:
            self._name_fork()
        return self._identity or ""

    @property
    def known_identity(self) -> str:
        """The name of this process; empty in a forked child in which nobody has asked for it, as that takes long."""
        return self._identity or ""

    def write(self, kind: str, fields: Mapping[str, object], *, aside: bool = False) -> None:
        """Append one line; a file that cannot be written is given up silently.

        A line written aside does not make a forked child one that has something to tell at its end.
        """
        self.write_text(kind, _text(fields), aside=aside)

    def write_text(self, kind: str, text: str, *, aside: bool = False) -> None:
        """Append one line, as write() does, whose fields are text already: `,"key":value`."""
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
        self._take(kind in HELD, line)

    def write_loss(self, name: str, step: int, dtype: str, number: Any) -> None:
        """Append the line of a loss, as write() would: by one call, as each step of a training pays for it."""
        head = self._loss_heads.get(name)
        if head is None or not self._put_loss(self._guard, self._numbers, self._epoch, *head, step, dtype, number):  # type: ignore[misc]
            from .exact_values import from_number

            self.write("loss", {"name": name, "step": step, "value": from_number(dtype, number)})
            if head is None:
                self._prepare(name)

    def _prepare(self, name: str) -> None:
        """Have compiled code write the lines of this name, where there is any."""
        place = self._held.place()
        if place and self._put_loss is None:
            from functools import partial

            from ..trail_library import path_of
            from .native_module import load

            module = load(path_of(self._run))
            self._put_loss = None if module is None else partial(module.loss_line, place)
        if place and self._put_loss is not None:
            head = f'{{"k":"loss","p":{self._quoted},"n":', f',"name":{to_json(name)},"step":'
            self._loss_heads[name] = head[0].encode(), head[1].encode()

    def _take(self, may_wait: bool, line: bytes) -> None:
        if not self._guard.acquire(False):  # another thread writes, or a finalizer of ours interrupts a writing
            self._append(line)
            return
        try:
            self._hold_or_write(may_wait, line)
        finally:
            self._guard.release()

    def _hold_or_write(self, may_wait: bool, line: bytes) -> None:
        """What has waited comes before a line that does not wait."""
        held = self._held
        if may_wait and held.put(line):
            return
        if self._append(held.lines()):
            held.clear()
        if not (may_wait and held.put(line)):
            self._append(line)

    def close(self) -> None:
        """At the end of the process: nothing waits any more."""
        if self._guard.acquire(False):
            try:
                if self._append(self._held.lines()):
                    self._held.clear()
                self._held.close()
            except OSError:  # the file is gone already
                pass
            finally:
                self._guard.release()

    def _line(self, kind: str, text: str) -> bytes:
        # By hand, as this is half of what a training step pays for its loss.
        start = f'{{"k":"{kind}","p":{self._quoted},"n":{next(self._numbers)},"t":{self._epoch + time.monotonic():.6f}'
        return f"{start}{text}}}\n".encode()

    def _append(self, lines: Any) -> bool:
        """Write whole lines, and say whether that was done."""
        if not lines:
            return True
        if self._broken:
            return False
        try:
            descriptor = os.open(self._path, _FLAGS, 0o600)
        except OSError:
            return False
        try:
            whole = os.write(descriptor, lines) == len(lines)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        self._broken = not whole  # the disk is full: a further line would stick to the half of this one
        return whole

    def forget(self) -> None:
        """In a forked child: begin anew, under a name that is found when there is something to write."""
        self._identity = None
        if self._forks is not None:
            self._forks = 0
            os.environ["REPROKIT_ID"] = self._forked_as + "/started"
        self._numbers = itertools.count()
        self._held, self._guard = HeldLines(self._run), allocate_lock()
        self._loss_heads, self._put_loss = {}, None
        self._broken = self._announced = self.written = False

    def _name_fork(self) -> None:
        try:
            self._identity = self._forked_as or _identity_by_shim(self._run) or self._environment_identity + "/?"
        except Exception:  # no shim in this process
            self._identity = self._environment_identity + "/?"
        self._quoted = to_json(self._identity)


def _text(fields: Mapping[str, object]) -> str:
    return "".join([f',"{key}":{to_json(value)}' for key, value in fields.items()])


def _identity_by_shim(run: str) -> str:
    """Ask the shim, which counts forks; it is loaded already or it is not asked."""
    import ctypes
    import json

    with open(run + "/plan.json", encoding="utf-8") as file:
        path = json.load(file)["shim"]
    shim = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    shim.reprokit_process_identity.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
    buffer = ctypes.create_string_buffer(256)
    found = shim.reprokit_process_identity(buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace") if found else ""
