"""Says in words what parts are and how they differ: tensors by their statistics, values by their distance."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from reprokit import dtypes
from reprokit.artifacts.elements import Noise, Part, TensorPart, Value
from reprokit.artifacts.sources import exactly
from reprokit.artifacts.tensors import Extreme, TensorStatistics, document, multi_index, strides_of
from reprokit.difference import Difference, Verdict
from reprokit.tolerance import Tolerance

LONGEST = 200  # characters of a value
NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
NOT_FINITE = ("nan", "inf", "-inf", "infinity", "-infinity")
LONGEST_NUMBER = 400
WIDEST = 30  # characters of a bar


def cut(text: str) -> str:
    """Return a value short enough to be read."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def shape_text(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def described(part: Part) -> str:
    """Return a part in a few words."""
    if isinstance(part, TensorPart):
        return f"{part.dtype} {shape_text(part.shape)}"
    if isinstance(part, (Value, Noise)):
        return cut(part.text) or "(empty)"
    return f"{part.source.size} bytes"


def counted(differing: int, compared: int, kind: str) -> str:
    """Return how many of how many things differ."""
    things = {"file within": "files within"}.get(kind, f"{kind}s")
    return f"{differing} of {compared} {things if compared != 1 else kind} differ{'s' if differing == 1 else ''}"


def element(tensor: TensorPart, at: int) -> bytes:
    """Return the element of this index, little-endian."""
    dtype = dtypes.named(tensor.dtype)
    if dtype.packed:
        return _packed_element(tensor, dtype, at)
    steps = zip(multi_index(at, tensor.shape), strides_of(tensor), strict=True)
    place = sum(index * stride for index, stride in steps) if tensor.strides else at
    size = dtype.element_size
    found = exactly(tensor.source, tensor.offset + place * size, size)
    if not tensor.big_endian or dtype.kind == dtypes.RAW:
        return found
    return b"".join(found[i : i + dtype.size][::-1] for i in range(0, size, dtype.size))


def _packed_element(tensor: TensorPart, dtype: dtypes.Dtype, at: int) -> bytes:
    first = at * dtype.bits
    last = (first + dtype.bits - 1) // 8
    word = int.from_bytes(exactly(tensor.source, tensor.offset + first // 8, last - first // 8 + 1), "little")
    return bytes([word >> first % 8 & ((1 << dtype.bits) - 1)])


def tensor_difference(
    name: str, left: TensorPart, right: TensorPart, found: TensorStatistics, tolerance: Tolerance | None
) -> Difference:
    """Return the leaf of two tensors that differ; the tolerance is the one by which the statistics were taken."""
    dtype = dtypes.named(left.dtype)
    verdict, at, remarks = Verdict.DIFFERENT, found.first, [sentence(found, left.shape, left.dtype)]
    if tolerance is not None and found.beyond:
        at = found.first_beyond
        remarks.append(f"{found.beyond} beyond {tolerance}")
    elif tolerance is not None:
        verdict = Verdict.TOLERATED
        remarks.append(f"all within {tolerance}")
    assert at is not None
    elements = element(left, at), element(right, at)
    texts = [dtypes.shown(dtype, one) for one in elements]
    if texts[0] == texts[1]:
        texts = [dtypes.shown(dtype, one, exact=True) for one in elements]
    figures = {"dtype": left.dtype, "shape": list(left.shape), **document(found, left.shape)}
    return Difference(name, verdict, texts[0], texts[1], "; ".join(remarks), figures=figures)


def sentence(found: TensorStatistics, shape: tuple[int, ...], dtype: str) -> str:
    """Return how many elements differ, where first, and by how much at most."""
    assert found.first is not None
    number = f"{found.differing} of {found.elements} elements" if found.elements > 1 else "the only element"
    pieces = [f"{number} of {dtype} {shape_text(shape)} differ{'s' if found.differing == 1 else ''}"]
    if found.elements > 1:
        pieces[0] += f", first at {shape_text(tuple(multi_index(found.first, shape)))}"
    pieces += _distances(found, shape)
    special = (
        (found.sign_change, "with another sign"),
        (found.zero_sign, "+0 against -0"),
        (found.nan_payload, "NaN against another NaN"),
        (found.nan, "NaN against a number"),
        (found.infinite, "infinity against another value"),
    )
    pieces += [f"{count} {text}" for count, text in special if count]
    return "; ".join(pieces)


def _distances(found: TensorStatistics, shape: tuple[int, ...]) -> list[str]:
    def place(extreme: Extreme) -> str:
        return shape_text(tuple(multi_index(extreme.at, shape)))

    if found.absolute is None or found.relative is None or found.ulp is None or found.ulp.whole == 0:
        return []
    absolute, relative, ulp = found.absolute, found.relative, found.ulp
    if found.elements == 1:
        return [f"by {absolute.value:.6g}, relative {relative.value:.3g}, {ulp.whole} ULP"]
    return [
        f"at most {absolute.value:.6g} at {place(absolute)}, relative {relative.value:.3g} at {place(relative)},"
        f" {ulp.whole} ULP at {place(ulp)}"
    ]


def value_difference(name: str, left: str, right: str, *, tolerance: Tolerance | None = None) -> Difference | None:
    """Return the leaf of two values that differ; None where they are the same. A number in a text is a float64."""
    if left == right:
        return None
    texts = cut(left) or "(empty)", cut(right) or "(empty)"
    if texts[0] == texts[1]:
        start = first_other(left, right)
        texts = cut("..." + left[start:]), cut("..." + right[start:])
    apart = distance(left, right) or "another value"
    if tolerance is not None and _within(left, right, tolerance):
        return Difference(name, Verdict.TOLERATED, *texts, f"{apart}; within {tolerance}")
    return Difference(name, Verdict.DIFFERENT, *texts, apart)


def _within(left: str, right: str, tolerance: Tolerance) -> bool:
    numbers = [
        float(text) if _number(text) is not None or text.strip().lower() in NOT_FINITE else None
        for text in (left, right)
    ]
    return numbers[0] is not None and numbers[1] is not None and tolerance.accepts(numbers[0], numbers[1], "float64")


def first_other(left: str, right: str) -> int:
    """Return the first character in which two texts differ."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(left), len(right)))


def distance(left: str, right: str) -> str:
    """Return how far apart two texts are that are numbers; empty for others."""
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
    """Yield how many elements are how many units in the last place apart, with a bar each."""
    counts = figures.get("ulp_histogram", {})
    most = max(counts.values(), default=0)
    for name, count in counts.items():
        bar = "#" * max(1, WIDEST * count // most)
        yield f"{name} ULP", f"{count} {bar}"
