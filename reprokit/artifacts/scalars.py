"""Compares two small values: as texts, and where both are numbers, with their distance."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from reprokit.artifacts.descriptions import cut
from reprokit.difference import Difference, Verdict
from reprokit.tolerance import Tolerance

NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
NOT_FINITE = ("nan", "inf", "-inf", "infinity", "-infinity")
LONGEST_NUMBER = 400


def difference(name: str, left: str, right: str, *, tolerance: Tolerance | None = None) -> Difference | None:
    """The leaf of two values that differ; None where they are the same. A number in a text is a float64."""
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
    """The first character in which two texts differ."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(left), len(right)))


def distance(left: str, right: str) -> str:
    """How far apart two texts are that are numbers; empty for others."""
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
