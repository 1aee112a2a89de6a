"""Passes recorded seeds and orders to a replay's agents: seeds.jsonl and orders.jsonl, made from metrics.jsonl."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from reprokit.core.errors import ReprokitError, RunDamaged
from reprokit.run.orders import MAX_SIZE as MAX_ORDERS
from reprokit.run.orders import OrdersByProcess
from reprokit.run_files import rundir
from reprokit.run_files.rundir import RunDirectory

MAX_SIZE = 16 << 20  # bytes of seeds.jsonl
MAX_LINE = 24 << 10  # bytes of a line of it; seeds of the agent are shorter
MAX_PROCESSES = 100_000
MAX_READ = 1 << 30  # bytes read of metrics.jsonl before the start
MAX_DEPTH = 10  # nesting of a seed's JSON value
LONGEST_INTEGER = 1 << 63
_END = b"\n" * 257  # an agent that reads the last line is told of more bytes than Python has ints of without memory

_FIRST_LINE = re.compile(rb'\{"k":"[a-z_]{1,32}","p":("(?:[^"\\]|\\.){0,600}"),"n":0,')


class RecordedSeed(msgspec.Struct, frozen=True):
    """The fields of a seed's line that are needed to set the same seed again."""

    p: str
    call: str
    where: str | None
    value: Any = msgspec.UNSET  # unset for a seed that cannot be replayed
    thread: str = ""


class SeedsByProcess:
    """The recorded seeds of each process, in the order of their lines."""

    def __init__(self) -> None:
        self._processes: dict[str, list[bytes]] = {}
        self._numbers: dict[tuple[str, str, str, str], int] = {}
        self._started_processes: set[bytes] = set()
        self.twice: set[str] = set()  # identities that several processes share: their seeds cannot be told apart
        self._size = 1 + len(_END)
        self.left_out = 0
        self.damaged = 0  # complete lines with an invalid seed
        self.is_cut = False  # whether the file is longer than MAX_READ

    def take(self, line: bytes) -> None:
        """Process one line of metrics.jsonl of any kind."""
        first_line = _FIRST_LINE.match(line)
        if first_line is not None:
            self._note_start(first_line[1])
        if not line.startswith(b'{"k":"seed",'):
            return
        try:
            self._add(msgspec.json.decode(line, type=RecordedSeed))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self.damaged += line.endswith(b"\n")

    def _note_start(self, process: bytes) -> None:
        if process in self._started_processes:
            self.twice.add(json.loads(process))
        elif len(self._started_processes) < MAX_PROCESSES:
            self._started_processes.add(process)

    def _add(self, seed: RecordedSeed) -> None:
        where = seed.where or ""
        key = (seed.p, seed.thread, seed.call, where)
        number = self._numbers.get(key, 0)
        self._numbers[key] = number + 1
        if seed.value is msgspec.UNSET:
            return
        _require_valid(seed.value)
        line = [seed.p, seed.thread, number, seed.call, where, seed.value]
        text = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        if len(text) > MAX_LINE or self._size + len(text) > MAX_SIZE:
            self.left_out += 1
            return
        self._size += len(text)
        self._processes.setdefault(seed.p, []).append(text)

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of seeds.jsonl: a line feed first, so that each line is between two; _END last."""
        yield b"\n"
        for process, lines in self._processes.items():
            if process not in self.twice:
                yield from lines
        yield _END


def _require_valid(value: Any, depth: int = 0) -> None:
    """Raise ValueError for what no agent writes: numbers beyond 64 bits, fractions, deeply nested lists."""
    if depth > MAX_DEPTH or isinstance(value, float):
        raise ValueError("no seed")
    if isinstance(value, int) and not -LONGEST_INTEGER <= value < LONGEST_INTEGER:
        raise ValueError("no seed")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _require_valid(item, depth + 1)


def hand_on(recording: Path, directory: Path, *, force: bool = False) -> str:
    """Write seeds.jsonl and orders.jsonl of a replay; return a warning if some cannot be replayed.

    Raise RunDamaged if the recorded ones cannot be read, unless `force` allows to replay without them.
    """
    seeds, orders = SeedsByProcess(), OrdersByProcess()
    problem = ""
    try:
        run = RunDirectory(recording)
        if run.run.continues is not None and run.has(rundir.ORDERS):
            orders.take_given(run.read(rundir.ORDERS, MAX_ORDERS))
        _read(run, seeds, orders)
    except (ReprokitError, OSError) as error:
        if not force:
            raise RunDamaged(
                f"the recorded seeds cannot be given again: {error}; --force replays without them"
            ) from None
        seeds, orders = SeedsByProcess(), OrdersByProcess()
        problem = f"the recorded seeds cannot be read, so that none is given again: {error}"
    _write(directory / rundir.SEEDS, seeds.lines())
    if len(tracks := list(orders.lines(seeds.twice))) > 1:  # agents only check whether the file exists
        _write(directory / rundir.ORDERS, tracks)
    if orders.left_out:
        problem = f"{orders.left_out} lines of recorded orders are too many to be given again"
    if seeds.left_out:
        problem = f"{seeds.left_out} recorded seeds are too many or too long to be given again"
    if seeds.is_cut:
        problem = (
            f"{rundir.METRICS} of the recording is larger than {MAX_READ} bytes: seeds behind them are not given again"
        )
    return problem


def _write(path: Path, lines: Iterable[bytes]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.writelines(lines)


def _read(recording: RunDirectory, seeds: SeedsByProcess, orders: OrdersByProcess) -> None:
    sealed, path = recording.run.metrics, recording.path / rundir.METRICS
    if sealed is None and not recording.has(rundir.METRICS):
        return
    digest, size = hashlib.sha256(), 0
    with os.fdopen(recording.open(rundir.METRICS), "rb", buffering=1 << 18) as file:
        while size < MAX_READ and (line := file.readline(rundir.MAX_LINE)):
            size += len(line)
            digest.update(line)
            seeds.take(line)
            orders.take(line)
        seeds.is_cut = bool(file.read(1))
    if sealed is not None and not seeds.is_cut and sealed.digest != "sha256:" + digest.hexdigest():
        raise RunDamaged(f"{path} was altered since the run ended")
    if damaged := seeds.damaged + orders.damaged:
        raise RunDamaged(f"{path} holds {damaged} lines of seeds or orders that cannot be read")
