"""Describes parts and how they differ in words: tensors by their statistics, values by their distance."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Any

from reprokit.core import dtypes
from reprokit.core.difference import Difference, Verdict
from reprokit.core.printable import cut
from reprokit.core.tolerance import Tolerance
from reprokit.diff.elements import BookkeepingJudge, Noise, Part, TensorPart, Value
from reprokit.diff.sources import read_exactly
from reprokit.diff.tensors import Extreme, TensorStatistics, document, multi_index, strides_of

LONGEST = 200  # characters of a value
NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
NOT_FINITE = ("nan", "inf", "-inf", "infinity", "-infinity")
LONGEST_NUMBER = 400
WIDEST = 30  # characters of the longest bar of the histogram


def shortened(text: str) -> str:
    """Return a text shortened to LONGEST characters."""
    return cut(text, LONGEST)


def shape_text(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def described(part: Part) -> str:
    """Describe a part: dtype and shape, text, or size."""
    if isinstance(part, TensorPart):
        return f"{part.dtype} {shape_text(part.shape)}"
    if isinstance(part, (Value, Noise)):
        return shortened(part.text) or "(empty)"
    return f"{part.source.size} bytes"


def counted(differing: int, compared: int, kind: str) -> str:
    """Return a phrase such as "2 of 5 tensors differ"."""
    things = {"file within": "files within"}.get(kind, f"{kind}s")
    return f"{differing} of {compared} {things if compared != 1 else kind} differ{'s' if differing == 1 else ''}"


def element(tensor: TensorPart, at: int) -> bytes:
    """Return the bytes of the element at a flat index in C order, little-endian."""
    dtype = dtypes.named(tensor.dtype)
    if dtype.packed:
        return _packed_element(tensor, dtype, at)
    steps = zip(multi_index(at, tensor.shape), strides_of(tensor), strict=True)
    position = sum(index * stride for index, stride in steps) if tensor.strides else at
    size = dtype.element_size
    data = read_exactly(tensor.source, tensor.offset + position * size, size)
    if not tensor.big_endian or dtype.kind == dtypes.RAW:
        return data
    return b"".join(data[i : i + dtype.size][::-1] for i in range(0, size, dtype.size))


def _packed_element(tensor: TensorPart, dtype: dtypes.Dtype, at: int) -> bytes:
    first = at * dtype.bits
    last = (first + dtype.bits - 1) // 8
    word = int.from_bytes(read_exactly(tensor.source, tensor.offset + first // 8, last - first // 8 + 1), "little")
    return bytes([word >> first % 8 & ((1 << dtype.bits) - 1)])


def tensor_difference(
    name: str, left: TensorPart, right: TensorPart, statistics: TensorStatistics, tolerance: Tolerance | None
) -> Difference:
    """Return the leaf of two tensors that differ; the statistics must be of the same tolerance."""
    dtype = dtypes.named(left.dtype)
    verdict, index, remarks = Verdict.DIFFERENT, statistics.first, [summary(statistics, left.shape, left.dtype)]
    if tolerance is not None and statistics.beyond:
        index = statistics.first_beyond
        remarks.append(f"{statistics.beyond} beyond {tolerance}")
    elif tolerance is not None:
        verdict = Verdict.TOLERATED
        remarks.append(f"all within {tolerance}")
    assert index is not None
    elements = element(left, index), element(right, index)
    texts = [dtypes.shown(dtype, data, meaning=left.meaning) for data in elements]
    if texts[0] == texts[1]:
        texts = [dtypes.shown(dtype, data, exact=True) for data in elements]
    figures = {"dtype": left.dtype, "shape": list(left.shape), **document(statistics, left.shape)}
    return Difference(name, verdict, texts[0], texts[1], "; ".join(remarks), figures=figures)


def summary(stats: TensorStatistics, shape: tuple[int, ...], dtype: str) -> str:
    """Return a phrase: how many elements differ, the first of them, and the largest distances."""
    assert stats.first is not None
    number = f"{stats.differing} of {stats.elements} elements" if stats.elements > 1 else "the only element"
    pieces = [f"{number} of {dtype} {shape_text(shape)} differ{'s' if stats.differing == 1 else ''}"]
    if stats.elements > 1:
        pieces[0] += f", first at {shape_text(tuple(multi_index(stats.first, shape)))}"
    pieces += _distances(stats, shape)
    special = (
        (stats.sign_change, "with another sign"),
        (stats.zero_sign, "+0 against -0"),
        (stats.nan_payload, "NaN against another NaN"),
        (stats.nan, "NaN against a number"),
        (stats.infinite, "infinity against another value"),
    )
    pieces += [f"{count} {text}" for count, text in special if count]
    return "; ".join(pieces)


def _distances(stats: TensorStatistics, shape: tuple[int, ...]) -> list[str]:
    def place(extreme: Extreme) -> str:
        return shape_text(tuple(multi_index(extreme.at, shape)))

    if stats.absolute is None or stats.relative is None or stats.ulp is None or stats.ulp.whole == 0:
        return []
    absolute, relative, ulp = stats.absolute, stats.relative, stats.ulp
    if stats.elements == 1:
        return [f"by {absolute.value:.6g}, relative {relative.value:.3g}, {ulp.whole} ULP"]
    return [
        f"at most {absolute.value:.6g} at {place(absolute)}, relative {relative.value:.3g} at {place(relative)},"
        f" {ulp.whole} ULP at {place(ulp)}"
    ]


def value_difference(name: str, left: str, right: str, *, tolerance: Tolerance | None = None) -> Difference | None:
    """Compare two texts; return their leaf, or None if equal. Numbers are compared as float64 with the tolerance."""
    if left == right:
        return None
    texts = shortened(left) or "(empty)", shortened(right) or "(empty)"
    if texts[0] == texts[1]:
        start = first_difference(left, right)
        texts = shortened("..." + left[start:]), shortened("..." + right[start:])
    distance_text = distance(left, right) or "another value"
    if tolerance is not None and _is_within(left, right, tolerance):
        return Difference(name, Verdict.TOLERATED, *texts, f"{distance_text}; within {tolerance}")
    return Difference(name, Verdict.DIFFERENT, *texts, distance_text)


def judged_value(
    judge: BookkeepingJudge,
    difference: Difference,
    path: str,
    texts: tuple[str, str],
    beside: tuple[str, ...] = (),
    *,
    is_row: bool = False,
) -> Difference:
    """Return the difference of two values as bookkeeping if it is that, else with advice if it looks so."""
    result = judge.value(difference.name, path, texts, beside, is_row=is_row)
    if result is not None or not difference.verdict.differs:
        return result or difference
    advice = judge.advice(path, texts)
    return replace(difference, detail=f"{difference.detail}; {advice}") if advice else difference


def _is_within(left: str, right: str, tolerance: Tolerance) -> bool:
    numbers = [
        float(text) if _number(text) is not None or text.strip().lower() in NOT_FINITE else None
        for text in (left, right)
    ]
    return numbers[0] is not None and numbers[1] is not None and tolerance.accepts(numbers[0], numbers[1], "float64")


def first_difference(left: str, right: str) -> int:
    """Return the index of the first character in which two texts differ."""
    pairs = enumerate(zip(left, right, strict=False))
    return next(
        (index for index, (left_character, right_character) in pairs if left_character != right_character),
        min(len(left), len(right)),
    )


def distance(left: str, right: str) -> str:
    """Describe the distance of two texts if both are decimal numbers; else return an empty text."""
    numbers = _number(left), _number(right)
    if numbers[0] is None or numbers[1] is None:
        return ""
    if numbers[0] == numbers[1]:
        if numbers[0].is_signed() is not numbers[1].is_signed():
            return "+0 against -0"
        return "the same number, written in another way"
    try:
        apart = abs(numbers[0] - numbers[1])
        relative = apart / max(abs(numbers[0]), abs(numbers[1]))
    except (InvalidOperation, ArithmeticError):
        return ""
    return f"{apart:.6g} apart, relative {relative:.3g}"


def _number(text: str) -> Decimal | None:
    if len(text) > LONGEST_NUMBER or not NUMBER.fullmatch(text.strip()):
        return None
    return Decimal(text.strip())


def histogram(figures: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the rows of the ULP histogram: the distances, and their count with a bar."""
    counts = figures.get("ulp_histogram", {})
    most = max(counts.values(), default=0)
    for name, count in counts.items():
        bar = "#" * max(1, WIDEST * count // most)
        yield f"{name} ULP", f"{count} {bar}"
