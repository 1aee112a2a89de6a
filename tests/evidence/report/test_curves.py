"""Curves are thinned out alike however their values come."""

from __future__ import annotations

import json
import math
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from reprokit.evidence.report.curve_chart import PLACES, caption, curve_drawing
from reprokit.evidence.report.gather import gather
from reprokit.evidence.report.sections import curves
from reprokit.evidence.report.sections.curves import ThinnedCurve
from reprokit.run_files.rundir import RunDirectory
from tests import number_files
from tests.verify.runs import recording


@pytest.mark.parametrize("count", [1, 2, 511, 513, 5000])
def test_values_that_come_together_make_the_same_curve(count: int) -> None:
    drawn = random.Random(count)
    points = [(step, drawn.choice([drawn.random(), 0.5])) for step in range(count)]
    one_by_one, together = ThinnedCurve(), ThinnedCurve()
    for point in points:
        one_by_one.add(*point)
    start = 0
    while start < count:
        end = start + drawn.randint(1, 700)
        steps, values = map(list, zip(*points[start:end], strict=True))
        together.add_all(steps, values)
        start = end
    assert together.points() == one_by_one.points()
    assert together.count == one_by_one.count == count


def test_records_and_lines_make_the_same_curve(tmp_path: Path) -> None:
    drawn = random.Random(5)
    values = [drawn.choice([drawn.gauss(0, 1), 1e301, math.nan, -math.inf]) for _ in range(800)]
    values += [drawn.gauss(0, 1) for _ in range(3000)]
    records, lines = recording(tmp_path / "records"), recording(tmp_path / "lines")
    records.records["0-0.numbers"] = number_files.losses(values)
    for step, value in enumerate(values):
        decimal = value if math.isfinite(value) else None
        bits = struct.pack(">d", value).hex()
        lines.add("loss", name="loss", step=step, value={"dtype": "float64", "bits": bits, "decimal": decimal})
    first, second = (curves.read(RunDirectory(run.write())) for run in (records, lines))
    assert list(first) == list(second) == [("0", "loss", "step")]
    (one,), (other,) = first.values(), second.values()
    assert one.points() == other.points()
    assert (one.count, one.not_finite) == (other.count, other.not_finite)


def test_decimals_are_the_shortest_of_their_type(tmp_path: Path) -> None:
    run = recording(tmp_path / "run")
    bits = struct.unpack("<I", struct.pack("<f", 0.1))[0]
    record = number_files.checked(struct.pack("<IIiqQ", 1, 1, number_files.NO_EPOCH, 0, bits))
    run.records["0-0.numbers"] = number_files.head() + number_files.series(1, dtype="float32") + record
    (curve,) = curves.read(RunDirectory(run.write())).values()
    assert json.dumps([point.value for point in curve.points()]) == "[0.1]"


def pair_of(tmp_path: Path, left: list[float], right: list[float]) -> Any:
    runs = recording(tmp_path / "left"), recording(tmp_path / "right")
    for run, values in zip(runs, (left, right), strict=True):
        run.records["0-0.numbers"] = number_files.losses(values)
    (curve,) = gather([run.write() for run in runs]).curves
    return curve


def test_the_difference_keeps_its_extremes(tmp_path: Path) -> None:
    left = [1.0] * 5000
    right = [1.0] * 1234 + [1.5] + [1.0] * 3000 + [0.75] + [1.0] * 764
    curve = pair_of(tmp_path, left, right)
    drawn = {point.step: point.value for point in curve.difference}
    assert (drawn[1234], drawn[4235]) == (0.5, -0.25)
    assert set(drawn.values()) == {0.0, 0.5, -0.25}
    text = caption(curve)
    assert "second run minus first, largest 0.5 at step 1,234, not 0 from step 1,234 at the latest" in text
    drawing = curve_drawing(curve, 0)
    assert drawing.count('class="apart"') == 1
    assert drawing.count('class="at"') <= PLACES
    assert ">first run<" in drawing
    assert "step 0: first run 1; second run 1; difference 0" in drawing


@pytest.mark.parametrize(
    ("left", "right", "drawn"),
    [
        ([1.0, 2.0], [1.0, 2.0], []),  # nothing to see
        ([1.0, 2.0, 3.0], [1.0, 2.5], [0.0, 0.5]),
        ([1.0, math.nan, 3.0], [1.0, 2.0, 4.0], [0.0, None, 1.0]),
        ([1.0], [2.0], []),
        ([1e299, 1.0], [-1e299, 1.0], [-2e299, 0.0]),
    ],
)
def test_only_what_both_runs_have_is_subtracted(
    left: list[float], right: list[float], drawn: list[float | None], tmp_path: Path
) -> None:
    curve = pair_of(tmp_path, left, right)
    finite = {step: value for step, value in enumerate(drawn) if value is not None}
    assert {point.step: point.value for point in curve.difference} == finite
    curve_drawing(curve, 0)
    caption(curve)
