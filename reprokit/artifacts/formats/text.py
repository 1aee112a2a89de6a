"""Text: how many lines differ, place by place, and the first that do."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import zip_longest

from reprokit.artifacts.compare import CompareOptions
from reprokit.artifacts.descriptions import first_other, value_difference
from reprokit.artifacts.elements import Source
from reprokit.artifacts.sources import BLOCK, Stream
from reprokit.difference import Difference, Verdict, missing
from reprokit.errors import ArtifactDamaged

NAMED = 20  # lines that are named one by one
CONTEXT = 40  # characters before the first difference of long lines


def compare(name: str, left: Source, right: Source, options: CompareOptions) -> Difference:
    """The tree of two texts."""
    leaves: list[Difference] = []
    differing, counts = 0, [0, 0]
    pairs = zip_longest(lines(left, options.limits.text), lines(right, options.limits.text))
    for number, (one, other) in enumerate(pairs, 1):
        counts = [count + (line is not None) for count, line in zip(counts, (one, other), strict=True)]
        if one == other:
            continue
        differing += 1
        if len(leaves) < NAMED:
            leaves.append(_line(f"{name}: line {number}", one, other))
    if differing > len(leaves):
        rest = f"{differing - len(leaves)} more lines"
        leaves.append(Difference(f"{name}: {rest}", Verdict.DIFFERENT, detail="not named one by one"))
    lengths = f"{counts[0]}" if counts[0] == counts[1] else f"{counts[0]} and {counts[1]}"
    figures = {"lines": counts, "differing_lines": differing}
    return Difference(
        name, children=tuple(leaves), detail=f"{differing} of {lengths} lines differ, place by place", figures=figures
    )  # fmt: skip


def lines(source: Source, longest: int) -> Iterator[str]:
    """The lines of a text with their ends, one at a time."""
    file = io.BufferedReader(Stream(source), BLOCK)
    while line := file.readline(longest + 1):
        if len(line) > longest:
            raise ArtifactDamaged(f"a line has more than {longest} bytes")
        yield line.decode("utf-8", "surrogateescape")


def _line(name: str, left: str | None, right: str | None) -> Difference:
    if left is None or right is None:
        return missing(name, left or "", right or "", f"only the {'left' if left is not None else 'right'} text has it")
    start = first_other(left, right)
    shown = [f"...{text[start - CONTEXT :]}" if start > 2 * CONTEXT else text for text in (left, right)]
    found = value_difference(name, *(_visible(text) for text in shown))
    assert found is not None
    return Difference(name, Verdict.DIFFERENT, found.left, found.right, f"first at character {start + 1}")


def _visible(text: str) -> str:
    """The line with its end, where that is not the usual one."""
    return text[:-1] if text.endswith("\n") and not text.endswith("\r\n") else text + "(no line feed)"
