"""Saves the predictions of a study's runs as labels when a run has ended, and reads them to compare runs.

A run's own files hold scores, which are many times as large and need the line that describes them.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from reprokit.core.errors import CannotWriteRun, refused_as
from reprokit.run_files.rundir import RunDirectory, beginning, write_whole
from reprokit.study.results import Evaluation, Label
from reprokit.verify.categories import disagreement
from reprokit.verify.categories.series_leaves import number
from reprokit.verify.read import metric_lines, scan
from reprokit.verify.read.evaluation_columns import BLOCK, EvaluationColumn, decoder

FORMAT: Final = 1
MAX_PREDICTIONS: Final = 1_000_000  # saved per run
MAX_EVALUATIONS: Final = 200  # per run; a script may name each call differently
MAX_LABELS: Final = 10_000  # classes per evaluation, as in the metrics of a run
MAX_FILE: Final = 128 << 20  # bytes
_NAME = re.compile(r"predictions/[^/\0.][^/\0]{0,250}\.json")


class KeptPredictions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The predictions of one evaluation, as positions in the list of its labels."""

    labels: list[str]
    predicted: list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]]
    truth: Annotated[str, msgspec.Meta(max_length=64)] = ""  # digest of the true values, in order


class KeptFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """predictions/SETUP-PP-PART.json"""

    format: Literal[1] = FORMAT
    evaluations: dict[str, KeptPredictions]


def keep(run: RunDirectory, file: Path, name: str) -> list[Evaluation]:
    """Return the evaluations of a run, and write their predictions to the file that results refer to by name."""
    room, kept, evaluations = MAX_PREDICTIONS, {}, []
    for title, lines in _last_evaluations(run).items():
        whole = lines[-1].predictions.file is not None
        labels = _labels(run, lines, room) if whole else []
        room -= len(labels)
        if labels:
            kept[title] = _positions(labels, _truth_digest(lines))
        evaluations.append(_evaluation(run, title, lines, name if labels else ""))
    if kept:
        _write(file, msgspec.json.encode(KeptFile(evaluations=kept)))
    return evaluations


def read(directory: Path, name: str) -> dict[str, KeptPredictions]:
    """Return the predictions of a result by evaluation; none if the file is invalid."""
    if not _NAME.fullmatch(name):
        return {}
    try:
        content = msgspec.json.decode(beginning(directory / name, MAX_FILE), type=KeptFile).evaluations
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return {}
    return {key: kept for key, kept in content.items() if max(kept.predicted, default=-1) < len(kept.labels)}


def _last_evaluations(run: RunDirectory) -> dict[str, list[metric_lines.EvaluationLine]]:
    """Return the lines of the last evaluation by name; a cross-validation has one line per fold."""
    last: dict[tuple[str, str], list[metric_lines.EvaluationLine]] = {}
    for place in scan.read(run):
        line = place.line
        if isinstance(line, metric_lines.EvaluationLine):
            key = place.key.process, line.name
            if key in last or len(last) < MAX_EVALUATIONS:
                earlier = last.pop(key, [])
                last[key] = [*earlier, line] if line.name.endswith("cross-validation") else [line]
    return {_encodable(scan.of_process(name, process)): lines for (process, name), lines in last.items()}


def _evaluation(
    run: RunDirectory, title: str, lines: list[metric_lines.EvaluationLine], predictions: str
) -> Evaluation:
    rows = [(line, EvaluationColumn(run, line.predictions)) for line in lines]
    right, of = (sum(line.accuracy[side] for line in lines if line.accuracy is not None) for side in (0, 1))
    errors = [number(line.error) for line in lines if line.error is not None]
    known = [error for error in errors if error is not None]
    return Evaluation(
        name=title,
        task="regression" if lines[-1].task == "regression" else "classification",
        count=sum(column.count * disagreement.predictions_of_row(column, line.form) for line, column in rows),
        accuracy=right / of if of else None,
        labels=_classes(lines),
        mae=math.fsum(known) / len(known) if known and len(known) == len(errors) else None,
        predictions=predictions,
    )


def _classes(lines: list[metric_lines.EvaluationLine]) -> list[Label]:
    counts: dict[str, list[int]] = {}
    for line in lines:
        for counted in line.classes or ():
            if counted.label in counts or len(counts) < MAX_LABELS:
                sums = counts.setdefault(_encodable(counted.label), [0, 0])
                sums[0] += counted.all
                sums[1] += counted.right
    return [Label(label=label, count=count, correct=correct) for label, (count, correct) in counts.items()]


def _labels(run: RunDirectory, lines: list[metric_lines.EvaluationLine], room: int) -> list[str]:
    """Return up to `room` predicted labels, or digests of the values of a regression."""
    labels: list[str] = []
    for line in lines:
        if line.predictions.file is not None:
            for label in _of_line(EvaluationColumn(run, line.predictions), line):
                if len(labels) >= room:
                    return labels
                labels.append(label)
    return labels


def _of_line(column: EvaluationColumn, line: metric_lines.EvaluationLine) -> Iterator[str]:
    per_row, label = disagreement.predictions_of_row(column, line.form), disagreement.labels(line.form, line.labels)
    elements = max(1, math.prod(column.facts.shape[1:]))
    with column.open() as (file, width):
        size = width // elements
        unit, decode = width // per_row, decoder(column.facts.dtype, size)
        left = column.count * per_row if unit else 0
        while left:
            data = file.read(min(max(1, BLOCK // unit), left) * unit)
            if not data:
                raise column.damaged("is cut short")
            left -= len(data) // unit
            for start in range(0, len(data), unit):
                piece = data[start : start + unit]
                yield label(decode(piece)) if label is not None else _bits(piece)


def _bits(data: bytes) -> str:
    """Return a text for predicted values that is equal exactly if the values are."""
    return data.hex() if len(data) <= 16 else hashlib.blake2b(data, digest_size=16).hexdigest()


def _truth_digest(lines: list[metric_lines.EvaluationLine]) -> str:
    """Return a digest of the true values: equal if two runs evaluated the same samples in the same order."""
    digests = [line.truth.digest for line in lines if line.truth is not None]
    return hashlib.blake2b(" ".join(digests).encode(), digest_size=16).hexdigest() if digests else ""


def _positions(labels: list[str], truth: str) -> KeptPredictions:
    positions: dict[str, int] = {}
    predicted = [positions.setdefault(label, len(positions)) for label in labels]
    return KeptPredictions([_encodable(label) for label in positions], predicted, truth)


def _encodable(text: str) -> str:
    """Return a text without lone surrogates, which JSON cannot encode and a script's text may hold."""
    return text.encode("utf-8", "backslashreplace").decode()


def _write(file: Path, data: bytes) -> None:
    """Replace the file whole or not at all, readable by its owner only."""
    with refused_as(CannotWriteRun, file, "make room, then start the study again"):
        file.parent.mkdir(mode=0o700, exist_ok=True)
        write_whole(file, data)
