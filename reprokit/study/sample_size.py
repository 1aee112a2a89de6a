"""How many runs would be needed where these are too few to say anything."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final

from reprokit.study.statistics import CONFIDENCE, LEVEL

POWER: Final = 0.8  # the chance to find a difference that is there
MAX_NEEDED: Final = 100_000  # runs; more is the same as none at all


def least_to_tell(tests: int = 1, level: float = LEVEL) -> int:
    """Runs of each setup without which no outcome of a rank-sum test, be it the clearest, is significant.

    With n of each the smallest p is 2 / C(2n, n); Holm's smallest level among several tests is level / tests.
    """
    count = 1
    while 2 / math.comb(2 * count, count) >= level / max(1, tests):
        count += 1
    return count


def to_find(delta: float, power: float = POWER, level: float = LEVEL) -> int | None:
    """Runs of each setup that find a difference of this size (Cliff's delta); None: more than anybody makes.

    Noether, Sample size determination for some common nonparametric tests, 1987: N = (za + zb)² / (12 c (1 - c) (P -
    1/2)²) in all, with halves for c and P(X > Y) + P(X = Y) / 2 = (1 + delta) / 2 for P.
    """
    if not delta:
        return None
    normal = NormalDist()
    both = normal.inv_cdf(1 - level / 2) + normal.inv_cdf(power)
    total = both * both / (12 * 0.25 * (delta / 2) ** 2)
    needed = max(least_to_tell(level=level), math.ceil(total / 2))
    return needed if needed <= MAX_NEEDED else None


def pairs_to_exclude(share: float, confidence: float = CONFIDENCE) -> int:
    """Equal pairs, none different, after which less than this share of further ones can be expected to differ.

    (1 - share)^n <= 1 - confidence, of which the rule of three, n = 3 / share, is the approximation.
    """
    return math.ceil(math.log(1 - confidence) / math.log1p(-share) - 1e-9)


def beyond_range(runs: int) -> float:
    """The chance that one more run lies outside the range of these, whatever their distribution."""
    return min(1.0, 2 / (runs + 1))
