"""Compares the process metrics: losses, epochs, histories, logs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import msgspec

from reprokit.core.difference import Difference, group
from reprokit.verify.categories.match import Raw, RunPair, SeriesPair
from reprokit.verify.categories.series_leaves import (
    LinePoint,
    LineWording,
    judged,
    judged_leaf,
    leaf,
    nothing,
    numbered,
    place,
)
from reprokit.verify.read.metric_lines import MetricValue, exact, shown

COLLECTIVE = "collective"  # kind of line
_NO_LINE = 1 << 62  # greater than any line's number


def compare(runs: RunPair) -> Difference:
    """Return a leaf for each series; losses come first, as they change first."""
    children = [_judged_series(runs, pair) for pair in _in_causal_order(runs)]
    for pair in runs.unknown():
        children.append(leaf(pair, LineWording(pair.key.kind, "line", _line, nothing, _unknown_key_point)))
    return group("process metrics", tuple(children))


def _judged_series(runs: RunPair, pair: SeriesPair) -> Difference:
    """Return the leaf of a series; collectives have digests only, which the trail's tolerance judges."""
    if pair.key.kind == COLLECTIVE:
        return judged(leaf(pair, PROCESS[COLLECTIVE]), runs.accepted("trail"))
    return judged_leaf(runs, pair, PROCESS[pair.key.kind])


def _in_causal_order(runs: RunPair) -> Iterator[SeriesPair]:
    """Yield the pairs by kind, but first collectives that differ before anything else of their process."""
    pairs = [pair for kind in PROCESS for pair in runs.of(kind)]
    first_lines: dict[str, int] = {}  # by process: the number of the first line that differs
    for pair in pairs:
        process = pair.key.process
        first_lines[process] = min(first_lines.get(process, _NO_LINE), _line_number(pair))
    early = [pair for pair in runs.of(COLLECTIVE) if _line_number(pair) == first_lines[pair.key.process] < _NO_LINE]
    yield from early
    yield from (pair for pair in pairs if pair not in early)


def _line_number(pair: SeriesPair) -> int:
    """Return the number of the differing line in its process."""
    return min((int(line["n"]) for line in (pair.left_line, pair.right_line) if line is not None), default=_NO_LINE)


def text(value: Any) -> str:
    """Return a line's value as text for users."""
    return shown(msgspec.convert(value, MetricValue))


def _distinct_texts(left: Any, right: Any) -> tuple[str, str]:
    """Return the texts of two values, with their types if the texts are equal."""
    if left is None or right is None:
        return _or_absent(left), _or_absent(right)
    if text(left) == text(right):
        return f"{left['dtype']} {text(left)}", f"{right['dtype']} {text(right)}"
    return text(left), text(right)


def _or_absent(value: Any) -> str:
    return "absent" if value is None else text(value)


def _value_point(left: Raw, right: Raw, position: int) -> LinePoint:
    places = place(left, position), place(right, position)
    if places[0] != places[1]:
        return LinePoint(f"value {position + 1}", *places)
    return LinePoint(places[0], *_distinct_texts(left["value"], right["value"]))


def _named_values(left: Raw, right: Raw) -> Iterator[tuple[str, Any, Any]]:
    """Yield name and both values for each value that differs."""
    left_values, right_values = left["values"], right["values"]
    for name in [*left_values, *(name for name in right_values if name not in left_values)]:
        if exact(left_values.get(name)) != exact(right_values.get(name)):
            yield name, left_values.get(name), right_values.get(name)


def _epoch_point(left: Raw, right: Raw, position: int) -> LinePoint:
    epoch_words = numbered("epoch")(left, position)
    if left["epoch"] != right["epoch"]:
        return LinePoint(f"value {position + 1}", f"epoch {left['epoch']}", f"epoch {right['epoch']}")
    for name, left_value, right_value in _named_values(left, right):
        pair = _distinct_texts(left_value, right_value)
        return LinePoint(epoch_words, f"{name} {pair[0]}", f"{name} {pair[1]}")
    return LinePoint(epoch_words, f"{left['steps']} steps", f"{right['steps']} steps")


def _scores_point(left: Raw, right: Raw, position: int) -> LinePoint:
    for name, left_value, right_value in _named_values(left, right):
        return LinePoint(name, *_distinct_texts(left_value, right_value))
    return _unknown_key_point(left, right, position)


def _history_point(left: Raw, right: Raw, position: int) -> LinePoint:
    """Return the earliest epoch in which a metric differs, and the metric."""
    differences: list[tuple[int, str, Any, Any]] = []
    for name, left_values, right_values in _named_values(left, right):
        for epoch, (left_value, right_value) in enumerate(zip_longest(left_values or [], right_values or [])):
            if exact(left_value) != exact(right_value):
                differences.append((epoch, name, left_value, right_value))
                break
    if not differences:
        return _unknown_key_point(left, right, position)
    epoch, name, left_value, right_value = min(differences, key=lambda entry: entry[0])
    pair = _distinct_texts(left_value, right_value)
    return LinePoint(f"epoch {epoch}", f"{name} {pair[0]}", f"{name} {pair[1]}")


def _prediction(line: Raw) -> str:
    return f"{line['dtype']} {line['shape']} {line['digest']}"


def in_words(line: Raw) -> str:
    """Return a short description of a line of kind evaluation."""
    parts = [f"{line['predictions']['shape'][0]} predictions"]
    if line.get("accuracy") is not None:
        parts.append(f"accuracy {share(*line['accuracy'])}")
    if line.get("error") is not None:
        parts.append(f"mean absolute error {text(line['error'])}")
    return ", ".join(parts)


def share(right: int, total: int) -> str:
    """Return an accuracy with its counts."""
    return f"{right / total:.6g} ({right} of {total})"


def _unknown_key_point(left: Raw, right: Raw, position: int) -> LinePoint:
    """Return the first key that differs, for lines with keys that this version does not know."""
    for key in sorted({*left, *right} - {"k", "p", "n", "t"}):
        if left.get(key) != right.get(key):
            return LinePoint(f"line {position + 1}", f"{key} {left.get(key)}", f"{key} {right.get(key)}")
    return LinePoint(f"line {position + 1}", "", "")


def _collective(line: Raw) -> str:
    """Return a short description of a collective's result."""
    if line["calls"] > 1:
        return f"{line['calls']} calls {line['digest']}"
    shape = "x".join(map(str, line["shape"]))
    description = f"{line['operation']} {line['dtype']}{f'[{shape}]' if shape else ''} of {line['ranks']} ranks"
    return f"{description}{'' if line['whole'] else ', pieces'} {line['digest']}"


def _collective_point(left: Raw, right: Raw, position: int) -> LinePoint:
    if left["step"] != right["step"]:
        return LinePoint(f"line {position + 1}", f"call {left['step']}", f"call {right['step']}")
    return LinePoint(_call(left, position), _collective(left), _collective(right))


def _call(line: Raw, position: int) -> str:
    return f"call {line['step']}"


def _value(line: Raw) -> str:
    return text(line["value"])


def _values(line: Raw) -> str:
    return ", ".join(f"{name} {text(value)}" for name, value in line["values"].items())


def _history(line: Raw) -> str:
    return ", ".join(f"{name} {text(values[-1])}" for name, values in line["values"].items() if values)


def _ordinal(line: Raw, position: int) -> str:
    return f"call {position + 1}"


def _line(line: Raw, position: int) -> str:
    return f"line {position + 1}"


PROCESS = {
    "loss": LineWording("loss", "step", place, _value, _value_point),
    COLLECTIVE: LineWording("collectives", "call", _call, _collective, _collective_point),
    "log": LineWording("log", "value", place, _value, _value_point),
    "epoch": LineWording("epochs", "epoch", numbered("epoch"), _values, _epoch_point),
    "history": LineWording("history", "call of fit", _ordinal, _history, _history_point),
}
EVALUATION = {
    "evaluate": LineWording("scores", "call of evaluate", _ordinal, _values, _scores_point),
    "predict": LineWording("predictions", "call of predict", _ordinal, _prediction),  # written by older agents
    "evaluation": LineWording("predictions of", "call", _ordinal, in_words, _unknown_key_point),
}
WORDINGS = {**PROCESS, **EVALUATION}
