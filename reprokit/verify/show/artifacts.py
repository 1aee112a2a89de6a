"""Differences of files on the screen, and as a JSON document, which reprokit/schemas/diff.schema.json describes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reprokit.artifacts.report import histogram
from reprokit.difference import Difference
from reprokit.screen import Cells, print_rows
from reprokit.verify.compare.verdict_rows import NOT_BITWISE, overall, sentence
from reprokit.verify.show.document import node
from reprokit.verify.show.report import STYLES

FORMAT = 1
SHORT = 24  # rows on one screen


def document(tree: Difference, left: Path, right: Path) -> dict[str, Any]:
    """The whole comparison; every text as it stands in the files."""
    first = tree.first() or tree.first_tolerated()
    return {
        "format": FORMAT,
        "verdict": overall(tree).value,
        "left": str(left),
        "right": str(right),
        "first_difference": None if first is None else node(first),
        "tree": node(tree),
    }


def print_tree(tree: Difference, left: Path, right: Path, *, every_leaf: bool) -> None:
    """Print it: the verdict, then what differs, cut to one screen unless every leaf is asked for."""
    rows = list(_rows(tree, 0, every_leaf=every_leaf))
    footer = [f"left: {left}", f"right: {right}"]
    if not every_leaf and len(rows) > SHORT:
        footer.insert(0, f"{len(rows) - SHORT} more lines: --all shows them")
        rows = rows[:SHORT]
    print_rows(_verdict(tree), rows, footer, STYLES[overall(tree)])


def _verdict(tree: Difference) -> str:
    first = tree.first()
    if first is not None:
        return f"different: {sentence(first)}"
    near = tree.first_tolerated()
    if near is not None:
        return f"tolerated: {NOT_BITWISE}; first {sentence(near)}"
    files = sum(1 for leaf in tree.leaves() if leaf.left != "directory")
    held = f"{files} files hold the same" if tree.children else tree.detail or "the same bytes"
    return f"identical: {held}"


def _rows(tree: Difference, depth: int, *, every_leaf: bool) -> Iterator[Cells]:
    """What differs and what is worth a word; with every leaf also what is the same, and the figures."""
    telling = tree.verdict.not_bitwise or tree.detail or every_leaf or depth == 0
    if not telling:
        return
    yield _cells(tree, depth)
    if every_leaf:
        yield from (Cells(("  " * (depth + 1) + name, "", text)) for name, text in histogram(tree.figures))
    for child in tree.children:
        yield from _rows(child, depth + 1, every_leaf=every_leaf)


def _cells(tree: Difference, depth: int) -> Cells:
    text = tree.detail
    if tree.judged is not None and tree.left != tree.right:
        text = f"{tree.left or '-'} | {tree.right or '-'}  {tree.detail}"
    return Cells(("  " * depth + tree.name, tree.verdict.value, text or tree.left), STYLES[tree.verdict])
