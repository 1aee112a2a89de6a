"""Defines which differing bits a user accepts as the same: by relative and absolute distance, or in ULPs."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

QUANTITIES = ("loss", "metrics", "trail", "weights", "predictions", "scores", "outputs")  # of verify
_INTEGERS = {"float16": ("<e", "<H"), "float32": ("<f", "<I"), "float64": ("<d", "<Q"), "bfloat16": ("<f", "<I")}


@dataclass(frozen=True)
class Tolerance:
    """The accepted distance: |left - right| <= absolute + relative * |right|, or a number of ULPs."""

    absolute: float = 0.0
    relative: float = 0.0
    ulp: int = 0

    @property
    def accepts_any_number(self) -> bool:
        """Whether every number is accepted, so that no value has to be known."""
        return self.absolute == math.inf

    def accepts(self, left: float, right: float, dtype: str = "") -> bool:
        """Return whether two numbers of a type are near enough. NaN is near NaN, an infinity near itself, 0 near -0."""
        if left == right or (left != left and right != right):
            return True
        if not (math.isfinite(left) and math.isfinite(right)):
            return False
        return ulps(left, right, dtype) <= self.ulp or _distance(left, right) <= self._allowed(right)

    def _allowed(self, right: float) -> float:
        try:
            return self.absolute + self.relative * abs(right)
        except OverflowError:  # an integer beyond all floating-point numbers
            return math.inf

    def __str__(self) -> str:
        parts = [f"rtol {self.relative:g}"] if self.relative else []
        parts += [f"atol {self.absolute:g}"] if self.absolute else []
        parts += [f"{self.ulp} ULP"] if self.ulp else []
        return ", ".join(parts) or "nothing but 0 for -0 and NaN for NaN"


@dataclass(frozen=True)
class Tolerances:
    """The tolerances of one comparison, by quantity; other quantities have none."""

    of: Mapping[str, Tolerance] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.of)

    def __str__(self) -> str:
        named = [f"{name}: {tolerance}" for name, tolerance in self.of.items()]
        same = len(set(self.of.values())) == 1 and len(named) == len(QUANTITIES)
        return str(next(iter(self.of.values()))) if same else "; ".join(named)


def tolerances(quantities: Iterable[str], given: Iterable[tuple[str, str | None, Any]]) -> Tolerances:
    """Tolerances from triples of kind (a field of Tolerance), quantity (None: all of them) and number.

    What is said of one quantity goes before what is said of all, each kind by itself.
    """
    by_quantity: dict[str, Tolerance] = {}
    for kind, named, number in sorted(given, key=lambda one: one[1] is not None):
        for quantity in quantities if named is None else (named,):
            by_quantity[quantity] = replace(by_quantity.get(quantity, Tolerance()), **{kind: number})
    return Tolerances({quantity: by_quantity[quantity] for quantity in quantities if quantity in by_quantity})


def ulps(left: float, right: float, dtype: str) -> float:
    """Return how many representable numbers two finite ones are apart; of integers their distance, else infinity."""
    if isinstance(left, int) and isinstance(right, int):
        return abs(left - right)
    if dtype not in _INTEGERS:
        return math.inf
    left_place, right_place = _ordered(float(left), dtype), _ordered(float(right), dtype)
    return abs(left_place - right_place) >> (16 if dtype == "bfloat16" else 0)


def _ordered(number: float, dtype: str) -> int:
    """Return the place of a number among all of its type."""
    code, whole = _INTEGERS[dtype]
    bits: int = struct.unpack(whole, struct.pack(code, number))[0]
    sign = 1 << (8 * struct.calcsize(whole) - 1)
    return sign - bits if bits & sign else bits


def _distance(left: float, right: float) -> float:
    try:
        return abs(left - right)
    except OverflowError:
        return math.inf
