"""What is said while a study goes on: what has ended, how far it is, and the time that is left."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from statistics import fmean

from reprokit.printable import printable
from reprokit.study.results import PairResult, RunResult

SHOWN = 200  # characters of why a run failed


class StudyProgress:
    """Counts the runs of a study and says how long the others will take."""

    def __init__(
        self,
        planned: Counter[str],
        made: Iterable[RunResult],
        parallel: int,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._left = Counter(planned)
        self._total = sum(planned.values())
        self._seconds: dict[str, list[float]] = {}
        self._parallel, self._say, self._clock = parallel, say, clock
        for one in made:
            self._count(one)
        self._began, self._spent = clock(), 0.0

    @property
    def made(self) -> int:
        """How many runs there are."""
        return self._total - sum(self._left.values())

    @property
    def total(self) -> int:
        """How many there are to be."""
        return self._total

    def _count(self, run: RunResult) -> None:
        if self._left[run.setup] > 0:
            self._left[run.setup] -= 1
        if run.outcome != "lost" and run.seconds:
            self._seconds.setdefault(run.setup, []).append(run.seconds)

    def run_ended(self, run: RunResult) -> None:
        """Say what came of a run, in one line."""
        self._count(run)
        self._spent += run.seconds
        how = f"{in_time(run.seconds)}" if run.outcome == "finished" else f"{run.outcome.upper()}, {run.ended}"
        left = self.left()
        rest = f"; about {in_time(left)} left" if left is not None and self.made < self._total else ""
        name = f"{run.setup}, pair {run.pair}, {run.part} run ({run.mode})"
        self._say(printable(f"{name}: {how[:SHOWN]} ({self.made} of {self._total} runs{rest})"))

    def pair_ended(self, pair: PairResult) -> None:
        """Say what came of a pair."""
        self._say(printable(f"{pair.setup}, pair {pair.pair}: {pair.words}"))

    def left(self) -> float | None:
        """Seconds that the runs to come will take, by what those before took, with what lies between them."""
        known = [seconds for several in self._seconds.values() for seconds in several]
        if not known:
            return None
        usual = fmean(known)
        means = {setup: fmean(several) for setup, several in self._seconds.items()}
        alone = sum(count * means.get(setup, usual) for setup, count in self._left.items())
        busy = (self._clock() - self._began) * self._parallel
        factor = max(1.0, busy / self._spent) if self._spent else 1.0
        return alone * factor / self._parallel


def in_time(seconds: float) -> str:
    """A duration for people."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
