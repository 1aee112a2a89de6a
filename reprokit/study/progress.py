"""Reports the progress of a study: what has ended, and the time and disk space that the rest will take."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean

from reprokit.core.errors import StudyTooLarge
from reprokit.core.printable import printable
from reprokit.study.description import Study
from reprokit.study.results import PairResult, RunResult
from reprokit.study.wording import size

SPARE = 16 << 20  # bytes of the disk that stay free
SHOWN = 200  # characters of the reason why a run failed


class StudyProgress:
    """Counts the runs of a study and estimates the remaining time."""

    def __init__(
        self,
        planned: Counter[str],
        made: Iterable[RunResult],
        parallel: int,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._left = Counter(planned)
        self.total = sum(planned.values())  # number of planned runs
        self._seconds: dict[str, list[float]] = {}
        self._parallel, self._say, self._clock = parallel, say, clock
        for one in made:
            self._count(one)
        self._began, self._spent = clock(), 0.0

    @property
    def made(self) -> int:
        """Return the number of ended runs."""
        return self.total - sum(self._left.values())

    def _count(self, run: RunResult) -> None:
        if self._left[run.setup] > 0:
            self._left[run.setup] -= 1
        if run.outcome != "lost" and run.seconds:
            self._seconds.setdefault(run.setup, []).append(run.seconds)

    def run_ended(self, run: RunResult) -> None:
        """Report the result of a run in one line."""
        self._count(run)
        self._spent += run.seconds
        how = f"{in_time(run.seconds)}" if run.outcome == "finished" else f"{run.outcome.upper()}, {run.ended}"
        left = self.left()
        rest = f"; about {in_time(left)} left" if left is not None and self.made < self.total else ""
        name = f"{run.setup}, pair {run.pair}, {run.part} run ({run.mode})"
        self._say(printable(f"{name}: {how[:SHOWN]} ({self.made} of {self.total} runs{rest})"))

    def pair_ended(self, pair: PairResult) -> None:
        """Report the result of a pair."""
        self._say(printable(f"{pair.setup}, pair {pair.pair}: {pair.words}"))

    def left(self) -> float | None:
        """Estimate the remaining seconds from the runs so far and the time between them."""
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
    """Return a duration for people."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


class DiskSpace:
    """Tracks the sizes of run directories, and estimates the disk space that further runs need."""

    def __init__(self, study: Study, directory: Path) -> None:
        self._study, self._directory = study, directory
        self._sizes: dict[tuple[str, str], int] = {}  # largest size by setup and part
        self._differed: set[str] = set()
        self._runs = 0

    def add(self, run: RunResult, on_disk: int = 0) -> None:
        """Add the size of a run, and of its directory if it is on this machine."""
        key = run.setup, run.part
        self._sizes[key] = max(self._sizes.get(key, 0), run.stored, on_disk)
        self._runs += 1

    def add_pair(self, pair: PairResult) -> None:
        """Add whether a pair differs, and is therefore kept."""
        if pair.identical is not True:
            self._differed.add(pair.setup)

    def of_pair(self, setup: str) -> int:
        """Return the bytes that a pair of this setup takes; of a setup without one, those of the largest pair."""
        of_setup: Counter[str] = Counter()
        for (name, _), taken in self._sizes.items():
            of_setup[name] += taken
        return of_setup[setup] or max(of_setup.values(), default=0)

    def needed(self, setups: Iterable[str]) -> int:
        """Return the largest number of bytes that the coming pairs, by the names of their setups, can take."""
        coming = list(setups)
        if not coming or not self._sizes:
            return 0
        kept_setups = {"all": set(coming), "different": self._differed}.get(self._study.keep, set())
        kept = sum(self.of_pair(name) for name in coming if name in kept_setups)
        beside = self._study.engine.parallel * max(map(self.of_pair, coming))
        return kept + beside + 2 * len(coming) * self._of_lines()

    def check(self, setups: Iterable[str]) -> None:
        """Raise StudyTooLarge if the coming pairs do not fit on the disk."""
        needed, free = self.needed(setups), self.free()
        if needed + SPARE > free:
            what = f"what is left of the study needs about {size(needed)}, and {size(free)} are free"
            raise StudyTooLarge(f"{self._directory}: {what}; make room, then start the same command again")

    def free(self) -> int:
        """Return the free bytes of the disk."""
        return shutil.disk_usage(self._directory).free

    def _of_lines(self) -> int:
        """Return the bytes that remain of a run in any case: its line and its predictions."""
        stays = 0
        for name in ("results.jsonl", "pairs.jsonl"):
            path = self._directory / name
            stays += path.stat().st_size if path.exists() else 0
        place = self._directory / "predictions"
        if place.is_dir():
            with os.scandir(place) as entries:
                stays += sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
        return stays // max(1, self._runs)
