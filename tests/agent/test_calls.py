"""What a recorded step costs, in calls of functions more than bare: a benchmark without noise."""

from __future__ import annotations

import statistics
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.calls import CAPTURE, EVERY, FIRST, added_calls

pytestmark = pytest.mark.torch

PASSED_OVER, ARMED, CAPTURED = 8, 25, 38  # calls of Python; a change that needs more says why


def test_a_recorded_step_makes_few_calls_more_than_a_bare_one(tmp_path: Path) -> None:
    steps, functions = added_calls(tmp_path, "record", "--trail-every", str(EVERY))
    counts = Counter(python for python, _ in steps)
    passed_over, count = counts.most_common(1)[0]
    assert 0 < passed_over <= PASSED_OVER
    assert len(steps) * (1 - 3 / EVERY) <= count < len(steps)  # the trail looks at a step, from the one before on
    looked_at = [python for number, (python, _) in enumerate(steps, FIRST) if not number % EVERY]
    assert passed_over < statistics.median(looked_at) <= ARMED  # of a few, one may write what was collected
    assert not [place for kind, place in functions if functions[kind, place] and "is_compiling" in place]


@pytest.mark.slow
def test_so_does_one_that_would_be_captured(tmp_path: Path) -> None:
    steps, _functions = added_calls(tmp_path, *CAPTURE)
    (most, count), *_others = Counter(python for python, _ in steps).most_common()
    assert 0 < most <= CAPTURED
    assert count >= len(steps) - 2  # at times an object is collected
