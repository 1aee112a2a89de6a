"""Chooses the engine that makes the pairs of a study: processes of this machine, or a scheduler of tasks."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol

from reprokit.core.errors import BadStudy, EngineUnusable, needed_for, reason
from reprokit.run.interruption import Interrupted, Interruption
from reprokit.study.description import Engine
from reprokit.study.engines.local import Stop
from reprokit.study.results import PairPlace

LOCAL: Final = "local"
OF_TERMINAL: Final = (signal.SIGINT, signal.SIGHUP)
POLL: Final = 0.2  # seconds between two looks at what is under way
MAX_LINE: Final = 500  # characters of what a library says


class Scheduler(Protocol):
    """Runs tasks on other machines, and starts one again whose worker died.

    Its module has the class, `check`, and the LIBRARY that both need.
    """

    def submit(self, name: str) -> None:
        """Have a worker call `tasks.work` for the task of this name."""

    def ended(self, name: str) -> str | None:
        """Return how a task has ended, empty if it was made; None while it waits or runs. Its end is told once."""

    def close(self) -> None:
        """Cancel what has not ended, and disconnect."""


class TaskBoard(Protocol):
    """A study that hands out pairs as tasks, and takes back what came of them."""

    directory: Path

    def places(self) -> Iterator[PairPlace]:
        """Yield the pairs that are to be made; may raise Stop."""

    def settle(self, place: PairPlace, words: str, since: float) -> bool | None:
        """Store what came of a task that ended so many seconds ago: whether a run of it is still to be made.

        None while that cannot be seen yet.
        """


@contextmanager
def apart_from_terminal() -> Iterator[None]:
    """Start workers in this context that Ctrl-C does not reach: it is for the study, which ends their tasks."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, OF_TERMINAL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def refused(what: str) -> Iterator[None]:
    """Raise EngineUnusable where a scheduler or its library refuses something in this context."""
    try:
        yield
    except Exception as error:
        raise EngineUnusable(f"{what}: {reason(error)[:MAX_LINE]}") from None


def check(settings: Engine) -> None:
    """Refuse an engine that cannot be used, before anything is executed."""
    if settings.kind != LOCAL:
        module = import_module(f"{__name__}.{settings.kind}")
        with needed_for(f'kind = "{settings.kind}"', module.LIBRARY):
            import_module(module.LIBRARY)
        module.check(settings)
    elif settings.address or settings.options:
        raise BadStudy('engine: address and options are not for kind = "local"')


def make(settings: Engine, study: TaskBoard) -> None:
    """Make the pairs of a study by the scheduler that it names; raises Interrupted after a signal, or Stop."""
    module = import_module(f"{__name__}.{settings.kind}")
    with Interruption(waits=True) as interruption:
        with closing(getattr(module, settings.kind.capitalize())(settings, study.directory)) as scheduler:
            stop = _make(scheduler, study, settings.parallel, interruption)
        if interruption.asked:
            raise Interrupted(interruption.asked)
    if stop is not None:
        raise stop


def _make(scheduler: Scheduler, study: TaskBoard, parallel: int, interruption: Interruption) -> Stop | None:
    """Keep so many tasks with the scheduler until none is left; return what stopped that before."""
    coming, again, stop = study.places(), list[PairPlace](), None
    working: dict[PairPlace, tuple[str, float] | None] = {}  # how each has ended, and when that was seen
    while not interruption.asked:
        try:
            while len(working) < parallel and stop is None:
                place = again.pop(0) if again else next(coming, None)
                if place is None:
                    break
                scheduler.submit(place.name)
                working[place] = None
        except Stop as stopped:
            stop = stopped
        if not working:
            break
        for place, end in list(working.items()):
            words = scheduler.ended(place.name) if end is None else end[0]
            if words is None:
                continue
            working[place] = _, ended = end or (words, time.monotonic())
            try:
                is_left = study.settle(place, words, time.monotonic() - ended)
            except Stop as stopped:
                stop, is_left = stop or stopped, False
            if is_left is not None:
                del working[place]
                again += [place] if is_left else []
        time.sleep(POLL)
    return stop
