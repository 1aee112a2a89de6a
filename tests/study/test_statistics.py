"""The statistics of studies, against published examples and against formulas written here anew."""

from __future__ import annotations

import math
import subprocess
import sys
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reprokit.core.errors import ExtraMissing
from reprokit.study import statistics

# Hollander and Wolfe, Nonparametric Statistical Methods, table 4.1: permeability of human placentas at term, and
# between the 12th and 26th week.
TERM = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46]
WEEKS = [1.15, 0.88, 0.90, 0.74, 1.21]
# StatXact 4 manual, page 221: diastolic blood pressure, with ties.
TREATED = [94.0, 108.0, 110.0, 90.0]
CONTROLS = [80.0, 94.0, 85.0, 90.0, 90.0, 90.0, 108.0, 94.0, 78.0, 105.0, 88.0]

few = st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=5)  # with many ties
distinct = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=11, unique=True)
positive = st.lists(st.floats(0.01, 1e4), min_size=1, max_size=7)


# ---- published examples ----------------------------------------------------------------------------------------------


def test_the_rank_sum_test_of_hollander_and_wolfe() -> None:
    found = statistics.rank_sum(TERM, WEEKS)
    assert found is not None
    assert (found.statistic, found.method) == (35.0, "exact")
    assert round(found.p, 4) == 0.2544  # SAS, PROC NPAR1WAY: exact, Pr >= |S - Mean|


def test_the_shift_of_hollander_and_wolfe() -> None:
    found = statistics.shift(TERM, WEEKS)
    assert found is not None
    assert found.interval is not None
    assert round(found.value, 4) == 0.305
    assert (round(found.interval.low or 0, 4), round(found.interval.high or 0, 4)) == (-0.15, 0.76)
    assert round(found.interval.confidence, 2) == 0.96


def test_ties_as_statxact_has_them() -> None:
    found = statistics.rank_sum(TREATED, CONTROLS)
    assert found is not None
    assert round(found.p, 4) == 0.0989
    assert found.method == "exact, given the ties"


@pytest.mark.parametrize(
    ("left", "right", "delta", "word"),
    [  # Hogarty and Kromrey, 1999, as the documentation of R's effsize has it; and an example of its tests
        ([10, 10, 20, 20, 20, 30, 30, 30, 40, 50], [10, 20, 30, 40, 40, 50], -0.25, "small"),
        ([10, 20, 20, 20, 30, 30, 30, 40, 50, 100], [10, 20, 30, 40, 40, 50], -1 / 15, "negligible"),
    ],
)
def test_published_deltas(left: list[float], right: list[float], delta: float, word: str) -> None:
    assert statistics.cliffs_delta(left, right) == pytest.approx(delta)
    assert statistics.magnitude(delta) == word


@pytest.mark.parametrize(
    ("delta", "word"),
    [
        (0.0, "negligible"),
        (0.1469, "negligible"),
        (0.147, "small"),
        (-0.3299, "small"),
        (0.33, "medium"),
        (0.4739, "medium"),
        (-0.474, "large"),
        (1.0, "large"),
    ],
)
def test_the_thresholds_of_romano(delta: float, word: str) -> None:
    assert statistics.magnitude(delta) == word


@pytest.mark.parametrize(("runs", "critical"), [(4, 0), (5, 2), (8, 13), (10, 23), (16, 75), (20, 127)])
def test_critical_values_of_the_tables(runs: int, critical: int) -> None:
    """Mann and Whitney's U, two-sided, 0.05, as textbooks print it: the interval begins one after it."""
    assert statistics.order_statistic(runs, runs, 0.95)[0] == critical + 1


def test_three_runs_of_each_have_no_interval() -> None:
    assert statistics.order_statistic(3, 3, 0.95)[0] == 0
    found = statistics.shift([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert found == statistics.Estimate(0.0, None)


def test_holm_as_the_bonferroni_article_has_it() -> None:
    """Wikipedia, "Holm-Bonferroni method": of four hypotheses two are rejected at 0.05."""
    adjusted = statistics.holm([0.01, 0.04, None, 0.03, 0.005])
    assert adjusted == [pytest.approx(0.03), pytest.approx(0.06), None, pytest.approx(0.06), pytest.approx(0.02)]


def test_the_share_of_conover() -> None:
    """R's example of binom.test: Mendel's 682 of 925 (Conover, 1971, page 97)."""
    interval = statistics.share(682, 925).interval
    assert interval.low == pytest.approx(0.7076683, abs=1e-7)
    assert interval.high == pytest.approx(0.7654066, abs=1e-7)


@pytest.mark.parametrize(("of", "percent"), [(8, 31.2), (10, 25.9), (20, 13.9), (50, 5.8), (100, 3.0)])
def test_none_of_so_many_leaves_so_much(of: int, percent: float) -> None:
    """Hanley and Lippman-Hand, If nothing goes wrong, is everything all right?, 1983; about 3 / n from 30 on."""
    interval = statistics.share(0, of).interval
    assert round(100 * (interval.high or 0), 1) == percent
    assert interval.low == 0
    assert statistics.share(of, of).interval.low == pytest.approx(1 - (interval.high or 0))


def test_noethers_sample_size() -> None:
    """The example of statpsych's size.test.mann(.05, .90, .3): 44 in each group."""
    assert statistics.to_find(2 * 0.3 - 1, power=0.9) == 44
    assert statistics.to_find(0.0) is None
    assert statistics.to_find(1e-9) is None


def test_how_many_runs_could_tell_anything() -> None:
    assert [statistics.least_to_tell(tests) for tests in (1, 2, 10)] == [4, 5, 6]
    for tests in (1, 3, 30):
        enough = statistics.least_to_tell(tests)
        clearest = [statistics.rank_sum(range(n), range(n, 2 * n)) for n in (enough - 1, enough)]
        assert [found is not None and found.p * tests < 0.05 for found in clearest] == [False, True]


@given(st.floats(0.001, 0.9))
def test_pairs_that_exclude_a_share(share: float) -> None:
    needed = statistics.pairs_to_exclude(share)
    assert (statistics.share(0, needed).interval.high or 0) <= share + 1e-9
    assert needed == 1 or (statistics.share(0, needed - 1).interval.high or 0) > share - 1e-9


def test_the_chance_to_leave_the_range() -> None:
    assert statistics.beyond_range(19) == 0.1


# ---- against formulas written here -----------------------------------------------------------------------------------


@given(few, few)
def test_delta_is_what_every_pair_of_values_says(left: list[float], right: list[float]) -> None:
    signs = sum((one > other) - (one < other) for one in left for other in right)
    assert statistics.cliffs_delta(left, right) == signs / (len(left) * len(right))
    assert statistics.cliffs_delta(right, left) == -statistics.cliffs_delta(left, right)


def exact_p(left: list[float], right: list[float]) -> float:
    """Of all choices of the left values, the share whose U is as far from its mean."""
    both = [*left, *right]

    def distance(chosen: tuple[int, ...]) -> Fraction:
        rest = [both[number] for number in range(len(both)) if number not in chosen]
        wins = sum((both[number] > other) + Fraction(both[number] == other, 2) for number in chosen for other in rest)
        return abs(wins - Fraction(len(left) * len(right), 2))

    observed = distance(tuple(range(len(left))))
    choices = list(combinations(range(len(both)), len(left)))
    return sum(distance(chosen) >= observed for chosen in choices) / len(choices)


@settings(max_examples=25, deadline=None)
@given(few, few)
def test_p_with_ties_is_counted_out(left: list[float], right: list[float]) -> None:
    found = statistics.rank_sum(left, right)
    assert found is not None
    assert found.p == pytest.approx(exact_p(left, right))
    half = sum((one > other) + 0.5 * (one == other) for one in left for other in right)
    assert found.statistic == half


@settings(max_examples=25, deadline=None)
@given(distinct, st.data())
def test_p_without_ties_is_counted_out(values: list[float], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(values) - 1))
    found = statistics.rank_sum(values[:cut], values[cut:])
    assert found is not None
    assert found.p == pytest.approx(exact_p(values[:cut], values[cut:]))


@given(few, few, st.floats(-3, 3))
def test_a_shift_shifts_the_estimate(left: list[float], right: list[float], by: float) -> None:
    found, moved = statistics.shift(left, right), statistics.shift([one + by for one in left], right)
    assert found is not None
    assert moved is not None
    assert moved.value == pytest.approx(found.value + by)
    differences = sorted(one - other for one in left for other in right)
    middle = len(differences) // 2
    assert found.value == (differences[middle] + differences[-middle - 1]) / 2


@settings(deadline=None)
@given(positive, positive, st.floats(0.5, 2))
def test_the_interval_holds_what_the_test_does_not_reject(left: list[float], right: list[float], by: float) -> None:
    """The two are one method: the base times the ratio is rejected exactly where the ratio is outside."""
    found = statistics.ratio(left, right)
    assert found is not None
    if found.interval is None:
        return
    low, high = found.interval.low or 0.0, found.interval.high or math.inf
    assert low <= found.value * (1 + 1e-9)
    assert found.value <= high * (1 + 1e-9)
    moved = [one * by for one in right]
    test = statistics.rank_sum(left, moved)
    assert test is not None
    if len({*left, *moved}) == len(left) + len(moved) and min(abs(by / low - 1), abs(by / high - 1)) > 1e-9:
        assert (test.p > 1 - found.interval.confidence + 1e-9) == (low < by < high)


def test_ratios_of_what_is_not_above_nought() -> None:
    assert statistics.ratio([1.0, 0.0], [1.0]) is None
    assert statistics.ratio([], [1.0]) is None
    assert statistics.shift([], [1.0]) is None
    assert statistics.rank_sum([], [1.0]) is None


def test_equal_values_are_no_difference() -> None:
    found = statistics.rank_sum([5.0] * 8, [5.0] * 8)
    assert found == statistics.RankSum(32.0, 1.0, "all values are equal")


def test_many_runs_are_approximated_and_agree_with_the_exact_p() -> None:
    left, right = [float(one) for one in range(0, 100, 2)], [one + 6.5 for one in range(0, 100, 2)]
    exact = statistics.rank_sum(left, right)
    more = statistics.rank_sum([*left, 49.0], right)
    assert exact is not None
    assert more is not None
    assert (exact.method, more.method[:20]) == ("exact", "normal approximation")
    assert abs(exact.p - more.p) < 0.05
    position, confidence, method = statistics.order_statistic(51, 51, 0.95)
    assert method.endswith("normal approximation")
    assert abs(position - statistics.order_statistic(50, 50, 0.95)[0]) < 60
    assert confidence == 0.95


# ---- summaries and spreads -------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5).map(float), max_size=9))
def test_a_spread_is_that_of_every_two(values: list[float]) -> None:
    found = statistics.spread(values)
    differences = [abs(one - other) for one, other in combinations(values, 2)]
    assert found.comparisons == len(differences)
    assert found.largest == max(differences, default=None)
    assert found.differing == sum(one > 0 for one in differences)
    if differences:  # the variance is half the mean square of the difference of two
        assert found.deviation == pytest.approx(math.sqrt(sum(one**2 for one in differences) / (2 * len(differences))))


def test_a_spread_within_pairs_is_pooled() -> None:
    found = statistics.spread_within([(1.0, 2.0), (5.0, 5.0), (3.0, 1.0)], left_out=1)
    assert (found.comparisons, found.largest, found.differing, found.left_out) == (3, 2.0, 2, 1)
    assert found.deviation == pytest.approx(math.sqrt((1 + 0 + 4) / 6))
    assert statistics.spread_within([]).deviation is None


def test_what_is_not_finite_is_left_out_and_counted() -> None:
    found = statistics.summary([3.0, math.nan, 1.0, None, math.inf, 2.0, 1e200])
    assert (found.count, found.left_out, found.median, found.least, found.most) == (3, 4, 2.0, 1.0, 3.0)
    assert statistics.summary([]).median is None
    assert statistics.summary([4.0]).deviation is None


# ---- imports ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "modules",
    [
        "reprokit.study, reprokit.study.runner, reprokit.cli.study",
        "reprokit.study.analysis, reprokit.study.tables",
    ],
)
def test_scipy_is_imported_when_it_is_needed(modules: str) -> None:
    code = f"import {modules}, sys; print(*sorted({{'scipy', 'numpy'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_without_scipy_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ExtraMissing, match=r"pip install scipy"):
        statistics.rank_sum(TERM, WEEKS)
