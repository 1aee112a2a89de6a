"""Metrics in the files that experiment trackers write: TensorBoard's events, Weights & Biases, MLflow's file store.

A file becomes series of values by step, each by its bits. Wall times, run ids and system metrics of a tracker
are left out. Files are untrusted: sizes and counts are bounded. A damaged file is read up to the damage.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Limits, Source
from reprokit.diff.formats import tfrecord, wandb
from reprokit.diff.formats.protobuf import BYTES, FIXED32, FIXED64, Field, WireReader, signed
from reprokit.diff.sources import read_whole

MOST_POINTS = 500_000  # of one file
MOST_SERIES = 10_000
LONGEST_NAME = 1000  # characters
LONGEST_TEXT = 4096  # of a value that is no number
LARGEST = 1 << 30  # bytes of a file that is read
MLFLOW_LARGEST = 64 << 20

TENSORBOARD, WANDB, WANDB_SUMMARY, MLFLOW = "TensorBoard", "Weights & Biases", "Weights & Biases' summary", "MLflow"
_KINDS = (
    (re.compile(r"(?:.*/)?events\.out\.tfevents(?:\.[^/]*)?"), TENSORBOARD),
    (re.compile(r"(?:.*/)?[^/]*\.wandb"), WANDB),
    (re.compile(r"(?:.*/)?wandb-summary\.json"), WANDB_SUMMARY),
    (re.compile(r"(?:.*/)?[0-9a-f]{32}/metrics/.+"), MLFLOW),
)
_CODES = {"float32": "<f", "float64": "<d", "int": "<q"}


class LogPoint(NamedTuple):
    """A logged value at a step."""

    step: int
    dtype: str  # float32, float64, int or text
    bits: bytes  # a number in little-endian, or a text in UTF-8

    @property
    def number(self) -> float | None:
        """The value as a number; None for a text."""
        code = _CODES.get(self.dtype)
        return struct.unpack(code, self.bits)[0] if code is not None else None

    def __str__(self) -> str:
        number = self.number
        if number is None:
            return repr(self.bits.decode("utf-8", "backslashreplace"))
        text = f"{number:.9g}" if self.dtype == "float32" else repr(number)
        return text if self.dtype == "int" else f"{text} ({self.bits[::-1].hex()})"


@dataclass
class Logged:
    """The series of one tracker file, and why it could not be read to its end."""

    kind: str
    series: dict[str, list[LogPoint]] = field(default_factory=dict)
    problem: str = ""  # the error that ended the reading

    def add(self, name: str, point: LogPoint) -> None:
        """Append a point to a series; raises ArtifactDamaged beyond MOST_SERIES."""
        if name not in self.series and len(self.series) >= MOST_SERIES:
            raise ArtifactDamaged(f"it has more than the {MOST_SERIES} series that are read")
        self.series.setdefault(name[:LONGEST_NAME], []).append(point)


def kind_of(path: str) -> str:
    """Return the tracker that writes files of this name; empty if none does."""
    return next((kind for pattern, kind in _KINDS if pattern.fullmatch(path)), "")


def read(path: str, source: Source) -> Logged:
    """Read the series of a tracker file as far as it is intact."""
    logged = Logged(kind_of(path))
    try:
        if source.size > LARGEST:
            raise ArtifactDamaged(f"it has {source.size} bytes, more than the {LARGEST} that are read")
        for number, (name, point) in enumerate(_points(logged.kind, path, source)):
            if number >= MOST_POINTS:
                raise ArtifactDamaged(f"it has more than the {MOST_POINTS} values that are read")
            logged.add(name, point)
    except ArtifactDamaged as error:
        logged.problem = str(error)
    return logged


def _points(kind: str, path: str, source: Source) -> Iterator[tuple[str, LogPoint]]:
    if kind == TENSORBOARD:
        return _tensorboard(source)
    if kind == WANDB:
        return _wandb(source)
    if kind == WANDB_SUMMARY:
        return _summary(source)
    return _mlflow(path.rpartition("/metrics/")[2], source)


# TensorBoard: https://github.com/tensorflow/tensorboard/tree/master/tensorboard/compat/proto


def _tensorboard(source: Source) -> Iterator[tuple[str, LogPoint]]:
    for record in tfrecord.records(source):
        wire = WireReader(record, Limits())
        step = signed(wire.last(0, record.size, 2))
        summaries = (field_ for field_ in wire.fields(0, record.size) if field_.number == 5 and field_.kind == BYTES)
        for value in (value for summary in summaries for value in wire.fields(summary.at, summary.end)):
            if value.number == 1 and value.kind == BYTES:
                yield from _scalar(wire, value, step)


def _scalar(wire: WireReader, value: Field, step: int) -> Iterator[tuple[str, LogPoint]]:
    """Yield a summary value that is one number: simple_value in TensorFlow 1, a tensor since."""
    tag, point = "", None
    for field_ in wire.fields(value.at, value.end):
        if field_.number == 1 and field_.kind == BYTES and field_.value <= 4 * LONGEST_NAME:
            tag = wire.content(field_).decode("utf-8", "backslashreplace")
        elif field_.number == 2 and field_.kind == FIXED32:
            point = LogPoint(step, "float32", field_.value.to_bytes(4, "little"))
        elif field_.number == 8 and field_.kind == BYTES:
            point = _tensor_point(wire, field_, step)
    if point is not None:
        yield tag, point


_TENSORS = {1: ("float32", 4, 5), 2: ("float64", 8, 6)}  # by DataType: name, size in bytes, and field of the values


def _tensor_point(wire: WireReader, tensor: Field, step: int) -> LogPoint | None:
    """Return the value of a scalar float tensor; None for other tensors."""
    fields = {field_.number: field_ for field_ in wire.fields(tensor.at, tensor.end)}
    layout = _TENSORS.get(fields[1].value) if 1 in fields else None
    has_dimensions = 2 in fields and any(field_.number == 2 for field_ in wire.fields(fields[2].at, fields[2].end))
    if layout is None or has_dimensions:
        return None
    dtype, size, values_field = layout
    for number in (4, values_field):
        field_ = fields.get(number)
        if field_ is not None and field_.kind == BYTES and field_.value == size:
            return LogPoint(step, dtype, wire.content(field_))
        if field_ is not None and field_.kind in (FIXED32, FIXED64):
            return LogPoint(step, dtype, field_.value.to_bytes(size, "little"))
    return LogPoint(step, dtype, bytes(size))  # Protocol Buffers omit a zero


# Weights & Biases


def _wandb(source: Source) -> Iterator[tuple[str, LogPoint]]:
    number = 0
    for kind, wire, record in wandb.entries(source, Limits()):
        if kind == wandb.HISTORY:
            step, values = wandb.history(wire, record, number)
            number += 1
            for name in sorted(values):
                if not name.startswith(wandb.VOLATILE):
                    yield name, _json_point(step, values[name])


def _summary(source: Source) -> Iterator[tuple[str, LogPoint]]:
    try:
        content = json.loads(read_whole(source, LONGEST_TEXT * LONGEST_NAME))
    except (ValueError, RecursionError):
        raise ArtifactDamaged("it is no JSON") from None
    for name, value in sorted(content.items()) if isinstance(content, dict) else ():
        if not name.startswith(wandb.VOLATILE):
            yield name, _json_point(0, json.dumps(value))


def _json_point(step: int, text: str) -> LogPoint:
    """Parse a JSON value; numbers are kept by their bits, so that their notation does not matter."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if isinstance(value, float):
        return LogPoint(step, "float64", struct.pack("<d", value))
    if isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63:
        return LogPoint(step, "int", struct.pack("<q", value))
    return LogPoint(step, "text", text.encode("utf-8", "backslashreplace")[:LONGEST_TEXT])


# MLflow's file store: one file per metric; each line has time, value and step


def _mlflow(name: str, source: Source) -> Iterator[tuple[str, LogPoint]]:
    for number, line in enumerate(read_whole(source, MLFLOW_LARGEST).splitlines()):
        words = line.split()
        try:
            value = float(words[1])
            step = int(words[2]) if len(words) > 2 else number
        except (IndexError, ValueError):
            raise ArtifactDamaged(f"line {number + 1} is no time, value and step") from None
        yield name, LogPoint(step, "float64", struct.pack("<d", value))


def is_finite(point: LogPoint) -> bool:
    """Return whether a point is a finite number, which can be plotted."""
    return point.number is not None and math.isfinite(point.number)
