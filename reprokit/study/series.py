"""Reads the metrics, the number of epochs and the digest of the weights of a run in one pass."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from reprokit.run_files.rundir import RunDirectory
from reprokit.study.results import MAX_VALUES, MetricSeries
from reprokit.verify.categories.series_leaves import number
from reprokit.verify.read import metric_lines, scan

MAX_SERIES: Final = 200  # per run
MAX_NAME: Final = 200  # characters

Unit = Literal["epoch", "step"]


class RunMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of a run."""

    series: list[MetricSeries]
    epochs: int | None
    weights: str


def read(run: RunDirectory) -> RunMetrics:
    """Return the metrics of a run; a series is cut after MAX_VALUES values."""
    values: dict[tuple[str, Unit], list[float | None]] = {}
    weights: dict[str, str] = {}
    epochs: dict[str, int] = {}
    by_epoch: set[str] = set()  # series with a line per epoch
    for place in scan.read(run, has_numbers=True):
        process = place.key.process
        if isinstance(place.line, metric_lines.WeightsLine) and place.line.at == "end":
            weights[f"{process}\0{place.line.object}"] = place.line.digest
        for name, unit, numbers in _values(place.line):
            if unit == "epoch" and isinstance(place.line, (metric_lines.EpochLine, metric_lines.HistoryLine)):
                key = f"{process}\0{place.line.name}"
                epochs[key] = max(epochs.get(key, 0), _length(place.line))
            title = scan.of_process(name, process)[:MAX_NAME]
            if (title, unit) not in values and len(values) >= MAX_SERIES:
                continue
            if isinstance(place.line, metric_lines.EpochLine):
                by_epoch.add(title)
            elif isinstance(place.line, metric_lines.HistoryLine) and title in by_epoch:
                continue  # it repeats the values of the epochs
            series = values.setdefault((title, unit), [])
            series += numbers[: MAX_VALUES - len(series)]
    series_of_run = [MetricSeries(name=name, values=numbers, by=unit) for (name, unit), numbers in values.items()]
    return RunMetrics(series=series_of_run, epochs=max(epochs.values(), default=None), weights=_digest(weights))


def _length(line: metric_lines.EpochLine | metric_lines.HistoryLine) -> int:
    if isinstance(line, metric_lines.EpochLine):
        return line.epoch + 1
    return max(map(len, line.values.values()), default=0)


def _values(line: metric_lines.MetricLine | None) -> Iterator[tuple[str, Unit, list[float | None]]]:
    """Yield the numbers of a line, by the name of their series."""
    if isinstance(line, metric_lines.LossLine):
        yield line.name, "step", [number(line.value)]
    elif isinstance(line, metric_lines.LogLine):
        if line.value.text is None:
            yield line.name, "epoch" if line.step is None and line.epoch is not None else "step", [number(line.value)]
    elif isinstance(line, metric_lines.EpochLine):
        for name, value in line.values.items():
            yield f"{line.name} {name}", "epoch", [number(value)]
    elif isinstance(line, metric_lines.HistoryLine):
        for name, several in line.values.items():
            yield f"{line.name} {name}", "epoch", [number(value) for value in several]


def _digest(weights: dict[str, str]) -> str:
    """Return one digest of all final weights; empty without weights."""
    if not weights:
        return ""
    digest = hashlib.sha256(b"reprokit-weights-1\0")
    for name in sorted(weights):
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0" + weights[name].encode() + b"\0")
    return f"sha256:{digest.hexdigest()}"
