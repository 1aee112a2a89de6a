"""Computes statistics of studies: rank-sum test, effect sizes, shifts and shares with intervals, sample sizes.

No function assumes a distribution. scipy is imported only here and only when it is needed, as running a study does not
require it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, fmean, median, quantiles, stdev
from typing import Any, Final

from reprokit.core.errors import needed_for
from reprokit.study.facts import Interval, Magnitude, Share, Spread, ValueSummary

CONFIDENCE: Final = 0.95
LEVEL: Final = 0.05  # p below this is significant
EXACT: Final = 50  # values on each side up to which the rank sum's distribution is computed, not approximated
MAX_SHIFTS: Final = 4_000_000  # limit of pairs of values for the median
POWER: Final = 0.8  # probability of detecting an existing difference
MAX_NEEDED: Final = 100_000  # runs; larger numbers are not reported
MAX_NUMBER: Final = 1e150  # larger values count as infinite, so that sums of squares are finite
THRESHOLDS: Final = ((0.147, "negligible"), (0.33, "small"), (0.474, "medium"))  # Romano and others, 2006

Values = Sequence[float]


@dataclass(frozen=True)
class RankSum:
    """The result of Wilcoxon's rank-sum test of two samples."""

    statistic: float  # Mann and Whitney's U of the first: pairs in which its value is larger, ties count a half
    p: float  # two-sided
    method: str


@dataclass(frozen=True)
class Estimate:
    """An estimated value, with its interval if there are enough values."""

    value: float
    interval: Interval | None


def usable(value: float | None) -> bool:
    """Return whether a value is finite, and its square too."""
    return value is not None and abs(value) <= MAX_NUMBER


def rank_sum(left: Values, right: Values) -> RankSum | None:
    """Return Wilcoxon's two-sided rank-sum test (Mann and Whitney's U); None without values on a side."""
    if not left or not right:
        return None
    distinct = len({*left, *right})
    small = max(len(left), len(right)) <= EXACT
    if distinct == 1:
        return RankSum(len(left) * len(right) / 2, 1.0, "all values are equal")
    if small and distinct < len(left) + len(right):
        return _exact_with_ties(left, right)
    method = "exact" if small else "asymptotic"
    test = _scipy().mannwhitneyu(left, right, alternative="two-sided", method=method)
    words = "exact" if small else "normal approximation, with corrections for ties and continuity"
    return RankSum(float(test.statistic), min(1.0, float(test.pvalue)), words)


def _scipy() -> Any:
    with needed_for("the evaluation of a study", "scipy", otherwise="the runs themselves are kept"):
        from scipy import stats
    return stats


def _exact_with_ties(left: Values, right: Values) -> RankSum:
    """Return the exact p by enumerating the choices of left values; with ties neither tables nor scipy have one."""
    ranks = _doubled_ranks([*left, *right])
    observed, expected = sum(ranks[: len(left)]), len(left) * (len(ranks) + 1)
    counts = _sums(ranks, len(left))
    extreme = sum(count for total, count in counts if abs(total - expected) >= abs(observed - expected))
    p = extreme / math.comb(len(ranks), len(left))
    return RankSum(observed / 2 - len(left) * (len(left) + 1) / 2, p, "exact, given the ties")


def _doubled_ranks(values: Values) -> list[int]:
    """Return twice the rank of each value: an integer also for ties, which share their mean rank."""
    ordered = sorted(values)
    return [bisect_left(ordered, value) + bisect_right(ordered, value) + 1 for value in values]


def _sums(ranks: list[int], chosen: int) -> list[tuple[int, int]]:
    """Return every sum of `chosen` ranks with the number of ways to reach it.

    One integer holds the counts of all sums of a number of ranks, each in as many bits as the largest count needs, so
    that adding a rank to all sums is one shift.
    """
    width = len(ranks) + 1
    ways = [1] + [0] * chosen
    for number, rank in enumerate(ranks):
        for size in range(min(chosen, number + 1), 0, -1):
            ways[size] += ways[size - 1] << (rank * width)
    rest, mask, sums = ways[chosen], (1 << width) - 1, []
    for total in range(rest.bit_length() // width + 1):
        count = (rest >> (total * width)) & mask
        if count:
            sums.append((total, count))
    return sums


def cliffs_delta(left: Values, right: Values) -> float:
    """Return Cliff's delta: how much more often a left value is above a right one than below it, from -1 to 1."""
    ordered = sorted(right)
    above = sum(bisect_left(ordered, value) for value in left)
    below = sum(len(ordered) - bisect_right(ordered, value) for value in left)
    return (above - below) / (len(left) * len(ordered))


def magnitude(delta: float) -> Magnitude:
    """Return Romano's word for the size of Cliff's delta."""
    for threshold, word in THRESHOLDS:
        if abs(delta) < threshold:
            return word  # type: ignore[return-value]
    return "large"


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Return Holm's adjusted p of each test: the chance of any false finding among all stays below the level."""
    known = sorted((value, position) for position, value in enumerate(values) if value is not None)
    adjusted: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (value, position) in enumerate(known):
        highest = max(highest, min(1.0, value * (len(known) - rank)))
        adjusted[position] = highest
    return adjusted


def shift(left: Values, right: Values) -> Estimate | None:
    """Return Hodges and Lehmann's estimate of how much larger the left values are, with Moses' interval."""
    return _shift(left, right, lambda value: value)


def ratio(left: Values, right: Values) -> Estimate | None:
    """Return the median of all ratios of a left and a right value, with its interval; None unless all are above 0."""
    if min([*left, *right], default=0.0) <= 0:
        return None
    logarithms = [math.log(value) for value in left], [math.log(value) for value in right]
    return _shift(*logarithms, math.exp)


def _shift(left: Values, right: Values, back: Callable[[float], float]) -> Estimate | None:
    if not left or not right or len(left) * len(right) > MAX_SHIFTS:
        return None
    differences = sorted(left_value - right_value for left_value in left for right_value in right)
    value = back(median(differences))
    position, reached, method = order_statistic(len(left), len(right), CONFIDENCE)
    if not position:
        return Estimate(value, None)
    low, high = back(differences[position - 1]), back(differences[-position])
    return Estimate(value, Interval(low=low, high=high, confidence=reached, method=method))


@lru_cache(maxsize=256)
def order_statistic(left: int, right: int, confidence: float) -> tuple[int, float, str]:
    """Return which sorted difference from each end bounds the shift (0: none), the confidence reached, and the method.

    Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 3rd edition, 4.3.
    """
    tail = (1 - confidence) / 2
    if max(left, right) > EXACT:
        spread = math.sqrt(left * right * (left + right + 1) / 12)
        position = math.floor(left * right / 2 - NormalDist().inv_cdf(1 - tail) * spread)
        return position, confidence, "order statistics, by the normal approximation"
    total, below, position = math.comb(left + right, left), 0, 0
    for _, count in _sums(list(range(left + right)), left):  # of U = 0, 1, 2, ... in as many orders of the samples
        if (below + count) / total > tail:
            break
        below += count
        position += 1
    return position, 1 - 2 * below / total, "order statistics, exact"


def share(count: int, of: int) -> Share:
    """Return a share with Clopper and Pearson's interval; one-sided if the count is 0 or the total."""
    if count in (0, of):
        bound = (1 - CONFIDENCE) ** (1 / of)
        low, high = (0.0, 1 - bound) if count == 0 else (bound, 1.0)
        method = "binomial, exact, one-sided"
    else:
        interval = _scipy().binomtest(count, of).proportion_ci(confidence_level=CONFIDENCE, method="exact")
        low, high, method = float(interval.low), float(interval.high), "binomial, exact (Clopper and Pearson)"
    return Share(count=count, of=of, interval=Interval(low=low, high=high, confidence=CONFIDENCE, method=method))


def summary(values: Sequence[float | None]) -> ValueSummary:
    """Return the summary of a quantity; values that are not finite are omitted and counted."""
    finite = sorted(value for value in values if value is not None and usable(value))
    low, middle, high = _quartiles(finite)
    return ValueSummary(
        count=len(finite),
        left_out=len(values) - len(finite),
        median=middle,
        low_quartile=low,
        high_quartile=high,
        least=finite[0] if finite else None,
        most=finite[-1] if finite else None,
        mean=fmean(finite) if finite else None,
        deviation=stdev(finite) if len(finite) > 1 else None,
    )


def _quartiles(ordered: list[float]) -> tuple[float | None, float | None, float | None]:
    if not ordered:
        return None, None, None
    if len(ordered) == 1:
        return ordered[0], ordered[0], ordered[0]
    low, middle, high = quantiles(ordered, n=4, method="inclusive")
    return low, middle, high


def spread(values: Values, left_out: int = 0) -> Spread:
    """Return the spread of the values of runs, any two of them compared."""
    count = len(values)
    comparisons = count * (count - 1) // 2
    ordered = sorted(values)
    equal = sum(size * (size - 1) // 2 for size in Counter(values).values())
    return Spread(
        comparisons=comparisons,
        largest=ordered[-1] - ordered[0] if comparisons else None,
        deviation=stdev(values) if comparisons else None,
        differing=comparisons - equal,
        left_out=left_out,
    )


def spread_within(pairs: Sequence[tuple[float, float]], left_out: int = 0) -> Spread:
    """Return the spread of the two values of a pair; the deviation is pooled over all pairs."""
    differences = [abs(value - other_value) for value, other_value in pairs]
    return Spread(
        comparisons=len(differences),
        largest=max(differences, default=None),
        deviation=math.sqrt(math.fsum(value * value for value in differences) / (2 * len(differences)))
        if pairs
        else None,
        differing=sum(value != 0 for value in differences),
        left_out=left_out,
    )


# ---- how many runs would be needed where these are too few to say anything -------------------------------------------


def least_to_tell(tests: int = 1, level: float = LEVEL) -> int:
    """Return the number of runs per setup below which no rank-sum test can be significant.

    With n runs of each, the smallest p is 2 / C(2n, n); Holm's smallest level among several tests is level / tests.
    """
    count = 1
    while 2 / math.comb(2 * count, count) >= level / max(1, tests):
        count += 1
    return count


def to_find(delta: float, power: float = POWER, level: float = LEVEL) -> int | None:
    """Return the runs per setup that detect a difference of this size (Cliff's delta); None if above MAX_NEEDED.

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


def pairs_to_exclude(share: float) -> int:
    """Return the number of equal pairs after which less than this share of further pairs is expected to differ.

    (1 - share)^n <= 1 - CONFIDENCE; the rule of three, n = 3 / share, approximates it.
    """
    return math.ceil(math.log(1 - CONFIDENCE) / math.log1p(-share) - 1e-9)


def beyond_range(runs: int) -> float:
    """Return the probability that one more run lies outside the range of these, for any distribution."""
    return min(1.0, 2 / (runs + 1))
