"""Turns of processes: which worker of a pool takes the next task, and who has the next turn under a lock.

While the run lasts, a track lies in a file of the run directory: a number for each turn, appended by the process that
had it, under the lock itself. In a replay the file's size tells whose turn is next.
"""

from __future__ import annotations

import os
import time
from array import array
from contextlib import suppress
from posix import listdir  # not os.listdir, in whose place the agent sees what the training lists

from .turns import GRACE, LONGEST, MAX_LOST, PATIENCE, Choices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .tracks import Orders

SEAT = "_reprokit_seat"  # attribute of a Process
TRACKS = TAKES, RESULTS = "takes", "results"  # of a pool: who took a task, who handed in what came of it
GIVEN = ".given"  # behind the name of a track's file: its recorded turns
LOST = "lost"  # beside the tracks: a byte for each time that somebody did not come
RECURSIVE = 0  # kind of a semaphore
KIND = "I"
TURN = array(KIND).itemsize
SHORTEST_PAUSE, LONGEST_PAUSE = 0.00005, 0.002  # seconds between two looks at whose turn it is
MAX_TURNS = 1 << 24
_READ = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class WorkerTurns:
    """The turns of one pool or lock, as the process that made it knows them.

    The actors of a pool are its workers by their numbers, from 1; those of a lock are numbers that their names give.
    """

    def __init__(self, orders: Orders, name: str, directory: str, file: str, tracks: Sequence[str] = TRACKS) -> None:
        self._orders = orders
        self._name = name
        self._directory = directory
        self._path = f"{directory}/{file}-"
        self._workers = 0
        self._had = {track: array(KIND) for track in tracks}
        self._given = {track: array(KIND, map(int, orders.given(f"{name} {track}"))) for track in tracks}
        os.makedirs(directory, 0o700, exist_ok=True)
        for track in tracks:
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
        self._had = {track: read_turns(self._path + track) for track in self._had}
        for path in [self._path + track + end for track in self._had for end in ("", GIVEN)]:
            with suppress(OSError):
                os.unlink(path)
        with suppress(OSError):
            if listdir(self._directory) == [LOST]:
                os.unlink(f"{self._directory}/{LOST}")
        with suppress(OSError):  # others have files there
            os.rmdir(self._directory)
        is_pool = TAKES in self._had
        for track, turns in self._had.items():
            if not self._orders.is_replay and (is_pool or len(set(turns)) > 1):
                self._orders.write_turns(f"{self._name} {track}", turns)
        for of_track in (self._had, self._given) if is_pool else ():
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
        return [pair for track in self._had for pair in zip(self._given[track], self._had[track])]


class TurnLock:
    """A lock's semaphore, which notes whose turn it was and in a replay lets processes in as in the recording."""

    def __init__(
        self,
        lock: Any,
        path: str,
        actor: Callable[[], int],
        tracks: Sequence[str] = (),
        choices: Callable[[str], Choices | None] = lambda _: None,
    ) -> None:
        self._lock = lock
        self._path = path
        self._is_of_pool = bool(tracks)
        self._tracks = tracks or (path,)  # for which nobody waits any more once somebody has not come
        self._actor = actor
        self._choices = choices  # of whether the lock was had, where somebody does not wait for it without end
        self._given = read_turns(path + GIVEN)
        self._began = time.monotonic()
        self._noted = 0  # turns, by this process
        self._lost = f"{os.path.dirname(path)}/{LOST}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Acquire the lock; in a replay wait for the turn before."""
        if self._lock.kind == RECURSIVE and self._lock._is_mine():
            return bool(self._lock.acquire(block, timeout))
        choices = self._choices("acquire") if not block or timeout is not None else None
        if choices is None:
            return self._acquire(block, timeout)
        text = choices.next() if choices.is_replay else None
        if text in ("0", "1"):
            return text == "1" and self._acquire(True, max(timeout or 0.0, PATIENCE))
        is_acquired = self._acquire(block, timeout)
        if not choices.is_replay:
            choices.note(str(int(is_acquired)))
        return is_acquired

    def _acquire(self, block: bool, timeout: float | None) -> bool:
        actor = self._actor()
        if block and self._given:
            self._wait(actor, timeout)
        if not self._lock.acquire(block, timeout):
            return False
        if not self._is_of_pool:
            self._note(actor)
        return True

    def release(self) -> None:
        """Release the lock; a worker of a pool that waits for a task has no turn before it comes."""
        if self._is_of_pool:
            self._note(self._actor())
        self._lock.release()

    def _note(self, actor: int) -> None:
        if self._noted < MAX_TURNS:
            self._noted += 1
            _append(self._path, array(KIND, [actor]).tobytes())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _wait(self, actor: int, timeout: float | None) -> None:
        """Wait until it is this actor's turn; no longer than asked for, and not for one that never comes."""
        began = now = time.monotonic()
        pause = SHORTEST_PAUSE
        while self._is_anothers(actor):
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            now = time.monotonic()
            if timeout is not None and now - began > timeout:
                return
            if self._lock._is_zero():
                began = now if timeout is None else began  # whose turn it is has come, and waits for a task itself
            elif now - began > self._patience(began):
                self._give_up()
                return

    def _patience(self, began: float) -> float:
        """Return for how many seconds somebody is waited for who does not come; not so long once somebody has not."""
        lost = _size(self._lost)
        if lost or self._is_over():
            return PATIENCE if not lost else GRACE if lost < MAX_LOST else 0.0
        patience = PATIENCE + began - self._began
        return patience if self._is_of_pool else min(patience, LONGEST)

    def _give_up(self) -> None:
        """Let all come as they like from now on: the turns that are left go to nobody."""
        if not self._is_over():
            _append(self._lost, b"\n", os.O_CREAT)
        for path in (self._path,) if self._is_over() else self._tracks:
            with suppress(OSError), open(path, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, os.stat(path + GIVEN).st_size)
            with suppress(OSError):
                os.unlink(path + GIVEN)

    def _is_over(self) -> bool:
        return _size(self._path) // TURN >= len(self._given)

    def _is_anothers(self, actor: int) -> bool:
        """Return whether it is another one's turn; whoever has none waited in the recording for its end."""
        turn = _size(self._path) // TURN
        if turn < len(self._given):
            return self._given[turn] != actor
        return os.path.exists(self._path + GIVEN)


def take_seat(seat: tuple[str, int], takes_from: Any, gives_to: Any) -> None:
    """Put the locks of a worker's queues in order, in the worker."""
    path, worker = seat
    for queue, name, track in ((takes_from, "_rlock", TAKES), (gives_to, "_wlock", RESULTS)):
        lock = getattr(queue, name, None)
        if lock is not None and os.path.exists(path + track):
            tracks = [path + track for track in TRACKS]
            watch_lock(lock, TurnLock(lock._semlock, path + track, lambda: worker, tracks))
            remake = getattr(queue, "_make_methods", None)  # joblib's queues hold methods of their locks
            if remake is not None:
                remake()


def watch_lock(lock: Any, semaphore: TurnLock) -> None:
    """Put another semaphore into a lock of multiprocessing, or one of loky's."""
    lock._semlock = semaphore
    lock._make_methods()


def read_turns(path: str) -> array[int]:
    """Return the turns that a file holds; none where there is no such file."""
    turns = array(KIND)
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


def _append(path: str, content: bytes, flags: int = 0) -> None:
    with suppress(OSError):  # the run directory is gone, or the disk is full
        descriptor = os.open(path, _APPEND | flags, 0o600)
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _write(path: str, content: bytes) -> None:
    descriptor = os.open(path, _NEW, 0o600)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)
