"""Pairs of runs to compare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from reprokit.core.difference import Difference
from reprokit.verify.comparison import Comparison
from reprokit.verify.runs import compare

from .runs import Building, recording, replayed, training


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Building, Building]:
    """A full training and its faithful replay, not written yet."""
    left = training(tmp_path / "left")
    return left, replayed(left, tmp_path / "right")


@pytest.fixture
def bare(tmp_path: Path) -> tuple[Building, Building]:
    """A recording and its replay with nothing in them yet."""
    left = recording(tmp_path / "left")
    return left, replayed(left, tmp_path / "right")


@pytest.fixture
def compared() -> Callable[[tuple[Building, Building]], Comparison]:
    """Writes both runs and compares them."""
    return lambda runs: compare(runs[0].write(), runs[1].write())


@pytest.fixture
def first(compared: Callable[[tuple[Building, Building]], Comparison]) -> Callable[..., tuple[str, Difference]]:
    """The first difference of two runs, with the name of its category; fails if there is none."""

    def find(runs: tuple[Building, Building]) -> tuple[str, Difference]:
        for category in compared(runs).tree.children:
            leaf = category.first()
            if leaf is not None:
                return category.name, leaf
        raise AssertionError("the runs came out identical")

    return find
