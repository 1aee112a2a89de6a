"""Compares the evaluation metrics: every prediction, accuracy in all and by label, mean absolute error, scores."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import zip_longest

import msgspec

from reprokit.difference import Difference, Verdict, compared, different, group
from reprokit.tolerance import Tolerance
from reprokit.verify.compare import disagreement
from reprokit.verify.compare.disagreement import Inconsistencies, PredictionPair
from reprokit.verify.compare.match import RunPair, SeriesPair
from reprokit.verify.compare.metrics import EVALUATION, share
from reprokit.verify.compare.series_leaves import judged, judged_leaf, leaf, number, title
from reprokit.verify.read import metric_lines
from reprokit.verify.read.evaluation_columns import EvaluationColumn
from reprokit.verify.read.metric_lines import EvaluationLine, shown

Counts = dict[str, list[int]]  # right and all, by label

SHOWN = 5  # labels of a set that are named


@dataclass
class EvaluationSide:
    """What the lines of one series of one run come to."""

    predictions: int = 0
    accuracy: list[int] = field(default_factory=lambda: [0, 0])
    classes: Counts = field(default_factory=dict)

    def add(self, line: EvaluationLine) -> None:
        self.predictions += line.predictions.shape[0]
        for position, count in enumerate(line.accuracy or ()):
            self.accuracy[position] += count
        for one in line.classes or ():
            counts = self.classes.setdefault(one.label, [0, 0])
            counts[0] += one.right
            counts[1] += one.all


@dataclass
class EvaluationMatch:
    """What came out of comparing one series, line by line."""

    runs: RunPair
    left: EvaluationSide = field(default_factory=EvaluationSide)
    right: EvaluationSide = field(default_factory=EvaluationSide)
    predictions: Inconsistencies = field(default_factory=Inconsistencies)
    truth: Inconsistencies = field(default_factory=Inconsistencies)
    unknown: list[tuple[str, EvaluationLine, EvaluationLine]] = field(default_factory=list)  # what differs was not kept
    types: list[tuple[str, str]] = field(default_factory=list)
    errors: list[tuple[int, EvaluationLine, EvaluationLine]] = field(default_factory=list)  # by call
    has_error: bool = False
    near: Tolerance | None = None  # of predictions
    scores: Tolerance | None = None


def compare(runs: RunPair) -> Difference:
    """One leaf a series that is exactly equal; of one that differs, what of it does and how much."""
    children = [_group(runs, pair) if pair.differs else _equal(pair) for pair in runs.of("evaluation")]
    children += [judged_leaf(runs, pair, EVALUATION[pair.key.kind]) for pair in runs.of("predict", "evaluate")]
    return group("evaluation metrics", tuple(children), _headline(children))


def _equal(pair: SeriesPair) -> Difference:
    """Return a series that is the same on both sides, or that only one has."""
    result = leaf(pair, EVALUATION["evaluation"])
    if result.verdict is not Verdict.IDENTICAL:
        return result
    text = f"{result.left}, exactly equal"
    return Difference(result.name, Verdict.IDENTICAL, text, text)


def _headline(children: list[Difference]) -> str:
    """One series in a sentence with all that is asked of it: the first one that says most; else nothing."""
    differing = [child for child in children if child.verdict.differs]
    told = [[part.detail for part in child.children if part.verdict.differs and part.detail] for child in differing]
    most = max(map(len, told), default=0)
    if not most:
        return ""
    others = f" (and {len(differing) - 1} more series)" if len(differing) > 1 else ""
    return "; ".join(next(one for one in told if len(one) == most)) + others


def _group(runs: RunPair, pair: SeriesPair) -> Difference:
    """Return what of a series differs, in causal order."""
    name = title(pair.key, "predictions of")
    found = EvaluationMatch(runs, near=runs.accepted("predictions"), scores=runs.accepted("scores"))
    both = [msgspec.convert(lines[pair.key], list[EvaluationLine]) for lines in runs.evaluations]
    if [len(lines) for lines in both] != [side.count if side is not None else 0 for side in (pair.left, pair.right)]:
        bitwise = leaf(pair, EVALUATION["evaluation"])
        return replace(bitwise, detail=f"{bitwise.detail}; there are too many evaluations to compare them one by one")
    for call, (one, other) in enumerate(zip_longest(*both)):
        if one is not None:
            found.left.add(one)
        if other is not None:
            found.right.add(other)
        if one is not None and other is not None:
            _compare_lines(found, call, one, other)
    children = [
        *_calls(pair),
        *(Difference("type", Verdict.DIFFERENT, *texts, f"{name} are of another type") for texts in found.types[:1]),
        *_number(found, name),
        *_truth(found, pair.key.name),
        *_predictions(found, name),
        *_classes(found),
        *_accuracy(found),
        *_errors(found),
    ]
    if not any(child.verdict.not_bitwise for child in children):
        children.append(leaf(pair, EVALUATION["evaluation"]))  # in something that is none of these
    return group(name, tuple(children))


def _compare_lines(found: EvaluationMatch, call: int, left: EvaluationLine, right: EvaluationLine) -> None:
    found.has_error = found.has_error or left.error is not None or right.error is not None
    if _bits(left) != _bits(right):
        found.errors.append((call, left, right))
    if left.truth is not None and right.truth is not None:
        _compare_columns(found, "truth", left, right)
    elif left.truth is not right.truth:
        found.types.append((_type(left), _type(right)))
    _compare_columns(found, "predictions", left, right)


def _bits(line: EvaluationLine) -> object:
    return line.error and (line.error.dtype, line.error.bits)


def _compare_columns(found: EvaluationMatch, side: str, left: EvaluationLine, right: EvaluationLine) -> None:
    """Row for row where both were kept, and are of one type."""
    one, other = getattr(left, side), getattr(right, side)
    left_run, right_run = found.runs.directories
    columns = EvaluationColumn(left_run, one), EvaluationColumn(right_run, other)
    count = min(one.shape[0], other.shape[0])
    result: Inconsistencies = getattr(found, side)
    form = left.form if side == "predictions" else "labels" if left.task == "classification" else "values"
    types = [(_kind(column), line.form, line.labels) for column, line in ((one, left), (other, right))]
    same_type = types[0] == types[1]
    if one.digest == other.digest and same_type:
        result.compared += count * disagreement.predictions_of_row(columns[0], form)
    elif not same_type:
        found.types.append((_type(left), _type(right)))
    elif one.file is None or other.file is None:
        found.unknown.append((side, left, right))
    else:
        names, tolerance = (None, None) if side == "truth" else (left.labels, found.near)
        result.compare(*columns, form, names, tolerance)


def _kind(column: metric_lines.ColumnFacts) -> tuple[str, list[int]]:
    """Return the type of a column, of texts whatever their width."""
    return ("U" if column.dtype.startswith("U") else column.dtype), column.shape[1:]


def _type(line: EvaluationLine) -> str:
    """Return what a line's predictions are, in words."""
    of_truth = f", true values {line.truth.dtype} {line.truth.shape[1:]}" if line.truth is not None else ""
    names = f" of {', '.join(line.labels[:SHOWN])}" if line.labels else ""
    return f"{line.task} by {line.form}{names}, {line.predictions.dtype} {line.predictions.shape[1:]}{of_truth}"


def _calls(pair: SeriesPair) -> Iterator[Difference]:
    left, right = (f"{side.count if side is not None else 0} calls" for side in (pair.left, pair.right))
    if left != right:
        yield different("calls", left, right, f"{pair.key.name}: {left} against {right}")


def _number(found: EvaluationMatch, name: str) -> Iterator[Difference]:
    counts = found.left.predictions, found.right.predictions
    if counts[0] != counts[1]:
        meaning = f"{name} differ in number: {counts[0]} against {counts[1]}"
        yield different("number of predictions", str(counts[0]), str(counts[1]), meaning)


def _truth(found: EvaluationMatch, name: str) -> Iterator[Difference]:
    truth = found.truth
    unknown = [lines for side, *lines in found.unknown if side == "truth"]
    place = truth.first_label or truth.first_bits
    if place is not None:
        meaning = f"{truth.bits} of {truth.compared} true values of {name} differ, first {_at(place)}"
        yield different("true values", place.left, place.right, meaning)
    elif unknown:
        yield _not_kept("true values", unknown[0][0].truth, unknown[0][1].truth)


def _not_kept(name: str, left: object, right: object) -> Difference:
    digests = str(getattr(left, "digest", "")), str(getattr(right, "digest", ""))
    return Difference(name, Verdict.DIFFERENT, *digests, "which of them differ is unknown, as not all were kept")


def _predictions(found: EvaluationMatch, name: str) -> Iterator[Difference]:
    predictions = found.predictions
    unknown = [lines for side, *lines in found.unknown if side == "predictions"]
    place = predictions.first_label or predictions.first_bits
    if place is not None:
        meaning, figures = _inconsistent(predictions, name) + _beyond(found), _figures(predictions)
        place = predictions.first_beyond or place
        yield different("predictions", place.left, place.right, meaning, _verdict(found), figures)
    elif predictions.compared and not unknown and not found.types:
        text = f"{predictions.compared} predictions, exactly equal"
        yield Difference("predictions", Verdict.IDENTICAL, text, text, figures=_figures(predictions))
    if unknown:
        yield judged(_not_kept(name, unknown[0][0].predictions, unknown[0][1].predictions), found.near)
    if predictions.largest_place is not None:
        place = predictions.largest_place
        meaning = f"the largest difference of two numbers is {predictions.largest:.6g}, {_at(place)}"
        yield different("largest difference", place.left, place.right, meaning, _verdict(found))


def _verdict(found: EvaluationMatch) -> Verdict:
    """Of predictions whose bits differ."""
    return Verdict.DIFFERENT if found.predictions.beyond else Verdict.TOLERATED


def _beyond(found: EvaluationMatch) -> str:
    """Return what a tolerance makes of predictions whose bits differ, in words."""
    if found.near is None:
        return ""
    place = found.predictions.first_beyond
    if place is None:
        return f"; all within {found.near}"
    return f"; {found.predictions.beyond} are beyond {found.near}, first {_at(place)}"


def _score(leaf: Difference, found: EvaluationMatch, *pairs: tuple[float, float], dtype: str = "float64") -> Difference:
    """Return the leaf of scores that differ, tolerated where all of them are near enough."""
    near = found.scores
    if near is None or leaf.verdict is not Verdict.DIFFERENT:
        return leaf
    if all(near.accepts(*pair, dtype) for pair in pairs):
        return replace(leaf, judged=Verdict.TOLERATED, detail=f"{leaf.detail}, within {near}")
    return replace(leaf, detail=f"{leaf.detail}, beyond {near}")


def _figures(found: Inconsistencies) -> dict[str, object]:
    first = found.first_label or found.first_bits
    return {
        "compared": found.compared,
        "inconsistent": found.labels,
        "not_bitwise_equal": found.bits,
        "first": first.number if first is not None else None,
        "largest_difference": found.largest if found.largest_place is not None and found.largest < math.inf else None,
    }


def _inconsistent(found: Inconsistencies, name: str) -> str:
    if not found.labels:
        assert found.first_bits is not None
        bits = f"{found.bits} of {found.compared} {name} are not bit for bit equal"
        return f"{bits}, all of the same label; first {_at(found.first_bits)}"
    assert found.first_label is not None
    share = 100 * found.labels / found.compared
    text = f"{found.labels} of {found.compared} {name} are inconsistent ({share:.4g} %), first {_at(found.first_label)}"
    return text if found.bits == found.labels else f"{text}; {found.bits} are not bit for bit equal"


def _at(place: PredictionPair) -> str:
    return f"at number {place.number}: {place.left} against {place.right}"


def _classes(found: EvaluationMatch) -> Iterator[Difference]:
    left, right = found.left.classes, found.right.classes
    for one, other, side in ((left, right, "left"), (right, left, "right")):
        only = [label for label in one if label not in other]
        if only and other:
            names = ", ".join(only[:SHOWN]) + (", ..." if len(only) > SHOWN else "")
            texts = (names, "") if side == "left" else ("", names)
            meaning = f"{len(only)} true labels are known to the {side} run only: {names}"
            yield different("label sets", *texts, meaning)
    shared = [label for label in left if label in right]
    if not shared:
        return
    label = max(shared, key=lambda label: abs(Fraction(*left[label]) - Fraction(*right[label])))
    texts = share(*left[label]), share(*right[label])
    if Fraction(*left[label]) != Fraction(*right[label]):
        meaning = f"the accuracy of label {label} differs most of all labels: {texts[0]} against {texts[1]}"
        figures = {"label": label, "left": left[label], "right": right[label]}
        result = different("per-class accuracy", *texts, meaning, figures=figures)
        rates = [(left[one][0] / left[one][1], right[one][0] / right[one][1]) for one in shared]
        yield _score(result, found, *rates)
    elif left == right:
        text = f"{len(left)} labels, all the same"
        yield Difference("per-class accuracy", Verdict.IDENTICAL, text, text)


def _accuracy(found: EvaluationMatch) -> Iterator[Difference]:
    left, right = found.left.accuracy, found.right.accuracy
    if left[1] or right[1]:
        texts = share(*left) if left[1] else "", share(*right) if right[1] else ""
        result = compared("accuracy", *texts, f"accuracy {texts[0] or 'absent'} against {texts[1] or 'absent'}")
        result = replace(result, figures={"left": left, "right": right}, is_sentence=True)
        both = left[1] and right[1]
        yield _score(result, found, (left[0] / left[1], right[0] / right[1])) if both else result


def _errors(found: EvaluationMatch) -> Iterator[Difference]:
    if not found.errors:
        if found.has_error:
            yield Difference("mean absolute error", Verdict.IDENTICAL, "the same", "the same")
        return
    call, left, right = found.errors[0]
    texts = shown(left.error) if left.error else "", shown(right.error) if right.error else ""
    where = f" of call {call + 1}" if call else ""
    meaning = f"mean absolute error{where} {texts[0] or 'absent'} against {texts[1] or 'absent'}"
    both = [(one.error, other.error) for _, one, other in found.errors if one.error and other.error]
    pairs = [(number(one), number(other)) for one, other in both]
    known = [(one, other) for one, other in pairs if one is not None and other is not None]
    types = {value.dtype for pair in both for value in pair}
    result = replace(compared("mean absolute error", *texts, meaning, same=False), is_sentence=True)
    judgeable = len(known) == len(found.errors) and len(types) == 1
    yield _score(result, found, *known, dtype=types.pop()) if judgeable else result
