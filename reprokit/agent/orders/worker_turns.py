"""Turns of a pool's workers, which are processes: who takes the next task, and who hands in the next result.

While the run lasts, a track lies in a file of the run directory: a number for each turn, appended by the worker that
had it, under the lock of the pool's own queue. In a replay the file's size tells whose turn is next.
"""

from __future__ import annotations

import os
import time
from array import array
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from .tracks import Orders

SEAT = "_reprokit_seat"  # attribute of a Process
TRACKS = TAKES, RESULTS = "takes", "results"  # of a pool: who took a task, who handed in what came of it
GIVEN = ".given"  # behind the name of a track's file: its recorded turns
TURN = array("H").itemsize
PATIENCE = 10.0  # seconds for which a turn is waited for, and once more as long as the worker has lived
SHORTEST, LONGEST = 0.00005, 0.002  # seconds between two looks at whose turn it is
MAX_TURNS = 1 << 24
_READ = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class WorkerTurns:
    """The turns of one pool, as its parent knows them. Its actors are the workers by their numbers, from 1."""

    def __init__(self, orders: Orders, name: str, directory: str, file: str) -> None:
        self._orders = orders
        self._name = name
        self._directory = directory
        self._path = f"{directory}/{file}-"
        self._workers = 0
        self._had = {track: array("H") for track in TRACKS}
        self._given = {track: array("H", map(int, orders.given(f"{name} {track}"))) for track in TRACKS}
        os.makedirs(directory, 0o700, exist_ok=True)
        for track in TRACKS:
            _write(self._path + track, b"")
            if self._given[track]:
                _write(self._path + track + GIVEN, self._given[track].tobytes())
        orders.keep(self)

    def seat(self) -> tuple[str, int]:
        """Return what the next worker needs to know."""
        self._workers += 1
        return self._path, self._workers

    def write(self) -> None:
        """Write the tracks of a recording at the end of the process, and take their files away."""
        self._had = {track: read_turns(self._path + track) for track in TRACKS}
        for path in [self._path + track + end for track in TRACKS for end in ("", GIVEN)]:
            with suppress(OSError):
                os.unlink(path)
        with suppress(OSError):  # other pools have files there
            os.rmdir(self._directory)
        if not self._orders.is_replay:
            for track, turns in self._had.items():
                self._orders.write_turns(f"{self._name} {track}", turns)
        for of_track in self._had, self._given:
            _strip(of_track[TAKES], of_track[RESULTS])

    @property
    def exact(self) -> int:
        """How many turns were had by the worker that had them in the recording."""
        return sum(one == other for one, other in self._pairs())

    @property
    def moved(self) -> int:
        """How many were had by another worker."""
        return sum(one != other for one, other in self._pairs())

    @property
    def unused(self) -> int:
        """How many recorded turns nobody has had."""
        return sum(map(len, self._given.values())) - len(self._pairs())

    def _pairs(self) -> list[tuple[int, int]]:
        return [pair for track in TRACKS for pair in zip(self._given[track], self._had[track])]


class TurnLock:
    """A lock between workers, which notes whose turn it was and in a replay lets them in as in the recording."""

    def __init__(self, lock: Any, pool: str, track: str, worker: int) -> None:
        self._lock = lock
        self._pool = pool
        self._path = path = pool + track
        self._worker = worker
        self._turn = array("H", [worker]).tobytes()
        self._given = read_turns(path + GIVEN)
        self._began = time.monotonic()

    def acquire(self, block: bool = True, timeout: float | None = None) -> Any:
        """Acquire the lock; in a replay wait for the turn before."""
        if block and self._given:
            self._wait(timeout)
        return self._lock.acquire(block, timeout)

    def release(self) -> None:
        """Note the turn, and release the lock."""
        with suppress(OSError):  # the run directory is gone, or the disk is full
            descriptor = os.open(self._path, _APPEND)
            try:
                os.write(descriptor, self._turn)
            finally:
                os.close(descriptor)
        self._lock.release()

    def __enter__(self) -> Any:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _wait(self, timeout: float | None) -> None:
        """Wait until it is this worker's turn; no longer than asked for, and not for a worker that never comes."""
        began = now = time.monotonic()
        pause = SHORTEST
        while self._is_anothers():
            time.sleep(pause)
            pause = min(2 * pause, LONGEST)
            now = time.monotonic()
            if timeout is not None and now - began > timeout:
                return
            is_over = self._turns_taken() >= len(self._given)
            if self._lock._semlock._is_zero():
                began = now if timeout is None else began  # whose turn it is has come, and waits for a task itself
            elif now - began > PATIENCE + (0 if is_over else began - self._began):
                _give_up([self._path] if is_over else [self._pool + track for track in TRACKS])
                return

    def _turns_taken(self) -> int:
        try:
            return os.stat(self._path).st_size // TURN
        except OSError:
            return len(self._given)

    def _is_anothers(self) -> bool:
        """Return whether it is another worker's turn; a worker without one waited in the recording for its end."""
        turn = self._turns_taken()
        if turn < len(self._given):
            return self._given[turn] != self._worker
        return os.path.exists(self._path + GIVEN)


def _give_up(paths: Iterable[str]) -> None:
    """Let all workers come as they like from now on: the turns of these tracks that are left go to nobody."""
    for path in paths:
        with suppress(OSError), open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, os.stat(path + GIVEN).st_size)
        with suppress(OSError):
            os.unlink(path + GIVEN)


def take_seat(seat: tuple[str, int], takes_from: Any, gives_to: Any) -> None:
    """Put the locks of a worker's queues in order, in the worker: each takes the place of the one that it asks."""
    path, worker = seat
    for queue, name, track in ((takes_from, "_rlock", TAKES), (gives_to, "_wlock", RESULTS)):
        lock = getattr(queue, name, None)
        if lock is not None and os.path.exists(path + track):
            setattr(queue, name, TurnLock(lock, path, track, worker))
            remake = getattr(queue, "_make_methods", None)  # joblib's queues hold methods of their locks
            if remake is not None:
                remake()


def read_turns(path: str) -> array[int]:
    """Return the turns that a file holds; none where there is no such file."""
    turns = array("H")
    try:
        descriptor = os.open(path, _READ)
    except OSError:
        return turns
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(TURN * MAX_TURNS)
    turns.frombytes(data[: len(data) // TURN * TURN])
    return turns


def _strip(takes: array[int], results: Sequence[int]) -> None:
    """Drop turns at the end from which nothing came: to be sent home, which a pool's end may forestall."""
    left = {worker: takes.count(worker) - results.count(worker) for worker in set(takes)}
    while takes and left[takes[-1]] > 0:
        left[takes.pop()] -= 1


def _write(path: str, content: bytes) -> None:
    descriptor = os.open(path, _NEW, 0o600)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)
