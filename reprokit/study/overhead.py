"""What a setup costs in time and storage beside another: by rank-sum test, effect size and shift."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

import msgspec

from reprokit.study import sample_size, statistics, wording
from reprokit.study.facts import Effect, Finding, Kind, Measure, Overhead
from reprokit.study.results import RunResult
from reprokit.study.statistics import LEVEL, Estimate, RankSum

MAX_ROWS: Final = 1000

MEASURES: Final[tuple[tuple[Measure, str, Callable[[RunResult], float]], ...]] = (
    ("time", "s", lambda run: run.seconds),
    ("processor time", "s", lambda run: run.processor),
    ("storage", "B", lambda run: run.stored),
)
ALONE: Final[dict[Kind, Effect]] = {  # against bare
    "seeded": "seeds alone",
    "patched": "patches alone",
    "recorded": "record-and-replay alone",
    "seeded and patched": "seeds with patches",
    "patched and recorded": "record-and-replay with patches",
}


@dataclass(frozen=True)
class CostSample:
    """The finished runs of a setup, and what it may be compared with."""

    setup: str
    kind: Kind
    group: object  # setups of one training, which alone can be compared: the same for all of them
    patches: frozenset[str]
    runs: Sequence[RunResult] = field(hash=False)


@dataclass(frozen=True)
class _Tested:
    """Two samples of one measure with all that was computed of them."""

    effect: Effect
    measure: Measure
    unit: str
    samples: tuple[CostSample, CostSample]
    values: tuple[list[float], list[float]]
    comparable: bool
    test: RankSum | None
    delta: float | None
    difference: Estimate | None
    ratio: Estimate | None


def overhead(samples: Sequence[CostSample]) -> tuple[Overhead, ...]:
    """A row for each measure of each effect, with p adjusted over all of them."""
    rows = compared(samples)[: MAX_ROWS // len(MEASURES)]
    tested = [_test(*row, measure) for measure in MEASURES for row in rows]
    adjusted = statistics.holm([one.test.p if one.test is not None else None for one in tested])
    tests = sum(one.test is not None for one in tested)
    return tuple(_row(one, p, tests) for one, p in zip(tested, adjusted, strict=True))


def compared(samples: Sequence[CostSample]) -> list[tuple[Effect, CostSample, CostSample]]:
    """Which setup is compared with which, and what that tells apart."""
    return [row for number, sample in enumerate(samples) for row in _bases(sample, samples, number)]


def _bases(
    sample: CostSample, samples: Sequence[CostSample], number: int
) -> Iterator[tuple[Effect, CostSample, CostSample]]:
    peers = [other for position, other in enumerate(samples) if position != number and other.group == sample.group]
    untouched = next((other for other in peers if other.kind == "untouched"), None)
    bare = next((other for other in peers if other.kind == "bare"), None)
    if sample.kind == "bare" and untouched is not None:
        yield "watching alone", sample, untouched
    elif sample.kind in ALONE:
        if untouched is not None:
            yield "all of it", sample, untouched
        if bare is not None:
            yield ALONE[sample.kind], sample, bare
    if sample.kind == "patched and recorded":
        patched = (other for other in peers if other.kind == "patched" and other.patches == sample.patches)
        yield from (("record-and-replay beyond patches", sample, other) for other in patched)


def _test(
    effect: Effect, setup: CostSample, base: CostSample, what: tuple[Measure, str, Callable[[RunResult], float]]
) -> _Tested:
    measure, unit, value = what
    left, right = ([value(run) for run in one.runs if statistics.usable(value(run))] for one in (setup, base))
    alone = measure == "storage" or all(run.together == 1 for one in (setup, base) for run in one.runs)
    both = bool(left and right)
    return _Tested(
        effect=effect,
        measure=measure,
        unit=unit,
        samples=(setup, base),
        values=(left, right),
        comparable=alone,
        test=statistics.rank_sum(left, right) if alone else None,
        delta=statistics.cliffs_delta(left, right) if both else None,
        difference=statistics.shift(left, right),
        ratio=statistics.ratio(left, right),
    )


def _row(one: _Tested, p: float | None, tests: int) -> Overhead:
    left, right = one.values
    finding = _finding(one, p, tests)
    needed, why = _needed(one, finding, tests)
    row = Overhead(
        effect=one.effect,
        measure=one.measure,
        unit=one.unit,
        setup=one.samples[0].setup,
        base=one.samples[1].setup,
        runs=(len(left), len(right)),
        median=median(left) if left else None,
        base_median=median(right) if right else None,
        difference=one.difference.value if one.difference is not None else None,
        difference_interval=one.difference.interval if one.difference is not None else None,
        ratio=one.ratio.value if one.ratio is not None else None,
        ratio_interval=one.ratio.interval if one.ratio is not None else None,
        p=one.test.p if one.test is not None else None,
        p_method=one.test.method if one.test is not None else "",
        p_adjusted=p,
        delta=one.delta,
        magnitude=statistics.magnitude(one.delta) if one.delta is not None else "",
        finding=finding,
        needed=needed,
        needed_why=why,
        sentence="",
    )
    return msgspec.structs.replace(row, sentence=wording.overhead(row))


def _finding(one: _Tested, p: float | None, tests: int) -> Finding:
    left, right = one.values
    if not one.comparable:
        return "not comparable"
    if p is None:
        return "too few runs"
    if p < LEVEL and one.delta:
        return "more" if one.delta > 0 else "less"
    least = 2 / math.comb(len(left) + len(right), len(left)) * tests
    return "too few runs" if least >= LEVEL else "no difference shown"


def _needed(one: _Tested, finding: Finding, tests: int) -> tuple[int | None, str]:
    """Runs of each setup that would tell where these do not, and what for."""
    fewest = min(map(len, one.values))
    if finding == "too few runs":
        return sample_size.least_to_tell(tests), "so that any outcome at all could tell the two apart"
    if finding != "no difference shown" or not one.delta:
        return None, ""
    needed = sample_size.to_find(one.delta, level=LEVEL / tests)
    why = f"to find a difference as large as the one seen with a chance of {wording.percent(sample_size.POWER)}"
    return (max(needed, fewest + 1), why) if needed is not None else (None, "")
