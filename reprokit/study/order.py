"""In which order the pairs of a study are made, so that a machine that drifts favours no setup."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from reprokit.study.description import Study


class PairPlace(msgspec.Struct, frozen=True, array_like=True):
    """One pair in the order: the round is the number of the pair."""

    pair: Annotated[int, msgspec.Meta(ge=1)]
    setup: str


def planned(study: Study) -> list[PairPlace]:
    """Rounds, in each of which every setup makes one pair.

    Rounds go by the rows of a Williams design: over as many rounds as there are setups (twice as many where their
    number is odd) each setup stands at every place, and behind every other one, equally often. Fewer rounds come as
    near as they can.
    """
    names = [setup.name for setup in study.setup]
    rows = list(_balanced(len(names)))
    return [PairPlace(number + 1, names[one]) for number in range(study.pairs) for one in rows[number % len(rows)]]


def _balanced(count: int) -> Iterator[list[int]]:
    """The rows of a Williams design: 0, 1, n-1, 2, n-2, ..., shifted; of an odd number also backwards."""
    first = [0] * count
    for place in range(1, count):
        first[place] = (place + 1) // 2 if place % 2 else count - place // 2
    for shift in range(count):
        row = [(one + shift) % count for one in first]
        yield row
        if count % 2:
            yield row[::-1]
