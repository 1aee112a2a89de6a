"""The tasks of a study, a pair each, that any scheduler can run, and what came of them so far."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection, Iterable, Iterator

import msgspec

from reprokit.errors import EngineUnusable
from reprokit.study.attempt import PairTask
from reprokit.study.engines import worker
from reprokit.study.engines.engine import PairListener
from reprokit.study.engines.pair_orders import Desk, lost_words


class StudyTask(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `study tasks`."""

    task: str
    setup: str
    pair: int
    command: str  # for a shell, in any directory


class Outstanding(msgspec.Struct, frozen=True, kw_only=True):
    """Counts tasks that were handed out and have not come back."""

    at_work: int = 0
    not_begun: int = 0


def pairs_out(desk: Desk) -> Collection[tuple[str, int]]:
    """Setup and number of each pair that was handed out and has not come back."""
    return {(task.first.setup, task.first.pair) for task in map(desk.task, desk.names())}


def require_none_out(desk: Desk, words: str) -> None:
    """Refuse to make pairs that somebody else may be making."""
    count = len(desk.names())
    if count:
        raise EngineUnusable(f"{count} pairs of {words}")


def handed_out(desk: Desk, pairs: Iterable[PairTask]) -> Iterator[StudyTask]:
    """The tasks that nobody has begun: those of before, and these."""
    for name in desk.names():
        if desk.claim(name) is None:
            yield _line(desk, name, desk.task(name))
    for pair in pairs:
        yield _line(desk, desk.hand_out(pair), pair)


def _line(desk: Desk, name: str, pair: PairTask) -> StudyTask:
    command = shlex.join([sys.executable, "-m", worker.__name__, desk.place, name])
    return StudyTask(task=name, setup=pair.first.setup, pair=pair.first.pair, command=command)


def collect(desk: Desk, listener: PairListener, *, is_over: bool) -> Outstanding:
    """Take back what was done so far, in whichever order.

    Where nothing is at work any more, what has begun and not ended is lost, and what has not begun is forgotten.
    """
    at_work = not_begun = 0
    for name in desk.names():
        claim, ended = desk.claim(name), desk.ended(name)
        if claim is None:
            not_begun += not is_over
            if is_over:
                desk.forget(name)
        elif ended is None and not is_over:
            at_work += 1
        else:
            # A run whose other one was lost is handed out with the next tasks.
            desk.take_back(name, listener, lost_words(claim, ended, "the study's tasks are over"))
    return Outstanding(at_work=at_work, not_begun=not_begun)
