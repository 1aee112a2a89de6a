"""Finds a smallest part of a batch that still does what the whole does: bisection first, then delta debugging.

The method is ddmin of Zeller and Hildebrandt ("Simplifying and Isolating Failure-Inducing Input", 2002): what is left
at its end is 1-minimal, without any one of its samples it does not happen any more. Nothing is tried twice.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    Samples = tuple[int, ...]

MAX_TRIALS = 1000


class SmallestPart:
    """What a search came to."""

    def __init__(self, samples: Samples, of: int, trials: int, *, smallest: bool) -> None:
        self.samples = samples
        self.of = of
        self.trials = trials
        self.smallest = smallest  # no sample of it can be left out; False: the trials ran out before

    @property
    def only_full(self) -> bool:
        """Whether it takes all samples of the batch."""
        return self.smallest and len(self.samples) == self.of

    def line(self) -> dict[str, object]:
        """As it stands in result.json."""
        return {
            "samples": list(self.samples),
            "of": self.of,
            "trials": self.trials,
            "smallest": self.smallest,
            "only_full": self.only_full,
        }


class _EnoughError(Exception):
    """There were as many trials as there may be."""


class Search:
    """One search: what was tried, and what came of it."""

    def __init__(
        self,
        count: int,
        reproduces: Callable[[Samples], bool],
        known: Iterable[Sequence[Any]] = (),
        max_trials: int = MAX_TRIALS,
    ) -> None:
        self._count = count
        self._reproduces = reproduces
        self._max_trials = max_trials
        self.tried: dict[Samples, bool] = {tuple(samples): bool(did) for samples, did in known}
        self.trials = len(self.tried)
        self._best: Samples = tuple(range(count))

    def smallest(self) -> SmallestPart:
        """The smallest part; the whole batch is taken for reproducing."""
        try:
            self._reduce()
        except _EnoughError:
            return SmallestPart(self._best, self._count, self.trials, smallest=False)
        return SmallestPart(self._best, self._count, self.trials, smallest=True)

    def _reduce(self) -> None:
        parts = 2
        while len(self._best) > 1:
            chunks = _chunks(self._best, min(parts, len(self._best)))
            smaller = next(filter(self._does, chunks), None)
            if smaller is not None:
                self._best, parts = smaller, 2
                continue
            rest = next(filter(self._does, self._complements(chunks)), None)
            if rest is not None:
                self._best, parts = rest, max(parts - 1, 2)
                continue
            if parts >= len(self._best):
                return
            parts *= 2

    def _complements(self, chunks: list[Samples]) -> Iterable[Samples]:
        if len(chunks) == 2:  # each is the other's rest
            return
        for chunk in chunks:
            left_out = set(chunk)
            yield tuple(sample for sample in self._best if sample not in left_out)

    def _does(self, samples: Samples) -> bool:
        if samples not in self.tried:
            if self.trials >= self._max_trials:
                raise _EnoughError
            self.trials += 1
            self.tried[samples] = self._reproduces(samples)
        return self.tried[samples]


def _chunks(samples: Samples, parts: int) -> list[Samples]:
    """The samples in so many parts, as equal as can be."""
    size, more = divmod(len(samples), parts)
    found, start = [], 0
    for number in range(parts):
        end = start + size + (number < more)
        found.append(samples[start:end])
        start = end
    return found
