"""Reduces a tensor to one number, as saving does; std and variance divide by the number of elements."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from reprokit.core.errors import TensorUnavailable
from reprokit.saved_tensors import shards

if TYPE_CHECKING:
    import numpy as np

NAMES = ("min", "max", "mean", "std", "variance", "sum", "prod", "l1", "l2")


def reduced(value: np.ndarray[Any, Any], name: str, *, is_absolute: bool = False) -> float:
    """Return a reduction in double precision; NaN if it is undefined for an empty tensor."""
    numpy = shards.numpy()
    if name not in NAMES:
        raise TensorUnavailable(f"no reduction is called {name[:40]!r}; there are {', '.join(NAMES)}")
    numbers = (numpy.abs(value) if is_absolute or value.dtype.kind == "c" else value).astype("float64").ravel()
    if not numbers.size and name not in ("sum", "prod", "l1", "l2"):
        return math.nan
    with numpy.errstate(all="ignore"):
        if name == "l1":
            return float(numpy.abs(numbers).sum())
        if name == "l2":
            return float(numpy.sqrt((numbers * numbers).sum()))
        return float(getattr(numbers, "var" if name == "variance" else name)())
