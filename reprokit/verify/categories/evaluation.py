"""Compares evaluations: each prediction, accuracy overall and by label, mean absolute error and scores."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import zip_longest

import msgspec

from reprokit.core.difference import Difference, Verdict, compared, different, group
from reprokit.core.tolerance import Tolerance
from reprokit.verify.categories import disagreement
from reprokit.verify.categories.disagreement import Inconsistencies, PredictionPair
from reprokit.verify.categories.match import RunPair, SeriesPair
from reprokit.verify.categories.metrics import EVALUATION, share
from reprokit.verify.categories.series_leaves import judged, judged_leaf, leaf, number, title
from reprokit.verify.read import metric_lines
from reprokit.verify.read.evaluation_columns import EvaluationColumn
from reprokit.verify.read.metric_lines import EvaluationLine, shown
from reprokit.verify.verdict import equal_predictions

Counts = dict[str, list[int]]  # numbers of right and of all predictions, by label

SHOWN = 5  # labels listed of a set


@dataclass
class EvaluationSide:
    """The sums over one run's lines of a series."""

    predictions: int = 0
    accuracy: list[int] = field(default_factory=lambda: [0, 0])
    classes: Counts = field(default_factory=dict)

    def add(self, line: EvaluationLine) -> None:
        self.predictions += line.predictions.shape[0]
        for position, count in enumerate(line.accuracy or ()):
            self.accuracy[position] += count
        for class_count in line.classes or ():
            counts = self.classes.setdefault(class_count.label, [0, 0])
            counts[0] += class_count.right
            counts[1] += class_count.all


@dataclass
class EvaluationMatch:
    """The result of comparing the lines of one series."""

    runs: RunPair
    left: EvaluationSide = field(default_factory=EvaluationSide)
    right: EvaluationSide = field(default_factory=EvaluationSide)
    predictions: Inconsistencies = field(default_factory=Inconsistencies)
    truth: Inconsistencies = field(default_factory=Inconsistencies)
    unknown: list[tuple[str, EvaluationLine, EvaluationLine]] = field(
        default_factory=list
    )  # lines whose differing values were not kept
    types: list[tuple[str, str]] = field(default_factory=list)
    errors: list[tuple[int, EvaluationLine, EvaluationLine]] = field(default_factory=list)  # by number of the call
    has_error: bool = False
    near: Tolerance | None = None  # tolerance of predictions
    scores: Tolerance | None = None


def compare(runs: RunPair) -> Difference:
    """Return a leaf for each series that is exactly equal; for others a group with what differs."""
    children = [_series_group(runs, pair) if pair.differs else _equal_leaf(pair) for pair in runs.of("evaluation")]
    children += [judged_leaf(runs, pair, EVALUATION[pair.key.kind]) for pair in runs.of("predict", "evaluate")]
    return group("evaluation metrics", tuple(children), _headline(children))


def _equal_leaf(pair: SeriesPair) -> Difference:
    """Return the leaf of a series that is equal, or that only one run has."""
    result = leaf(pair, EVALUATION["evaluation"])
    if result.verdict is not Verdict.IDENTICAL:
        return result
    text = equal_predictions(result.left)
    return Difference(result.name, Verdict.IDENTICAL, text, text)


def _headline(children: list[Difference]) -> str:
    """Return the differences of the first series with most of them, in a sentence; empty if nothing differs."""
    differing = [child for child in children if child.verdict.differs]
    details = [[part.detail for part in child.children if part.verdict.differs and part.detail] for child in differing]
    longest = max(map(len, details), default=0)
    if not longest:
        return ""
    others = f" (and {len(differing) - 1} more series)" if len(differing) > 1 else ""
    return (
        "; ".join(next(details_of_child for details_of_child in details if len(details_of_child) == longest)) + others
    )


def _series_group(runs: RunPair, pair: SeriesPair) -> Difference:
    """Return the differences of a series in causal order."""
    name = title(pair.key, "predictions of")
    match = EvaluationMatch(runs, near=runs.accepted("predictions"), scores=runs.accepted("scores"))
    lines_of_both = [msgspec.convert(lines[pair.key], list[EvaluationLine]) for lines in runs.evaluations]
    if [len(lines) for lines in lines_of_both] != [
        side.count if side is not None else 0 for side in (pair.left, pair.right)
    ]:
        bitwise = leaf(pair, EVALUATION["evaluation"])
        return replace(bitwise, detail=f"{bitwise.detail}; there are too many evaluations to compare them one by one")
    for call, (left_line, right_line) in enumerate(zip_longest(*lines_of_both)):
        if left_line is not None:
            match.left.add(left_line)
        if right_line is not None:
            match.right.add(right_line)
        if left_line is not None and right_line is not None:
            _compare_lines(match, call, left_line, right_line)
    children = [
        *_calls(pair),
        *(Difference("type", Verdict.DIFFERENT, *texts, f"{name} are of another type") for texts in match.types[:1]),
        *_number_of_predictions(match, name),
        *_truth(match, pair.key.name),
        *_predictions(match, name),
        *_classes(match),
        *_accuracy(match),
        *_errors(match),
    ]
    if not any(child.verdict.not_bitwise for child in children):
        children.append(leaf(pair, EVALUATION["evaluation"]))  # the difference is in none of these
    return group(name, tuple(children))


def _compare_lines(match: EvaluationMatch, call: int, left: EvaluationLine, right: EvaluationLine) -> None:
    match.has_error = match.has_error or left.error is not None or right.error is not None
    if _bits(left) != _bits(right):
        match.errors.append((call, left, right))
    if left.truth is not None and right.truth is not None:
        _compare_columns(match, "truth", left, right)
    elif left.truth is not right.truth:
        match.types.append((_type(left), _type(right)))
    _compare_columns(match, "predictions", left, right)


def _bits(line: EvaluationLine) -> object:
    return line.error and (line.error.dtype, line.error.bits)


def _compare_columns(match: EvaluationMatch, side: str, left: EvaluationLine, right: EvaluationLine) -> None:
    """Compare two columns row by row, if both were kept and have one type."""
    left_facts, right_facts = getattr(left, side), getattr(right, side)
    left_run, right_run = match.runs.directories
    columns = EvaluationColumn(left_run, left_facts), EvaluationColumn(right_run, right_facts)
    count = min(left_facts.shape[0], right_facts.shape[0])
    result: Inconsistencies = getattr(match, side)
    form = left.form if side == "predictions" else "labels" if left.task == "classification" else "values"
    types = [(_kind(column), line.form, line.labels) for column, line in ((left_facts, left), (right_facts, right))]
    same_type = types[0] == types[1]
    if left_facts.digest == right_facts.digest and same_type:
        result.compared += count * disagreement.predictions_of_row(columns[0], form)
    elif not same_type:
        match.types.append((_type(left), _type(right)))
    elif left_facts.file is None or right_facts.file is None:
        match.unknown.append((side, left, right))
    else:
        names, tolerance = (None, None) if side == "truth" else (left.labels, match.near)
        result.compare(*columns, form, names, tolerance)


def _kind(column: metric_lines.ColumnFacts) -> tuple[str, list[int]]:
    """Return a column's type and shape of a row; all widths of text are one type."""
    return ("U" if column.dtype.startswith("U") else column.dtype), column.shape[1:]


def _type(line: EvaluationLine) -> str:
    """Return the type of a line's predictions, in words."""
    of_truth = f", true values {line.truth.dtype} {line.truth.shape[1:]}" if line.truth is not None else ""
    names = f" of {', '.join(line.labels[:SHOWN])}" if line.labels else ""
    return f"{line.task} by {line.form}{names}, {line.predictions.dtype} {line.predictions.shape[1:]}{of_truth}"


def _calls(pair: SeriesPair) -> Iterator[Difference]:
    left, right = (f"{side.count if side is not None else 0} calls" for side in (pair.left, pair.right))
    if left != right:
        yield different("calls", left, right, f"{pair.key.name}: {left} against {right}")


def _number_of_predictions(match: EvaluationMatch, name: str) -> Iterator[Difference]:
    counts = match.left.predictions, match.right.predictions
    if counts[0] != counts[1]:
        meaning = f"{name} differ in number: {counts[0]} against {counts[1]}"
        yield different("number of predictions", str(counts[0]), str(counts[1]), meaning)


def _truth(match: EvaluationMatch, name: str) -> Iterator[Difference]:
    truth = match.truth
    unknown = [lines for side, *lines in match.unknown if side == "truth"]
    place = truth.first_label or truth.first_bits
    if place is not None:
        meaning = f"{truth.bits} of {truth.compared} true values of {name} differ, first {_at(place)}"
        yield different("true values", place.left, place.right, meaning)
    elif unknown:
        yield _not_kept("true values", unknown[0][0].truth, unknown[0][1].truth)


def _not_kept(name: str, left: object, right: object) -> Difference:
    digests = str(getattr(left, "digest", "")), str(getattr(right, "digest", ""))
    return Difference(name, Verdict.DIFFERENT, *digests, "which of them differ is unknown, as not all were kept")


def _predictions(match: EvaluationMatch, name: str) -> Iterator[Difference]:
    predictions = match.predictions
    unknown = [lines for side, *lines in match.unknown if side == "predictions"]
    place = predictions.first_label or predictions.first_bits
    if place is not None:
        meaning, figures = _inconsistency_words(predictions, name) + _tolerance_words(match), _figures(predictions)
        place = predictions.first_beyond or place
        yield different("predictions", place.left, place.right, meaning, _verdict(match), figures)
    elif predictions.compared and not unknown and not match.types:
        text = equal_predictions(f"{predictions.compared} predictions")
        yield Difference("predictions", Verdict.IDENTICAL, text, text, figures=_figures(predictions))
    if unknown:
        yield judged(_not_kept(name, unknown[0][0].predictions, unknown[0][1].predictions), match.near)
    if predictions.largest_place is not None:
        place = predictions.largest_place
        meaning = f"the largest difference of two numbers is {predictions.largest:.6g}, {_at(place)}"
        yield different("largest difference", place.left, place.right, meaning, _verdict(match))


def _verdict(match: EvaluationMatch) -> Verdict:
    """Return the verdict on predictions whose bits differ."""
    return Verdict.DIFFERENT if match.predictions.beyond else Verdict.TOLERATED


def _tolerance_words(match: EvaluationMatch) -> str:
    """Return how predictions whose bits differ relate to the tolerance, in words."""
    if match.near is None:
        return ""
    place = match.predictions.first_beyond
    if place is None:
        return f"; all within {match.near}"
    return f"; {match.predictions.beyond} are beyond {match.near}, first {_at(place)}"


def _judged_score(
    leaf: Difference, match: EvaluationMatch, *pairs: tuple[float, float], dtype: str = "float64"
) -> Difference:
    """Return the leaf of scores that differ, tolerated if all of them are within the tolerance."""
    near = match.scores
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


def _inconsistency_words(found: Inconsistencies, name: str) -> str:
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


def _classes(match: EvaluationMatch) -> Iterator[Difference]:
    left, right = match.left.classes, match.right.classes
    for labels_here, labels_there, side in ((left, right, "left"), (right, left, "right")):
        only = [label for label in labels_here if label not in labels_there]
        if only and labels_there:
            names = ", ".join(only[:SHOWN]) + (", ..." if len(only) > SHOWN else "")
            texts = (names, "") if side == "left" else ("", names)
            meaning = f"{len(only)} true labels are known to the {side} run only: {names}"
            yield different("label sets", *texts, meaning)
    common = [label for label in left if label in right]
    if not common:
        return
    label = max(common, key=lambda label: abs(Fraction(*left[label]) - Fraction(*right[label])))
    texts = share(*left[label]), share(*right[label])
    if Fraction(*left[label]) != Fraction(*right[label]):
        meaning = f"the accuracy of label {label} differs most of all labels: {texts[0]} against {texts[1]}"
        figures = {"label": label, "left": left[label], "right": right[label]}
        result = different("per-class accuracy", *texts, meaning, figures=figures)
        rates = [
            (left[labels_here][0] / left[labels_here][1], right[labels_here][0] / right[labels_here][1])
            for labels_here in common
        ]
        yield _judged_score(result, match, *rates)
    elif left == right:
        text = f"{len(left)} labels, all the same"
        yield Difference("per-class accuracy", Verdict.IDENTICAL, text, text)


def _accuracy(match: EvaluationMatch) -> Iterator[Difference]:
    left, right = match.left.accuracy, match.right.accuracy
    if left[1] or right[1]:
        texts = share(*left) if left[1] else "", share(*right) if right[1] else ""
        result = compared("accuracy", *texts, f"accuracy {texts[0] or 'absent'} against {texts[1] or 'absent'}")
        result = replace(result, figures={"left": left, "right": right}, is_sentence=True)
        both_known = left[1] and right[1]
        yield _judged_score(result, match, (left[0] / left[1], right[0] / right[1])) if both_known else result


def _errors(match: EvaluationMatch) -> Iterator[Difference]:
    if not match.errors:
        if match.has_error:
            yield Difference("mean absolute error", Verdict.IDENTICAL, "the same", "the same")
        return
    call, left, right = match.errors[0]
    texts = shown(left.error) if left.error else "", shown(right.error) if right.error else ""
    call_words = f" of call {call + 1}" if call else ""
    meaning = f"mean absolute error{call_words} {texts[0] or 'absent'} against {texts[1] or 'absent'}"
    errors = [
        (left_error.error, right_error.error)
        for _, left_error, right_error in match.errors
        if left_error.error and right_error.error
    ]
    pairs = [(number(left_error), number(right_error)) for left_error, right_error in errors]
    known_pairs = [
        (left_error, right_error)
        for left_error, right_error in pairs
        if left_error is not None and right_error is not None
    ]
    types = {value.dtype for pair in errors for value in pair}
    result = replace(compared("mean absolute error", *texts, meaning, same=False), is_sentence=True)
    judgeable = len(known_pairs) == len(match.errors) and len(types) == 1
    yield _judged_score(result, match, *known_pairs, dtype=types.pop()) if judgeable else result
