"""Prints how large the project is beside what it may be, for make lint: growth needs something removed."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PRODUCT = sorted((ROOT / "reprokit").rglob("*.py"))
AGENT = [path for path in PRODUCT if "agent" in path.relative_to(ROOT).parts]
CAPTURE = [path for path in AGENT if "capture" in path.parts]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
LONGEST = 500  # lines of one file
LONGEST_SENTENCE = 25  # words


def lines(paths: Iterable[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths)


def words(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").split()) for path in paths)


def sentences(page: Path) -> Iterator[str]:
    """Yield the sentences of a page: of paragraphs and items, not of code, tables and headings."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    text = re.sub(r"^(?:    |\||#).*$", "", text, flags=re.M)
    text = re.sub(r"^ *(?:- |\d+\. |> )", "\n", text, flags=re.M)
    for paragraph in re.split(r"\n\s*\n", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)):
        yield from re.split(r"(?:(?<=[.:;!?])|(?<=[.:;!?]\*\*))\s+", " ".join(paragraph.split()))


def classes(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef):
                yield node.name


def shared_names() -> int:
    return sum(count > 1 for count in Counter(classes(PRODUCT)).values())


def budgets() -> tuple[tuple[str, int, int], ...]:
    """List what is counted, what it comes to now, and what it may be."""
    return (
        ("lines of Python", lines(PRODUCT), 61_000),
        ("lines of the agent", lines(AGENT), 22_500),
        ("lines of captures", lines(CAPTURE), 8_500),
        (f"files of more than {LONGEST} lines", sum(lines([path]) > LONGEST for path in PRODUCT), 0),
        ("class names used twice", shared_names(), 0),
        ("words of docs", words(DOCS), 50_000),
        (
            f"sentences of docs with more than {LONGEST_SENTENCE} words",
            sum(len(sentence.split()) > LONGEST_SENTENCE for page in DOCS for sentence in sentences(page)),
            80,
        ),
        ("words of docs/design.md", words([ROOT / "docs" / "design.md"]), 2_500),
    )


if __name__ == "__main__":
    for what, found, allowed in budgets():
        print(f"{what}: {found:,} of {allowed:,}" + (f", {found - allowed:,} over" if found > allowed else ""))
