"""Compares the process metrics: losses, epochs, histories, logs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import msgspec

from reprokit.difference import Difference, group
from reprokit.verify.compare.match import Raw, RunPair, SeriesPair
from reprokit.verify.compare.series_leaves import (
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

COLLECTIVE = "collective"  # a kind of lines
_NOWHERE = 1 << 62  # beyond the number of any line


def compare(runs: RunPair) -> Difference:
    """One leaf a series; losses come first, as they change first."""
    children = [_judged(runs, pair) for pair in _in_causal_order(runs)]
    for pair in runs.unknown():
        children.append(leaf(pair, LineWording(pair.key.kind, "line", _line, nothing, _other_point)))
    return group("process metrics", tuple(children))


def _judged(runs: RunPair, pair: SeriesPair) -> Difference:
    """Return the leaf of a series; of collectives only digests are known, as of the trail."""
    if pair.key.kind == COLLECTIVE:
        return judged(leaf(pair, PROCESS[COLLECTIVE]), runs.accepted("trail"))
    return judged_leaf(runs, pair, PROCESS[pair.key.kind])


def _in_causal_order(runs: RunPair) -> Iterator[SeriesPair]:
    """Yield the pairs by their kinds, but first the collectives that differ before anything else of their process."""
    pairs = [pair for kind in PROCESS for pair in runs.of(kind)]
    lines: dict[str, int] = {}  # of each process: the number of the first line that differs
    for pair in pairs:
        process = pair.key.process
        lines[process] = min(lines.get(process, _NOWHERE), _line_number(pair))
    early = [pair for pair in runs.of(COLLECTIVE) if _line_number(pair) == lines[pair.key.process] < _NOWHERE]
    yield from early
    yield from (pair for pair in pairs if pair not in early)


def _line_number(pair: SeriesPair) -> int:
    """Return the number, in its process, of the line that differs."""
    return min((int(line["n"]) for line in (pair.left_line, pair.right_line) if line is not None), default=_NOWHERE)


def text(value: Any) -> str:
    """Return a value as it stands in a line, for people."""
    return shown(msgspec.convert(value, MetricValue))


def _told_apart(left: Any, right: Any) -> tuple[str, str]:
    """Two values for people, with their types where nothing else differs."""
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
    return LinePoint(places[0], *_told_apart(left["value"], right["value"]))


def _named_values(left: Raw, right: Raw) -> Iterator[tuple[str, Any, Any]]:
    """Yield the values by name that are not the same on both sides."""
    one, other = left["values"], right["values"]
    for name in [*one, *(name for name in other if name not in one)]:
        if exact(one.get(name)) != exact(other.get(name)):
            yield name, one.get(name), other.get(name)


def _epoch_point(left: Raw, right: Raw, position: int) -> LinePoint:
    where = numbered("epoch")(left, position)
    if left["epoch"] != right["epoch"]:
        return LinePoint(f"value {position + 1}", f"epoch {left['epoch']}", f"epoch {right['epoch']}")
    for name, one, other in _named_values(left, right):
        pair = _told_apart(one, other)
        return LinePoint(where, f"{name} {pair[0]}", f"{name} {pair[1]}")
    return LinePoint(where, f"{left['steps']} steps", f"{right['steps']} steps")


def _scores_point(left: Raw, right: Raw, position: int) -> LinePoint:
    for name, one, other in _named_values(left, right):
        return LinePoint(name, *_told_apart(one, other))
    return _other_point(left, right, position)


def _history_point(left: Raw, right: Raw, position: int) -> LinePoint:
    """Return the earliest epoch in which any metric differs, and the metric."""
    found: list[tuple[int, str, Any, Any]] = []
    for name, one, other in _named_values(left, right):
        for epoch, (a, b) in enumerate(zip_longest(one or [], other or [])):
            if exact(a) != exact(b):
                found.append((epoch, name, a, b))
                break
    if not found:
        return _other_point(left, right, position)
    epoch, name, a, b = min(found, key=lambda entry: entry[0])
    pair = _told_apart(a, b)
    return LinePoint(f"epoch {epoch}", f"{name} {pair[0]}", f"{name} {pair[1]}")


def _prediction(line: Raw) -> str:
    return f"{line['dtype']} {line['shape']} {line['digest']}"


def in_words(line: Raw) -> str:
    """Return what a line of kind evaluation says of its predictions, in short."""
    parts = [f"{line['predictions']['shape'][0]} predictions"]
    if line.get("accuracy") is not None:
        parts.append(f"accuracy {share(*line['accuracy'])}")
    if line.get("error") is not None:
        parts.append(f"mean absolute error {text(line['error'])}")
    return ", ".join(parts)


def share(right: int, total: int) -> str:
    """Return an accuracy with the counts that it is made of."""
    return f"{right / total:.6g} ({right} of {total})"


def _other_point(left: Raw, right: Raw, position: int) -> LinePoint:
    """For keys that this version does not know: the first one that differs."""
    for key in sorted({*left, *right} - {"k", "p", "n", "t"}):
        if left.get(key) != right.get(key):
            return LinePoint(f"line {position + 1}", f"{key} {left.get(key)}", f"{key} {right.get(key)}")
    return LinePoint(f"line {position + 1}", "", "")


def _collective(line: Raw) -> str:
    """Return what a collective gave, in short."""
    if line["calls"] > 1:
        return f"{line['calls']} calls {line['digest']}"
    shape = "x".join(map(str, line["shape"]))
    what = f"{line['operation']} {line['dtype']}{f'[{shape}]' if shape else ''} of {line['ranks']} ranks"
    return f"{what}{'' if line['whole'] else ', pieces'} {line['digest']}"


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
    "predict": LineWording("predictions", "call of predict", _ordinal, _prediction),  # of older agents
    "evaluation": LineWording("predictions of", "call", _ordinal, in_words, _other_point),
}
WORDINGS = {**PROCESS, **EVALUATION}
