"""What the runs of a study predicted: kept as labels when a run has ended, read when any two runs are compared.

A run's own files hold scores, which are many times as large and mean nothing without the line that tells of them.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from reprokit.errors import CannotWriteRun, refused_as
from reprokit.rundir import RunDirectory, beginning, write_whole
from reprokit.study.results import Evaluation, Label
from reprokit.verify.compare import disagreement
from reprokit.verify.compare.series_leaves import number
from reprokit.verify.read import metric_lines, scan
from reprokit.verify.read.evaluation_columns import BLOCK, EvaluationColumn, decoder

FORMAT: Final = 1
MAX_PREDICTIONS: Final = 1_000_000  # of a run that are kept
MAX_EVALUATIONS: Final = 200  # of a run; a script that names each call anew could make any number
MAX_LABELS: Final = 10_000  # classes of an evaluation, as many as a run tells of
MAX_FILE: Final = 128 << 20  # bytes
_NAME = re.compile(r"predictions/[^/\0.][^/\0]{0,250}\.json")


class KeptPredictions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The predictions of one evaluation, as positions in the list of its labels."""

    labels: list[str]
    predicted: list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]]
    truth: Annotated[str, msgspec.Meta(max_length=64)] = ""  # digest of what was true of them, in their order


class KeptFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """predictions/SETUP-PP-PART.json"""

    format: Literal[1] = FORMAT
    evaluations: dict[str, KeptPredictions]


def keep(run: RunDirectory, file: Path, name: str) -> list[Evaluation]:
    """Return the evaluations of a run; their predictions are written to the file, which results refer to by name."""
    room, kept, found = MAX_PREDICTIONS, {}, []
    for title, told in _last(run).items():
        whole = told[-1].predictions.file is not None
        labels = _labels(run, told, room) if whole else []
        room -= len(labels)
        if labels:
            kept[title] = _positions(labels, _truth(told))
        found.append(_evaluation(run, title, told, name if labels else ""))
    if kept:
        _write(file, msgspec.json.encode(KeptFile(evaluations=kept)))
    return found


def read(directory: Path, name: str) -> dict[str, KeptPredictions]:
    """Return the predictions of a result by evaluation; none if the file is invalid."""
    if not _NAME.fullmatch(name):
        return {}
    try:
        content = msgspec.json.decode(beginning(directory / name, MAX_FILE), type=KeptFile).evaluations
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return {}
    return {key: one for key, one in content.items() if max(one.predicted, default=-1) < len(one.labels)}


def _last(run: RunDirectory) -> dict[str, list[metric_lines.EvaluationLine]]:
    """Return the lines of the last evaluation of each name, in order; a cross-validation has several, its folds."""
    found: dict[tuple[str, str], list[metric_lines.EvaluationLine]] = {}
    for place in scan.read(run):
        line = place.line
        if isinstance(line, metric_lines.EvaluationLine):
            key = place.key.process, line.name
            if key in found or len(found) < MAX_EVALUATIONS:
                earlier = found.pop(key, [])
                found[key] = [*earlier, line] if line.name.endswith("cross-validation") else [line]
    return {_encodable(scan.of_process(name, process)): told for (process, name), told in found.items()}


def _evaluation(run: RunDirectory, title: str, told: list[metric_lines.EvaluationLine], predictions: str) -> Evaluation:
    rows = [(line, EvaluationColumn(run, line.predictions)) for line in told]
    right, of = (sum(line.accuracy[side] for line in told if line.accuracy is not None) for side in (0, 1))
    errors = [number(line.error) for line in told if line.error is not None]
    known = [error for error in errors if error is not None]
    return Evaluation(
        name=title,
        task="regression" if told[-1].task == "regression" else "classification",
        count=sum(column.count * disagreement.predictions_of_row(column, line.form) for line, column in rows),
        accuracy=right / of if of else None,
        labels=_classes(told),
        mae=math.fsum(known) / len(known) if known and len(known) == len(errors) else None,
        predictions=predictions,
    )


def _classes(told: list[metric_lines.EvaluationLine]) -> list[Label]:
    counts: dict[str, list[int]] = {}
    for line in told:
        for one in line.classes or ():
            if one.label in counts or len(counts) < MAX_LABELS:
                sums = counts.setdefault(_encodable(one.label), [0, 0])
                sums[0] += one.all
                sums[1] += one.right
    return [Label(label=label, count=count, correct=correct) for label, (count, correct) in counts.items()]


def _labels(run: RunDirectory, told: list[metric_lines.EvaluationLine], room: int) -> list[str]:
    """Return the predicted labels, or digests of a regression's values, as many as there is room for."""
    found: list[str] = []
    for line in told:
        if line.predictions.file is not None:
            for label in _of_line(EvaluationColumn(run, line.predictions), line):
                if len(found) >= room:
                    return found
                found.append(label)
    return found


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
    """Return a text that stands for predicted values: equal exactly if the values are."""
    return data.hex() if len(data) <= 16 else hashlib.blake2b(data, digest_size=16).hexdigest()


def _truth(told: list[metric_lines.EvaluationLine]) -> str:
    """Return a digest of the true values, which tells whether two runs evaluated the same samples in the same order."""
    digests = [line.truth.digest for line in told if line.truth is not None]
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
