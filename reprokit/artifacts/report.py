"""The figures of a comparison as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

WIDEST = 30  # characters of a bar


def histogram(figures: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """How many elements are how many units in the last place apart, with a bar each."""
    counts = figures.get("ulp_histogram", {})
    most = max(counts.values(), default=0)
    for name, count in counts.items():
        bar = "#" * max(1, WIDEST * count // most)
        yield f"{name} ULP", f"{count} {bar}"
