"""Whether a version is one of those that a specifier names; packaging may not be there in the training's Python."""

from __future__ import annotations

import operator
import re

_CLAUSE = re.compile(r"(>=|<=|==|!=|>|<)\s*([0-9.]+)")
_COMPARISONS = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
PLACES = 4  # of a version: 1.14.0.0


def fits(version: str, specifier: str) -> bool:
    """Whether a version meets all clauses, as far as its numbers say: 2.8.0rc1 counts as 2.8.0."""
    number = _number(version)
    return all(_COMPARISONS[sign](number, _number(bound)) for sign, bound in _CLAUSE.findall(specifier))


def _number(text: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", text)
    parts = [int(part) for part in found.group().split(".")] if found else []
    return tuple((parts + [0] * PLACES)[:PLACES])
