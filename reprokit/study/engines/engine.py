"""What an engine is: it makes pairs somewhere, and tells what came of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from reprokit.errors import ReprokitError
from reprokit.study.attempt import PairTask
from reprokit.study.results import PairResult, RunResult


class Stop(Exception):
    """No further run is to begin. What is under way comes to its end, then the engine raises this."""

    def __init__(self, error: ReprokitError | None = None) -> None:
        super().__init__(str(error or ""))
        self.error = error


class Listener(Protocol):
    """Is told by an engine, in the thread that called it. It may raise Stop; anything else ends all runs at once."""

    def run_ended(self, run: RunResult) -> None:
        """A run has ended: its line is to be kept."""

    def pair_ended(self, task: PairTask, pair: PairResult) -> None:
        """Both runs of a pair were made and compared."""


class Engine(Protocol):
    """Where the pairs of a study are made. A pair is made on one machine, one run after the other."""

    def make(self, pairs: Iterator[PairTask], listener: Listener) -> None:
        """Make the pairs, in their order, each taken from the iterator (which may raise Stop) only when its turn comes.

        Raises Interrupted once what was under way has ended.
        """
