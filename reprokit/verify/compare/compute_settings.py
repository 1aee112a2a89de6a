"""What libraries computed with, in two runs: each fact once, however many processes have it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from reprokit.verify.compare.match import Matched, Raw, SeriesPair
from reprokit.verify.compare.processes import not_told_side

Values = tuple[str, str, str]  # the fact's name, and what each run has


def facts(matched: Matched) -> Iterator[Values]:
    """Every library that both runs have the same facts of, and every fact that differs."""
    pairs = [pair for pair in matched.of("compute") if not_told_side(matched, pair) is None]
    yield from dict.fromkeys(_same(pair) for pair in pairs if pair.same)
    found = Counter(values for pair in pairs if not pair.same for values in _different(pair))
    for (name, left, right), count in found.items():
        yield (name if count == 1 else f"{name} ({count} processes)"), left, right


def _same(pair: SeriesPair) -> Values:
    line = pair.left.last if pair.left is not None else None
    text = ", ".join(f"{key} {_text(value)}" for key, value in (line or {}).get("facts", {}).items() if value != [])
    return f"compute.{pair.key.name}", text or "the same", text or "the same"


def _different(pair: SeriesPair) -> Iterator[Values]:
    name = f"compute.{pair.key.name}"
    if pair.left is None or pair.right is None:
        yield name, "used" if pair.left else "", "used" if pair.right else ""
        return
    left, right = _facts(pair.left_line), _facts(pair.right_line)
    for key in [*left, *(key for key in right if key not in left)]:
        if left.get(key) != right.get(key):
            yield f"{name}.{key}", _text(left.get(key)), _text(right.get(key))


def _facts(line: Raw | None) -> Raw:
    found: Raw = (line or {}).get("facts", {})
    return found


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
