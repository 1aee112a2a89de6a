"""Finds a smallest part of a batch that still does what the whole does: bisection first, then delta debugging.

The method is ddmin of Zeller and Hildebrandt ("Simplifying and Isolating Failure-Inducing Input", 2002): what is left
at its end is 1-minimal, without any one of its samples it does not happen any more. Nothing is tried twice.
"""

from __future__ import annotations

from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Optional

    Samples = tuple[int, ...]
    Next = tuple[Optional[Samples], "SmallestPart"]

MAX_TRIALS = 1000


@dataclass(frozen=True)
class SmallestPart:
    """What a search has come to."""

    samples: Samples
    of: int
    trials: int
    smallest: bool  # no sample of it can be left out; False: the search has not come to its end

    @property
    def only_full(self) -> bool:
        """Whether it takes all samples of the batch."""
        return self.smallest and len(self.samples) == self.of

    def line(self) -> dict[str, object]:
        """As it stands in result.json."""
        return {**vars(self), "samples": list(self.samples), "only_full": self.only_full}


def next_part(
    count: int,
    known: Mapping[Samples, bool],
    leaves_out: Callable[[Samples], bool] = lambda samples: False,
    max_trials: int = MAX_TRIALS,
) -> Next:
    """Return the part to try next, which is None at the end of the search, and the smallest that is known to do it.

    The whole batch is taken for doing it; ``known`` tells of other parts; ``leaves_out`` tells those not to be tried.
    """
    best, parts = tuple(range(count)), 2
    while len(best) > 1:
        for part, following in _smaller(best, min(parts, len(best))):
            if part not in known and not leaves_out(part):
                wanted = part if len(known) < max_trials else None
                return wanted, SmallestPart(best, count, len(known), smallest=False)
            if known.get(part):
                best, parts = part, following
                break
        else:
            if parts >= len(best):
                break
            parts *= 2
    return None, SmallestPart(best, count, len(known), smallest=True)


def _smaller(samples: Samples, parts: int) -> Iterator[tuple[Samples, int]]:
    """The samples in so many parts, as equal as can be, then all but one part; and how many parts follow on each."""
    size, more = divmod(len(samples), parts)
    ends = [(number + 1) * size + min(number + 1, more) for number in range(parts)]
    chunks = [(start, end) for start, end in zip([0, *ends], ends)]
    for start, end in chunks:
        yield samples[start:end], 2
    for start, end in chunks if parts > 2 else ():  # of two each is the other's rest
        yield samples[:start] + samples[end:], max(parts - 1, 2)
