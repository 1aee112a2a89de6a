"""Compares what setups cost in time and storage: by rank-sum test, effect size and shift."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

import msgspec

from reprokit.study import statistics, wording
from reprokit.study.facts import Effect, Finding, Kind, Measure, Overhead
from reprokit.study.results import RunResult
from reprokit.study.statistics import LEVEL

MAX_ROWS: Final = 1000

MEASURES: Final[tuple[tuple[Measure, str, Callable[[RunResult], float]], ...]] = (
    ("time", "s", lambda run: run.seconds),
    ("processor time", "s", lambda run: run.processor),
    ("storage", "B", lambda run: run.stored),
)
ALONE: Final[dict[Kind, Effect]] = {  # effects that a comparison with bare runs isolates
    "seeded": "seeds alone",
    "patched": "patches alone",
    "recorded": "record-and-replay alone",
    "seeded and patched": "seeds with patches",
    "patched and recorded": "record-and-replay with patches",
}


@dataclass(frozen=True)
class CostSample:
    """The finished runs of a setup, and the setups that it may be compared with."""

    setup: str
    kind: Kind
    group: object  # equal for setups of one training, as only these can be compared
    patches: frozenset[str]
    runs: Sequence[RunResult] = field(hash=False)


def overhead(samples: Sequence[CostSample]) -> tuple[Overhead, ...]:
    """Return a row for each measure of each effect, with p adjusted over all of them."""
    rows = compared(samples)[: MAX_ROWS // len(MEASURES)]
    tested = [_test(*row, measure) for measure in MEASURES for row in rows]
    adjusted = statistics.holm([row.p for row in tested])
    tests = sum(row.p is not None for row in tested)
    return tuple(_judged(row, p, tests) for row, p in zip(tested, adjusted, strict=True))


def compared(samples: Sequence[CostSample]) -> list[tuple[Effect, CostSample, CostSample]]:
    """Return a row for each setup and its base, with the effect that the comparison isolates."""
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
) -> Overhead:
    """Return a row without the fields that depend on other rows."""
    measure, unit, value = what
    left, right = ([value(run) for run in sample.runs if statistics.usable(value(run))] for sample in (setup, base))
    alone = measure == "storage" or all(run.together == 1 for sample in (setup, base) for run in sample.runs)
    test = statistics.rank_sum(left, right) if alone else None
    delta = statistics.cliffs_delta(left, right) if left and right else None
    difference, ratio = statistics.shift(left, right), statistics.ratio(left, right)
    return Overhead(
        effect=effect,
        measure=measure,
        unit=unit,
        setup=setup.setup,
        base=base.setup,
        runs=(len(left), len(right)),
        median=median(left) if left else None,
        base_median=median(right) if right else None,
        difference=difference.value if difference is not None else None,
        difference_interval=difference.interval if difference is not None else None,
        ratio=ratio.value if ratio is not None else None,
        ratio_interval=ratio.interval if ratio is not None else None,
        p=test.p if test is not None else None,
        p_method=test.method if test is not None else "",
        p_adjusted=None,
        delta=delta,
        magnitude=statistics.magnitude(delta) if delta is not None else "",
        finding="too few runs" if alone else "not comparable",
        needed=None,
        needed_why="",
        sentence="",
    )


def _judged(row: Overhead, p: float | None, tests: int) -> Overhead:
    """Return the row with the conclusion that follows from p, adjusted over all rows."""
    finding = _finding(row, p, tests)
    needed, why = _needed(row, finding, tests)
    row = msgspec.structs.replace(row, p_adjusted=p, finding=finding, needed=needed, needed_why=why)
    return msgspec.structs.replace(row, sentence=wording.overhead(row))


def _finding(row: Overhead, p: float | None, tests: int) -> Finding:
    if p is None:
        return row.finding
    if p < LEVEL and row.delta:
        return "more" if row.delta > 0 else "less"
    least = 2 / math.comb(sum(row.runs), row.runs[0]) * tests
    return "too few runs" if least >= LEVEL else "no difference shown"


def _needed(row: Overhead, finding: Finding, tests: int) -> tuple[int | None, str]:
    """Return how many runs per setup would show which difference that these runs do not show."""
    if finding == "too few runs":
        return statistics.least_to_tell(tests), "so that any outcome at all could tell the two apart"
    if finding != "no difference shown" or not row.delta:
        return None, ""
    needed = statistics.to_find(row.delta, level=LEVEL / tests)
    why = f"to find a difference as large as the one seen with a chance of {wording.percent(statistics.POWER)}"
    return (max(needed, min(row.runs) + 1), why) if needed is not None else (None, "")
