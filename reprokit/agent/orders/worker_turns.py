"""Turns of processes: which worker of a pool takes the next task, and who has the next turn under a lock.

During the run a track is a file in the run directory: a number for each turn, appended by the process that had it,
under the lock itself. In a replay the size of the file gives the next turn.
"""

from __future__ import annotations

import os
import time
from array import array
from contextlib import suppress
from functools import partial
from posix import listdir  # not os.listdir, which the agent replaces to observe the training

from .turns import Choices
from .waits import GIVE_UP_AFTER, GRACE, TIMEOUT, Wait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .tracks import Orders

SEAT = "_reprokit_seat"  # attribute of a Process
TRACKS = TAKES, RESULTS = "takes", "results"  # of a pool: which worker took a task, which one delivered its result
RECORDED = ".given"  # suffix of the file with a track's recorded turns, in a replay
PROCESSES = ".processes"  # suffix of the file with pairs of an actor and its process id, in a replay
NOBODY = -1
TIMEOUTS_FILE = "lost"  # file beside the tracks: one byte for each timeout of any process
RECURSIVE = 0  # kind of a semaphore
KIND = "I"
TURN = array(KIND).itemsize
SHORTEST_PAUSE, LONGEST_PAUSE = 0.00005, 0.002  # seconds between two polls of a track's size
MAX_TURNS = 1 << 24
_READ = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class WorkerTurns:
    """The turns of one pool or lock, in the process that created it.

    Actors of a pool are its workers' numbers, from 1. Actors of a lock are checksums of process and thread names.
    """

    def __init__(self, orders: Orders, name: str, directory: str, file: str, tracks: Sequence[str] = TRACKS) -> None:
        self._orders = orders
        self._name = name
        self._directory = directory
        self._path = f"{directory}/{file}-"
        self._workers = 0
        self._turns = {track: array(KIND) for track in tracks}
        self._recorded = {track: array(KIND, map(int, orders.recorded_actors(f"{name} {track}"))) for track in tracks}
        os.makedirs(directory, 0o700, exist_ok=True)
        for track in tracks:
            _write(self._path + track, b"")
            if self._recorded[track]:
                _write(self._path + track + RECORDED, self._recorded[track].tobytes())
        orders.register(self)

    def next_worker(self) -> tuple[str, int]:
        """Return the path prefix of the tracks and the number of the next worker."""
        self._workers += 1
        return self._path, self._workers

    def write(self) -> None:
        """At the end of the process: write the tracks if this is a recording, and remove their files."""
        self._turns = {track: read_turns(self._path + track) for track in self._turns}
        for path in [self._path + track + suffix for track in self._turns for suffix in ("", RECORDED, PROCESSES)]:
            with suppress(OSError):
                os.unlink(path)
        with suppress(OSError):
            if listdir(self._directory) == [TIMEOUTS_FILE]:
                os.unlink(f"{self._directory}/{TIMEOUTS_FILE}")
        with suppress(OSError):  # not empty: other processes have files there
            os.rmdir(self._directory)
        is_pool = TAKES in self._turns
        for track, turns in self._turns.items():
            if not self._orders.is_replay and (is_pool or len(set(turns)) > 1):
                self._orders.write_turns(f"{self._name} {track}", turns)
        for tracks in (self._turns, self._recorded) if is_pool else ():
            _strip_stop_requests(tracks[TAKES], tracks[RESULTS])

    @property
    def exact(self) -> int:
        """The number of turns taken by the same worker as in the recording."""
        return sum(recorded == actual for recorded, actual in self._pairs())

    @property
    def moved(self) -> int:
        """The number of turns taken by another worker than in the recording."""
        return sum(recorded != actual for recorded, actual in self._pairs())

    @property
    def unused(self) -> int:
        """The number of recorded turns that were not taken."""
        return sum(map(len, self._recorded.values())) - len(self._pairs())

    def _pairs(self) -> list[tuple[int, int]]:
        return [pair for track in self._turns for pair in zip(self._recorded[track], self._turns[track])]


class TurnLock:
    """Wraps a lock's semaphore: records which process acquired it, and in a replay enforces the recorded order."""

    def __init__(
        self,
        orders: Orders,
        lock: Any,
        path: str,
        actor: Callable[[], int],
        tracks: Sequence[str] = (),
        choices: Callable[[str], Choices | None] = lambda _: None,
    ) -> None:
        self._orders = orders
        self._lock = lock
        self._path = path
        self._is_of_pool = bool(tracks)
        self._tracks = tracks or (path,)  # no longer enforced once a turn has timed out
        self._actor = actor
        self._choices = choices  # outcomes of acquiring without blocking or with a timeout
        self._recorded = read_turns(path + RECORDED)
        self._since = time.monotonic()
        self._written = 0  # turns, by this process
        self._named: set[int] = set()  # actors of this process that others know
        self._timeouts_file = f"{os.path.dirname(path)}/{TIMEOUTS_FILE}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Acquire the lock; in a replay wait for this process' turn first."""
        if self._lock.kind == RECURSIVE and self._lock._is_mine():
            return bool(self._lock.acquire(block, timeout))
        choices = self._choices("acquire") if not block or timeout is not None else None
        if choices is None:
            return self._acquire(block, timeout)
        text = choices.next() if choices.is_replay else None
        if text in ("0", "1"):
            acquire = partial(self._acquire, True, is_in_turn=True)
            whom = "the process that had it"
            is_acquired = text == "1" and choices.until(acquire, whom, least=timeout or 0.0, is_external=True)
            return bool(is_acquired or (text == "1" and self._acquire(False, None)))
        is_acquired = self._acquire(block, timeout)
        if not choices.is_replay:
            choices.note(str(int(is_acquired)))
        return is_acquired

    def _acquire(self, block: bool, timeout: float | None, *, is_in_turn: bool = False) -> bool:
        """Acquire the lock and note the turn; with is_in_turn never before the turn of another one that may come."""
        actor = self._actor()
        if self._recorded and actor not in self._named:
            self._named.add(actor)
            _append(self._path + PROCESSES, array(KIND, [actor, int(os.readlink("/proc/self"))]).tobytes(), os.O_CREAT)
        if block and self._recorded and not self._wait(actor, timeout) and is_in_turn:
            return False
        if not self._lock.acquire(block, timeout):
            return False
        if not self._is_of_pool:
            self._note(actor)
        return True

    def release(self) -> None:
        """Release the lock. In a pool this records the turn: a worker that holds the lock may still wait for a task."""
        if self._is_of_pool:
            self._note(self._actor())
        self._lock.release()

    def _note(self, actor: int) -> None:
        if self._written < MAX_TURNS:
            self._written += 1
            _append(self._path, array(KIND, [actor]).tobytes())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _wait(self, actor: int, timeout: float | None) -> bool:
        """Wait until it is this actor's turn, or the expected actor is given up; return whether that was in time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        awaited = self._awaited(actor)
        while awaited is not None and self._has_turned(actor, awaited, deadline):
            awaited = self._awaited(actor)
            if awaited is not None and deadline is not None and time.monotonic() > deadline:
                return False
        return True

    def _has_turned(self, actor: int, awaited: int, deadline: float | None) -> bool:
        """Wait for the turn of another actor, until the deadline; return whether it was not given up."""
        pause, whom = SHORTEST_PAUSE, f"worker {awaited}" if self._is_of_pool else "another process"
        with Wait(self._orders, os.path.basename(self._path), whom, is_external=True) as wait:
            if self._is_of_pool:
                wait.allow(TIMEOUT + time.monotonic() - self._since)
            while self._awaited(actor) == awaited:
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                if deadline is not None and time.monotonic() > deadline:
                    break
                if not self._lock._is_zero():
                    if self._is_over(wait, awaited) and self._awaited(actor) == awaited:  # it may have come just now
                        self._give_up()
                        return False
                elif deadline is None:
                    wait.restart()  # the expected actor has the lock, and waits for a task
        return True

    def _is_over(self, wait: Wait, awaited: int) -> bool:
        """Return whether the expected actor is given up: at once if its process has ended."""
        timeouts = _size(self._timeouts_file)
        if timeouts and wait.seconds > (GRACE if timeouts < GIVE_UP_AFTER else 0.0):
            return True
        if awaited == NOBODY:
            return wait.seconds > TIMEOUT
        return wait.is_over() or (wait.is_time_to_look() and self._has_ended(awaited))

    def _has_ended(self, awaited: int) -> bool:
        """Return whether all processes that were this actor have ended."""
        known = read_turns(self._path + PROCESSES)
        processes = [process for actor, process in zip(known[::2], known[1::2]) if actor == awaited]
        return bool(processes) and not any(map(_is_alive, processes))

    def _give_up(self) -> None:
        """Stop enforcing the order: the remaining recorded turns go to no actor."""
        is_last = self._turn() >= len(self._recorded)
        if not is_last:
            _append(self._timeouts_file, b"\n", os.O_CREAT)
        for path in (self._path,) if is_last else self._tracks:
            with suppress(OSError), open(path, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, os.stat(path + RECORDED).st_size)
            with suppress(OSError):
                os.unlink(path + RECORDED)

    def _turn(self) -> int:
        return _size(self._path) // TURN

    def _awaited(self, actor: int) -> int | None:
        """Return which other actor has the next turn; after the last one NOBODY, as all wait as in the recording."""
        turn = self._turn()
        if turn < len(self._recorded):
            return None if self._recorded[turn] == actor else self._recorded[turn]
        return NOBODY if os.path.exists(self._path + RECORDED) else None


def watch_worker(orders: Orders, path_and_worker: tuple[str, int], tasks: Any, results: Any) -> None:
    """In a worker process: wrap the locks of its task and result queues, to record or enforce turns."""
    path, worker = path_and_worker
    for queue, name, track in ((tasks, "_rlock", TAKES), (results, "_wlock", RESULTS)):
        lock = getattr(queue, name, None)
        if lock is not None and os.path.exists(path + track):
            tracks = [path + track for track in TRACKS]
            watch_lock(lock, TurnLock(orders, lock._semlock, path + track, lambda: worker, tracks))
            remake = getattr(queue, "_make_methods", None)  # joblib's queues keep bound methods of their locks
            if remake is not None:
                remake()


def watch_lock(lock: Any, semaphore: TurnLock) -> None:
    """Replace the semaphore of a lock of multiprocessing or loky."""
    lock._semlock = semaphore
    lock._make_methods()


def read_turns(path: str) -> array[int]:
    """Return the turns in a file; none if it cannot be opened."""
    turns = array(KIND)
    try:
        descriptor = os.open(path, _READ)
    except OSError:
        return turns
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(TURN * MAX_TURNS)
    turns.frombytes(data[: len(data) // TURN * TURN])
    return turns


def _strip_stop_requests(takes: array[int], results: Sequence[int]) -> None:
    """Drop turns at the end that have no result: stop requests, which workers may not take before the pool ends."""
    unanswered = {worker: takes.count(worker) - results.count(worker) for worker in set(takes)}
    while takes and unanswered[takes[-1]] > 0:
        unanswered[takes.pop()] -= 1


def _append(path: str, content: bytes, flags: int = 0) -> None:
    with suppress(OSError):  # the run directory was removed, or the disk is full
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


def _is_alive(process: int) -> bool:
    """Return whether a process exists and is more than a status that its parent has not asked for."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[:1] != [b"Z"]
    except OSError:
        return False
