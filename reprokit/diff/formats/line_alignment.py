"""Aligns the lines of two texts, so that an inserted line does not shift all that follow."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import chain, islice, zip_longest

MOST = 2000  # lines of either text after the first difference; longer texts are compared line by line

Numbers = tuple[int, int]  # line numbers in both texts, from 1; 0: missing
Lines = tuple[str | None, str | None]


class LineAlignment:
    """The alignment of two texts, which are read once from front to back."""

    def __init__(self, left: Iterator[str], right: Iterator[str]):
        self._left, self._right = left, right
        self.counts = [0, 0]  # lines read so far
        self.is_whole = True  # False: compared line by line after the first difference

    def pairs(self) -> Iterator[tuple[Numbers, Lines]]:
        """Yield the lines that differ or have no partner."""
        first = self._first_difference()
        if first is None:
            return
        rest = [[*islice(chain([line], side), MOST)] if line is not None else [] for line, side in self._sides(first)]
        if any(len(lines) == MOST for lines in rest):
            self.is_whole = False
            yield from self._place_by_place(
                *(chain(lines, side) for lines, (_, side) in zip(rest, self._sides(first), strict=True))
            )
        else:
            yield from self._matched(*rest)

    def _sides(self, first: Lines) -> tuple[tuple[str | None, Iterator[str]], tuple[str | None, Iterator[str]]]:
        return (first[0], self._left), (first[1], self._right)

    def _first_difference(self) -> Lines | None:
        """Return the first pair of lines that differ."""
        for left_line, right_line in zip_longest(self._left, self._right):
            if left_line != right_line:
                return left_line, right_line
            self.counts = [count + 1 for count in self.counts]
        return None

    def _place_by_place(self, left: Iterator[str], right: Iterator[str]) -> Iterator[tuple[Numbers, Lines]]:
        for pair in zip_longest(left, right):
            self.counts = [count + (line is not None) for count, line in zip(self.counts, pair, strict=True)]
            if pair[0] != pair[1]:
                yield self._numbers(pair, *self.counts), pair

    def _numbers(self, pair: Lines, left: int, right: int) -> Numbers:
        return (0 if pair[0] is None else left), (0 if pair[1] is None else right)

    def _matched(self, left: list[str], right: list[str]) -> Iterator[tuple[Numbers, Lines]]:
        before = self.counts
        self.counts = [before[0] + len(left), before[1] + len(right)]
        for kind, start, stop, other_start, other_stop in SequenceMatcher(
            None, left, right, autojunk=False
        ).get_opcodes():
            if kind == "equal":
                continue
            for at, pair in enumerate(zip_longest(left[start:stop], right[other_start:other_stop]), 1):
                yield self._numbers(pair, before[0] + start + at, before[1] + other_start + at), pair
