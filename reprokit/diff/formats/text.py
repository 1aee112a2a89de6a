"""Compares text line by line, JSON lines value by value, and CSV cell by cell, with the distances of numbers."""

from __future__ import annotations

import csv
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from difflib import SequenceMatcher
from functools import cached_property
from itertools import chain, islice, zip_longest
from typing import TypeAlias

from reprokit.core.difference import BookkeepingKind, Difference, Verdict, group, missing, more_bookkeeping
from reprokit.core.errors import ArtifactDamaged
from reprokit.core.tolerance import Tolerance
from reprokit.diff.descriptions import first_difference, judged_value, value_difference
from reprokit.diff.elements import CompareOptions, DeclaredParts, Part, Source, TensorPart, Value
from reprokit.diff.formats import json
from reprokit.diff.ignored_parts import IgnoredParts
from reprokit.diff.sources import lines

NESTING = 100  # levels of the JSON in a line
NAMED = 20  # lines that are listed individually
CONTEXT = 40  # characters before the first difference of long lines
BOOKKEEPING_NAMED = 50  # the same of bookkeeping
CELLS_NAMED = 50  # cells that are listed individually
UNNAMED = "not named one by one"
LONGEST_ROW = 1 << 20  # characters
DELIMITERS = ",;\t|"
LineComparison: TypeAlias = "Callable[[str, str | None, str | None], Difference | None]"
_YAML = re.compile(
    r"""(?P<indent>[ ]*(?:-[ ]+)*)(?:(?P<key>[^\s#'"{}\[\],&*!|>%@`-][^:#]{0,400}?|"[^"]*"|'[^']*')\s*:(?=\s|$))?"""
)
_SECTION = re.compile(r"\s*\[{1,2}([^\[\]]{1,400})\]{1,2}\s*(?:[#;].*)?$")
_ASSIGNED = re.compile(r"""\s*([\w.'"-]{1,400})\s*[=:]""")
MOST = 2000  # lines of either text after the first difference; longer texts are compared line by line
Numbers = tuple[int, int]  # line numbers in both texts, from 1; 0: missing
Lines = tuple[str | None, str | None]


def compare(name: str, left: Source, right: Source, options: CompareOptions) -> Difference:
    """Compare two texts line by line."""
    return _by_lines(name, left, right, options, lambda: _line_comparison(options))


def _line_comparison(options: CompareOptions) -> LineComparison:
    """Return a function that compares the lines of one pair of texts."""
    if options.judge is None:
        return _line
    judge = options.judge.lines()

    def compare_line(name: str, left: str | None, right: str | None) -> Difference | None:
        if left is None or right is None:
            return _line(name, left, right)
        result = judge.line(name, left, right)
        if result is not None or left == right:  # the same lines may be heads of columns
            return result
        difference = _line(name, left, right)
        assert difference is not None
        return replace(difference, detail=f"{difference.detail}; {judge.advice}") if judge.advice else difference

    return compare_line


def compare_json_lines(name: str, left: Source, right: Source, options: CompareOptions) -> Difference:
    """Compare two files with a JSON document per line; lines that differ are compared value by value."""

    def compare_line(place: str, left_line: str | None, right_line: str | None) -> Difference | None:
        if left_line is None or right_line is None:
            return _line(place, left_line, right_line)
        if left_line == right_line:
            return None
        try:
            left_values, right_values = _values_by_path(left_line), _values_by_path(right_line)
        except ArtifactDamaged:
            return _line(place, left_line, right_line)
        differing = _values(place, left_values, right_values, options)
        leaves = tuple(_declared(leaf, f"{name}/{key}", options.declared) for key, leaf in differing)
        return group(place, leaves) if leaves else None

    return _by_lines(name, left, right, options, lambda: compare_line)


def _values_by_path(line: str) -> dict[str, str]:
    """Return the values of a document by path; a long list of numbers, which is a tensor, as its bytes in hex."""
    document = json.loads(line.encode("utf-8", "surrogateescape"))
    return {part.name: _text(part) for part in json.values("", document, NESTING)}


def _text(part: Part) -> str:
    return part.source.read(0, part.source.size).hex() if isinstance(part, TensorPart) else part.text  # type: ignore[union-attr]


def _values(
    name: str, left: dict[str, str], right: dict[str, str], options: CompareOptions
) -> Iterator[tuple[str, Difference]]:
    """Yield the differences of two documents, with the paths of the values."""
    beside = tuple(left)
    for path in {**left, **right}:
        title, texts = f"{name}/{path}" if path else name, (left.get(path, ""), right.get(path, ""))
        if path not in left or path not in right:
            yield path, missing(title, *texts, f"only the {'left' if path in left else 'right'} line has it")
        elif (difference := value_difference(title, *texts, tolerance=options.values)) is not None:
            judge = options.judge
            judged = judge is not None and judged_value(judge, difference, path, texts, beside, is_row=True)
            yield path, judged or difference


def _by_lines(
    name: str, left: Source, right: Source, options: CompareOptions, comparison: Callable[[], LineComparison]
) -> Difference:
    """Compare the aligned lines of two texts; lines in only one of them are reported as missing."""
    if options.judge is not None:
        by_place = _place_by_place(name, left, right, options, comparison())
        if by_place is not None:
            return by_place
    compare_line = comparison()
    aligned = LineAlignment(lines(left, options.limits.text), lines(right, options.limits.text))
    differences = _TextDifferences(NAMED)
    keys = None if options.declared is None else LineKeys(name, left, right, options.limits.text)
    for numbers, pair in aligned.pairs():
        difference = compare_line(_place_of(name, numbers), *pair)
        if keys is not None and difference is not None:
            difference = _declared(difference, keys.path(*numbers), options.declared, *pair)
        differences.add(difference)
    if not differences.found:
        return Difference(name, Verdict.IDENTICAL, detail="same content; spaces or the order of keys differ")
    counts = aligned.counts
    lengths = f"{counts[0]}" if counts[0] == counts[1] else f"{counts[0]} and {counts[1]}"
    suffix = "" if aligned.is_whole else ", place by place"
    return differences.tree(name, "lines", lengths, suffix, counts)


def _place_by_place(
    name: str, left: Source, right: Source, options: CompareOptions, compare_line: LineComparison
) -> Difference | None:
    """Compare the lines with the same numbers; return None unless all that differs is bookkeeping."""
    differences = _TextDifferences(NAMED)
    pairs = zip_longest(*(lines(side, options.limits.text) for side in (left, right)))
    count = 0
    for count, (left_line, right_line) in enumerate(pairs, 1):
        if left_line is None or right_line is None:
            return None
        differences.add(compare_line(f"{name}: line {count}", left_line, right_line))
        if differences.differing:
            return None
    return differences.tree(name, "lines", f"{count}", "", [count, count]) if differences.bookkeeping else None


class _TextDifferences:
    """Counts the differences of two texts; lists the first ones, and the first that no tolerance accepts."""

    def __init__(self, most: int):
        self._limit, self._named = most, list[Difference]()
        self._named_bookkeeping: list[Difference] = []
        self._more: Counter[BookkeepingKind] = Counter()
        self._ignored = IgnoredParts(most)
        self.differing = self._beyond = self.bookkeeping = 0

    @property
    def found(self) -> int:
        """Return the number of all differences, also of bookkeeping and of ignored ones."""
        return self.differing + self.bookkeeping + self._ignored.count

    def add(self, difference: Difference | None) -> None:
        """Add the difference of a line or cell; None if there is none."""
        if difference is not None and difference.verdict is Verdict.IGNORED:
            self._ignored.add(difference)
        elif difference is not None and difference.verdict is Verdict.BOOKKEEPING:
            self.bookkeeping += 1
            if self.bookkeeping <= BOOKKEEPING_NAMED:
                self._named_bookkeeping.append(difference)
            else:
                self._more.update(difference.bookkeeping())
        elif difference is not None:
            self.differing += 1
            self._beyond += difference.verdict.differs
            if len(self._named) < self._limit or (self._beyond == 1 and difference.verdict.differs):
                self._named.append(difference)

    def tree(self, name: str, things: str, count: str, suffix: str, counts: object) -> Difference:
        """Return the tree of differences; `count` is the number of lines or cells."""
        if (more := self.differing - len(self._named)) > 0:
            verdict = Verdict.DIFFERENT if self._beyond else Verdict.TOLERATED
            self._named.append(Difference(f"{name}: {more} more {things}", verdict, detail=UNNAMED))
        figures = {things: counts, f"differing_{things}": self.differing}
        counted = f"{self.differing} of {count} {things} differ{suffix}" if self.differing else ""
        detail = "; ".join(filter(None, (counted, self._ignored.words))) or "the same but for bookkeeping"
        ignored = (difference for _, difference in self._ignored.children(name))
        children = (*self._named, *self._named_bookkeeping, *more_bookkeeping(name, self._more), *ignored)
        return Difference(name, children=children, detail=detail, figures=figures)


def _declared(
    difference: Difference, path: str, declared: DeclaredParts | None, left: str | None = None, right: str | None = None
) -> Difference:
    """Return the difference of a value or line, as ignored where the user declared that it may differ."""
    if declared is None or not difference.may_be_declared:
        return difference
    texts = (difference.left, difference.right) if left is None and right is None else (left, right)
    sides = (None if text is None else Value(path, text) for text in texts)
    ignored = declared([path], *sides, of_model=False, is_bookkeeping=difference.verdict is Verdict.BOOKKEEPING)
    return difference if ignored is None else replace(difference, judged=Verdict.IGNORED, ignored=(ignored,))


def _place_of(name: str, numbers: tuple[int, int]) -> str:
    left, right = numbers
    return f"{name}: line {left or right}" + (f" ({right} on the right)" if left and right and left != right else "")


def _line(name: str, left: str | None, right: str | None) -> Difference | None:
    if left is None or right is None:
        return missing(name, left or "", right or "", f"only the {'left' if left is not None else 'right'} text has it")
    start = first_difference(left, right)
    excerpts = [f"...{text[start - CONTEXT :]}" if start > 2 * CONTEXT else text for text in (left, right)]
    difference = value_difference(name, *(_visible(text) for text in excerpts))
    assert difference is not None
    return Difference(name, Verdict.DIFFERENT, difference.left, difference.right, f"first at character {start + 1}")


def _visible(text: str) -> str:
    """Return a line with an unusual or missing line end made visible."""
    return text[:-1] if text.endswith("\n") and not text.endswith("\r\n") else text + "(no line feed)"


def compare_tables(name: str, left: Source, right: Source, options: CompareOptions) -> Difference:
    """Compare two CSV tables cell by cell."""
    delimiter = max(
        DELIMITERS, key=next(lines(left, options.limits.text), "").count
    )  # the most frequent one in the first line
    differences, cells = _TextDifferences(CELLS_NAMED), 0
    heads: list[str] = []
    judge = None  # of whole rows, where no head names their cells
    rows = [_rows(source, delimiter, options.limits.text) for source in (left, right)]
    for number, (left_row, right_row) in enumerate(zip_longest(*rows)):
        if not number:
            heads = list(left_row or ())
            if left_row != right_row and any(map(_is_value, heads)):
                heads, judge = [], options.judge.lines() if options.judge is not None else None
        title = f"{name}: row {number + 1}"
        row = judge and judge.line(title, *(delimiter.join(cells or ()) for cells in (left_row, right_row)))
        if row:
            cells += len(left_row or ())
            differences.add(_declared(row, name, options.declared))
            continue
        for column, pair in enumerate(zip_longest(_cells(left_row), _cells(right_row))):
            cells += 1
            if pair[0] == pair[1]:
                continue
            head = heads[column] if column < len(heads) else ""
            cell = _judged_cell(_cell_name(name, number, column, heads), *pair, options, head, heads)
            path = f"{name}/{head or _place(column)}" if number or not heads else name
            differences.add(None if cell is None else _declared(cell, path, options.declared, *pair))
    if not differences.found:
        detail = "same content; the cells are written in another way (quotes, ends of lines)"
        return Difference(name, Verdict.IDENTICAL, detail=detail)
    return differences.tree(name, "cells", f"{cells}", ", place by place", cells)


def _is_value(cell: str) -> bool:
    """Return whether a cell of the first row is a value, and so no head of a column."""
    return cell.strip()[:1].isdigit() or cell.strip()[:2].lstrip("+-.").isdigit()


def _place(column: int) -> str:
    return f"column {column + 1}"


def _cell_name(name: str, row: int, column: int, heads: list[str]) -> str:
    head = f" ({heads[column][:40]})" if row and column < len(heads) and heads[column] else ""
    return f"{name}: row {row + 1}, column {column + 1}{head}"


def _judged_cell(
    name: str, left: str | None, right: str | None, options: CompareOptions, head: str, heads: list[str]
) -> Difference | None:
    """Return the difference of two cells, which is bookkeeping by the column's head."""
    difference = _cell(name, left, right, options.values)
    if difference is None or options.judge is None or left is None or right is None:
        return difference
    if not head:
        return replace(difference, detail=f"{difference.detail}; {options.judge.unnamed(name.rpartition(', ')[2])}")
    return judged_value(options.judge, difference, head, (left, right), tuple(heads), is_row=True)


def _cell(name: str, left: str | None, right: str | None, tolerance: Tolerance | None) -> Difference | None:
    if left is None or right is None:
        side = "left" if left is not None else "right"
        return missing(name, left or "(empty)" * (left is not None), right or "(empty)" * (right is not None),
                       f"only the {side} table has it")  # fmt: skip
    return value_difference(name, left, right, tolerance=tolerance)


def _cells(row: list[str] | None) -> list[str]:
    """Return the cells of a row: one empty cell for an empty line, none for a missing line."""
    return [] if row is None else row or [""]


class _RowLines:
    """The lines of a table, with a limit for the length of a row."""

    def __init__(self, lines: Iterator[str]):
        self._lines = lines
        self.length = 0

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self.length += len(line)
            if self.length > LONGEST_ROW:
                raise ArtifactDamaged(f"a row has more than {LONGEST_ROW} characters")
            yield line


def _rows(source: Source, delimiter: str, longest: int) -> Iterator[list[str]]:
    csv.field_size_limit(LONGEST_ROW)
    row = _RowLines(lines(source, longest))
    try:
        for cells in csv.reader(row, delimiter=delimiter, strict=True):
            row.length = 0
            yield cells
    except (csv.Error, struct.error) as error:
        raise ArtifactDamaged(f"it is no table ({error})") from None


class LineKeys:
    """The paths of the lines of two texts, which are read again when the first path is asked for."""

    def __init__(self, name: str, left: Source, right: Source, longest: int) -> None:
        self._name, self._sides, self._longest = name, (left, right), longest
        self._keys_of = next((keys for endings, keys in _READERS if name.lower().endswith(endings)), None)

    def path(self, left: int, right: int) -> str:
        """Return the path of a pair of lines by their numbers from 1, of which one may be 0: the name, then keys."""
        if self._keys_of is None:
            return self._name
        keys = (self._paths[0][left - 1] if left else "", self._paths[1][right - 1] if right else "")
        return keys[0] if keys[0] == keys[1] or not right else keys[1] if not left else self._name

    @cached_property
    def _paths(self) -> tuple[list[str], list[str]]:
        assert self._keys_of is not None
        left, right = (
            ["/".join((self._name, *keys)) for keys in self._keys_of(lines(side, self._longest))]
            for side in self._sides
        )
        return left, right


def of_yaml(lines: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Yield the keys above each line and its own; items of lists have the keys of their list."""
    above: list[tuple[int, str]] = []
    for line in lines:
        if _is_comment(line):
            yield ()
            continue
        match = _YAML.match(line)
        assert match is not None
        dashes = len(match["indent"]) - len(match["indent"].lstrip(" "))
        indent = len(match["indent"]) if match["key"] else dashes
        is_item = "-" in match["indent"]
        # A list may stand as far left as its key.
        above = [(at, key) for at, key in above if at < dashes or (is_item and at == dashes)]
        if match["key"]:
            above = [*(pair for pair in above if pair[0] < indent or is_item), (indent, match["key"].strip("'\""))]
        yield tuple(key for _, key in above)


def _is_comment(line: str) -> bool:
    return line.lstrip()[:1] in ("", "#", ";")


def of_sections(lines: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Yield section and key of each line; a line that goes on has those of the line before."""
    section: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    for line in lines:
        if _is_comment(line):
            yield ()
            continue
        if match := _SECTION.match(line):
            section, key = tuple(match[1].strip().split(".")), ()
        elif match := _ASSIGNED.match(line):
            key = tuple(match[1].strip("'\"").split("."))
        yield (*section, *key)


_READERS: tuple[tuple[tuple[str, ...], Callable[[Iterable[str]], Iterator[tuple[str, ...]]]], ...] = (
    ((".yaml", ".yml"), of_yaml),
    ((".toml", ".ini", ".cfg", ".conf", ".properties", ".env"), of_sections),
)


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
