"""How much of the disk a study will need, by what its first pairs took."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from reprokit.errors import StudyTooLarge
from reprokit.study.description import Study
from reprokit.study.results import PairResult, RunResult
from reprokit.study.wording import size

SPARE = 16 << 20  # bytes that are left to everybody else


class Room:
    """Knows the sizes of run directories so far."""

    def __init__(self, study: Study, directory: Path) -> None:
        self._study, self._directory = study, directory
        self._sizes: dict[tuple[str, str], int] = {}  # the largest, by setup and part
        self._differed: set[str] = set()
        self._runs = 0

    def add(self, run: RunResult, on_disk: int = 0) -> None:
        """Take in the size of a run, and of its directory if that is here."""
        key = run.setup, run.part
        self._sizes[key] = max(self._sizes.get(key, 0), run.stored, on_disk)
        self._runs += 1

    def add_pair(self, pair: PairResult) -> None:
        """Take in whether a pair is one of those that are kept if they differ."""
        if pair.identical is not True:
            self._differed.add(pair.setup)

    def of_pair(self, setup: str) -> int:
        """Bytes of a pair of this setup; of one that has none yet, of the largest there is."""
        of_setup: Counter[str] = Counter()
        for (name, _), taken in self._sizes.items():
            of_setup[name] += taken
        return of_setup[setup] or max(of_setup.values(), default=0)

    def needed(self, setups: Iterable[str]) -> int:
        """Bytes that the pairs to come, by the names of their setups, will take at most."""
        coming = list(setups)
        if not coming or not self._sizes:
            return 0
        kept = sum(self.of_pair(name) for name in coming if self._is_kept(name))
        beside = self._study.engine.parallel * max(map(self.of_pair, coming))
        return kept + beside + 2 * len(coming) * self._of_lines()

    def check(self, setups: Iterable[str]) -> None:
        """Raise StudyTooLarge where what is to come does not fit."""
        needed, free = self.needed(setups), self.free()
        if needed + SPARE > free:
            what = f"what is left of the study needs about {size(needed)}, and {size(free)} are free"
            raise StudyTooLarge(f"{self._directory}: {what}; make room, then start the same command again")

    def free(self) -> int:
        """Bytes of the disk that may be used."""
        return shutil.disk_usage(self._directory).free

    def _is_kept(self, setup: str) -> bool:
        return self._study.keep == "all" or (self._study.keep == "different" and setup in self._differed)

    def _of_lines(self) -> int:
        """Bytes that stay of a run whatever is kept: its line and its predictions."""
        stays = 0
        for name in ("results.jsonl", "pairs.jsonl"):
            path = self._directory / name
            stays += path.stat().st_size if path.exists() else 0
        place = self._directory / "predictions"
        if place.is_dir():
            with os.scandir(place) as entries:
                stays += sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
        return stays // max(1, self._runs)
