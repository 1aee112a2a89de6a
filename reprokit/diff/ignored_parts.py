"""Collects the parts of a file that differ and are ignored as the user declared: the first named, the rest counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from reprokit.core.difference import Difference, IgnoredCount, Verdict, counts_of_ignored


class IgnoredParts:
    """The ignored parts of one file."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._named: list[tuple[int, Difference]] = []
        self._further: Counter[IgnoredCount] = Counter()
        self.count = 0

    def add(self, difference: Difference, position: int = 0) -> None:
        """Add a part whose verdict is IGNORED, which has parts of its own where it is a file."""
        self.count += 1
        if len(self._named) < self._most:
            self._named.append((position, difference))
        else:
            self._further.update(counts_of_ignored(difference))

    def children(self, name: str) -> Iterator[tuple[int, Difference]]:
        """Yield the named parts with their positions, and one that stands for the rest, behind all others."""
        yield from self._named
        if self._further:
            ignored = tuple(
                IgnoredCount(one.rule, one.thing, one.count * times) for one, times in self._further.items()
            )
            title = f"{name}: {self.count - len(self._named)} more ignored"
            yield 1 << 62, Difference(title, Verdict.IGNORED, detail="not named one by one", ignored=ignored)

    @property
    def words(self) -> str:
        """Return how many there are; empty if none."""
        return f"{self.count} ignored as declared" if self.count else ""
