"""What comparing two tensors came to, and the place where it is judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from reprokit.difference import Verdict
from reprokit.tolerance import Tolerance as Tolerance


@dataclass(frozen=True)
class Extreme:
    """A largest distance, and the index of the first element that has it, counted in C order."""

    value: float
    whole: int  # the same where it is a whole number, exactly
    at: int


@dataclass(frozen=True)
class TensorStatistics:
    """How two tensors of the same type and shape differ; indices count elements in C order."""

    elements: int
    differing: int = 0
    first: int | None = None
    beyond: int = 0  # differing elements that the tolerance does not accept
    first_beyond: int | None = None
    absolute: Extreme | None = None  # of all pairs of finite numbers that differ
    relative: Extreme | None = None
    ulp: Extreme | None = None
    histogram: tuple[int, ...] = ()  # distances of 1, 2, 3-4, 5-8, ... units in the last place
    sign_change: int = 0
    zero_sign: int = 0  # +0 against -0
    nan_payload: int = 0  # NaN against another NaN
    nan: int = 0  # NaN against a number
    infinite: int = 0  # infinity against anything else


@dataclass(frozen=True)
class StatisticsJudgment:
    """What statistics mean: the verdict, and a sentence where it is not the bitwise one."""

    verdict: Verdict
    sentence: str = ""
    remark: str = ""  # behind the sentence
    at: int | None = None  # the element to show, where it is not the first that differs


Judge: TypeAlias = Callable[[str, TensorStatistics], StatisticsJudgment]  # by the name of the tensor


def bitwise(name: str, statistics: TensorStatistics) -> StatisticsJudgment:
    """Different as soon as one bit is."""
    return StatisticsJudgment(Verdict.DIFFERENT if statistics.differing else Verdict.IDENTICAL)


def tolerant(tolerance: Tolerance) -> Judge:
    """Different as soon as one element is beyond the tolerance by which the statistics were taken."""

    def judge(name: str, statistics: TensorStatistics) -> StatisticsJudgment:
        if not statistics.differing:
            return StatisticsJudgment(Verdict.IDENTICAL)
        if not statistics.beyond:
            return StatisticsJudgment(Verdict.TOLERATED, remark=f"all within {tolerance}")
        return StatisticsJudgment(
            Verdict.DIFFERENT, remark=f"{statistics.beyond} beyond {tolerance}", at=statistics.first_beyond
        )

    return judge


def _larger(one: Extreme | None, other: Extreme | None) -> Extreme | None:
    if one is None or other is None:
        return one or other
    order = (one.value, one.whole, -one.at), (other.value, other.whole, -other.at)
    return one if order[0] >= order[1] else other


def _earlier(one: int | None, other: int | None) -> int | None:
    return min((at for at in (one, other) if at is not None), default=None)


def merged(one: TensorStatistics, other: TensorStatistics) -> TensorStatistics:
    """The statistics of two pieces of a tensor together."""
    lengths = max(len(one.histogram), len(other.histogram))
    padded = [side.histogram + (0,) * (lengths - len(side.histogram)) for side in (one, other)]
    sums = ("elements", "differing", "beyond", "sign_change", "zero_sign", "nan_payload", "nan", "infinite")
    return replace(
        one,
        **{name: getattr(one, name) + getattr(other, name) for name in sums},
        first=_earlier(one.first, other.first),
        first_beyond=_earlier(one.first_beyond, other.first_beyond),
        absolute=_larger(one.absolute, other.absolute),
        relative=_larger(one.relative, other.relative),
        ulp=_larger(one.ulp, other.ulp),
        histogram=tuple(map(sum, zip(*padded, strict=True))),
    )


def multi_index(at: int, shape: tuple[int, ...]) -> list[int]:
    """An index counted in C order as one of each dimension."""
    found = []
    for length in reversed(shape):
        at, index = divmod(at, length)
        found.append(index)
    return found[::-1]


def bucket_name(number: int) -> str:
    """The distances in a bucket of the histogram."""
    if number < 2:
        return str(number + 1)
    return f"{(1 << (number - 1)) + 1}-{1 << number}"


def document(statistics: TensorStatistics, shape: tuple[int, ...]) -> dict[str, Any]:
    """The statistics for JSON."""

    def extreme(found: Extreme | None, *, whole: bool = False) -> dict[str, Any] | None:
        if found is None:
            return None
        value = found.whole if whole else found.value
        return {"value": value if value != float("inf") else None, "at": multi_index(found.at, shape)}

    first = statistics.first
    return {
        "elements": statistics.elements,
        "differing": statistics.differing,
        "first": None if first is None else multi_index(first, shape),
        "largest_absolute": extreme(statistics.absolute),
        "largest_relative": extreme(statistics.relative),
        "largest_ulp": extreme(statistics.ulp, whole=True),
        "ulp_histogram": {bucket_name(i): count for i, count in enumerate(statistics.histogram) if count},
        "sign_change": statistics.sign_change,
        "zero_sign_only": statistics.zero_sign,
        "nan_payload_only": statistics.nan_payload,
        "nan": statistics.nan,
        "infinite": statistics.infinite,
    }
