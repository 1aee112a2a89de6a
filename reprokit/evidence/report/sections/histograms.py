"""Draws histograms of saved tensors with a column per step, which show how their values develop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reprokit.core.errors import ReprokitError
from reprokit.core.pages import drawing as drawings
from reprokit.core.pages.drawing import Axis
from reprokit.core.printable import printable
from reprokit.evidence.report.facts import TensorHistogram
from reprokit.evidence.report.section import ReportedRuns
from reprokit.run_files import rundir
from reprokit.run_files.rundir import RunDirectory
from reprokit.saved_tensors import shards
from reprokit.saved_tensors.trial import TRAIN, TensorTrial, TrialTensor

COLLECTIONS = ("gradients", "weights", "outputs", "biases", "optimizer_variables", "inputs")  # in the order shown
SHOWN = 12  # number of tensors shown
COLUMNS, BINS = 40, 24
MAX_ELEMENTS = 1 << 20  # elements of the largest tensor that is shown
SHADES = 6
WIDTH, HEIGHT = 720, 180
LEFT, RIGHT, TOP, BOTTOM = 72, 12, 8, 26  # margins


def section(runs: ReportedRuns) -> dict[str, Any]:
    """Return the histograms of the first run's tensors."""
    histograms, left_out = histograms_of(runs.first.directory)
    return {"histograms": histograms, "histograms_left_out": left_out}


def histograms_of(run: RunDirectory) -> tuple[tuple[TensorHistogram, ...], int]:
    """Return the histograms of the first tensors by collection, and how many more there are."""
    if not run.has(rundir.TENSORS):
        return (), 0
    try:
        trial = TensorTrial(run.path)
        tensors = sorted(_drawable(trial), key=_rank)
        histograms = tuple(histogram for tensor in tensors[:SHOWN] for histogram in _histogram(tensor))
    except ReprokitError:  # damaged, or without NumPy: omitted from the report
        return (), 0
    return histograms, max(0, len(tensors) - SHOWN)


def _drawable(trial: TensorTrial) -> Iterator[TrialTensor]:
    """Yield the tensors with several elements whose values were saved."""
    for tensor in map(trial.tensor, trial.tensor_names(mode=TRAIN)):
        steps = tensor.steps(TRAIN)
        if steps and tensor.has_value(steps[0], TRAIN):
            elements = 1
            for size in tensor.shape(steps[0], TRAIN):
                elements *= size
            if 1 < elements <= MAX_ELEMENTS:
                yield tensor


def _rank(tensor: TrialTensor) -> int:
    return min(map(COLLECTIONS.index, set(COLLECTIONS) & set(tensor.collections)), default=len(COLLECTIONS))


def _histogram(tensor: TrialTensor) -> Iterator[TensorHistogram]:
    """Yield the histogram of a tensor, if any of its numbers is finite."""
    numpy, steps = shards.numpy(), tensor.steps(TRAIN)
    steps = [step for step in steps[:: -(-len(steps) // COLUMNS)] if tensor.has_value(step, TRAIN)]
    low, high, not_finite = float("inf"), float("-inf"), 0
    for step in steps:
        every, finite = _numbers(tensor, step)
        not_finite += every - finite.size
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    if low <= high:
        counts = (numpy.histogram(_numbers(tensor, step)[1], BINS, (low, high))[0] for step in steps)
        columns = tuple(tuple(column.tolist()) for column in counts)
        yield TensorHistogram(
            name=tensor.name, steps=tuple(steps), low=low, high=high, counts=columns, not_finite=not_finite
        )


def _numbers(tensor: TrialTensor, step: int) -> tuple[int, Any]:
    """Return the number of elements of a tensor at a step, and the finite ones."""
    numpy, value = shards.numpy(), tensor.value(step, TRAIN)
    if value.dtype.kind not in "biufc" or value.size > MAX_ELEMENTS:
        return 0, numpy.empty(0)
    flat = abs(value) if value.dtype.kind == "c" else value
    flat = flat.reshape(-1).astype("float64")
    within = numpy.abs(flat) < 1e300  # so that the range of values is finite too
    return flat.size, flat[within]


def histogram_drawing(histogram: TensorHistogram, number: int) -> str:
    """Return the histogram as SVG: the darker a cell, the larger its share of the step's values."""
    width = (WIDTH - RIGHT - LEFT) / len(histogram.steps)
    height = (HEIGHT - BOTTOM - TOP) / BINS
    shades: dict[int, list[str]] = {}
    for column, counts in enumerate(histogram.counts):
        largest = max(counts)
        for row, count in enumerate(counts):
            if count:
                place = f"M{LEFT + column * width:.1f} {HEIGHT - BOTTOM - (row + 1) * height:.1f}"
                shade = -(-count * SHADES // largest)
                shades.setdefault(shade, []).append(f"{place}h{width:.1f}v{height:.1f}h-{width:.1f}z")
    body = [
        f'<path fill="currentColor" fill-opacity="{shade / SHADES:.2f}" d="{"".join(cells)}"/>'
        for shade, cells in sorted(shades.items())
    ]
    across = Axis(histogram.steps[0], histogram.steps[-1], LEFT, WIDTH - RIGHT)
    labels = [
        drawings.text((LEFT - 6, TOP + 8), f"{histogram.high:.4g}", "end"),
        drawings.text((LEFT - 6, HEIGHT - BOTTOM), f"{histogram.low:.4g}", "end"),
        drawings.text((LEFT, HEIGHT - 8), f"step {across.low:g}"),
        drawings.text((WIDTH - RIGHT, HEIGHT - 8), f"step {across.high:g}", "end"),
    ]
    name = f"histogram{number}"
    return drawings.drawing((WIDTH, HEIGHT), name, histogram.name, description(histogram), [*body, *labels])


def description(histogram: TensorHistogram) -> str:
    """Describe the drawing in words."""
    bad = f"; {histogram.not_finite:,} numbers are not finite" if histogram.not_finite else ""
    span = f"from {histogram.low:.4g} to {histogram.high:.4g}"
    return printable(f"{histogram.name}: values {span} at {len(histogram.steps)} steps{bad}", 400)
