"""Leaves out of printed lines what the user declared that it may differ; nothing that covers a result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from reprokit.core.errors import IgnoreRefused
from reprokit.core.printable import cut
from reprokit.verify.categories.declared_outputs import DeclaredIgnores
from reprokit.verify.categories.printed_lines import PrintedLine, result_spans
from reprokit.verify.ignores import IgnoreRule, matches
from reprokit.verify.pattern_search import Span

LEFT_OUT = "\N{OBJECT REPLACEMENT CHARACTER}"  # in the place of what is left out: no two words become one
QUOTED = 60  # characters of a line


class DeclaredLines:
    """The lines of some streams, searched by all rules at once."""

    def __init__(self, declared: DeclaredIgnores, lines: Iterable[PrintedLine]) -> None:
        texts = list(dict.fromkeys(line.text for line in lines))
        rules = declared.rules.console
        found = matches(rules, texts)
        self._shortened: dict[str, tuple[str, tuple[str, ...]]] = {}  # by text: what is left, and the rules
        for number, text in enumerate(texts):
            spans_of_rules = [(rule, spans[number]) for rule, spans in zip(rules, found, strict=True) if spans[number]]
            for rule, spans in spans_of_rules:
                if why := _covered_result(text, spans):
                    declared.refusals.append(_refusal(rule, text, why))
            if spans_of_rules:
                rest = _without(text, [span for _, spans in spans_of_rules for span in spans])
                self._shortened[text] = rest, tuple(rule.text for rule, _ in spans_of_rules)

    def of(self, lines: Iterable[PrintedLine]) -> list[PrintedLine]:
        """Return the lines that are left, each with what is left of it."""
        return [line for line in map(self._shorter, lines) if not _is_empty(line)]

    def left_out(self, lines: Iterable[PrintedLine]) -> Iterator[PrintedLine]:
        """Yield the lines of which nothing is left."""
        return filter(_is_empty, map(self._shorter, lines))

    def _shorter(self, line: PrintedLine) -> PrintedLine:
        if line.text not in self._shortened:
            return line
        rest, rules = self._shortened[line.text]
        return replace(line, text=rest, whole=line.text, rules=rules)


def _is_empty(line: PrintedLine) -> bool:
    return bool(line.rules) and not line.text.replace(LEFT_OUT, "").strip()


def _without(text: str, spans: list[Span]) -> str:
    """Return a text with the place of each span marked."""
    pieces: list[str] = []
    at = 0
    for start, end in sorted(spans):
        if start > at or not pieces:
            pieces.append(text[at : max(start, at)])
        at = max(at, end)
    return LEFT_OUT.join([*pieces, text[at:]])


def _covered_result(text: str, spans: list[Span]) -> str:
    """Return the first result in a line that one of the spans covers in part; empty if there is none."""
    covered = (
        text[start:end]
        for start, end in result_spans(text)
        if any(start < span_end and span_start < end for span_start, span_end in spans)
    )
    return next(covered, "")


def _refusal(rule: IgnoreRule, text: str, result: str) -> IgnoreRefused:
    line = cut(text, QUOTED)
    return rule.refused(f"it matches {result}, a result, in the line {line!r}; results are always compared")
