"""The end of a reproduction on the screen, or as the journal's JSON."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reprokit.launch.rundirectory import shown
from reprokit.printable import printable
from reprokit.reproduce import journal as journals
from reprokit.reproduce.journal import IDENTICAL, Cost, RoundJournal

MOST = 8  # lines of a kind


def document(journal: RoundJournal) -> str:
    """journal.json, as it lies in its directory; every directory in it is relative to that."""
    return journals.document(journal).rstrip("\n")


def print_journal(journal: RoundJournal, place: Path) -> None:
    """The verdict, what it took or what remains, and where everything is."""
    for line in _lines(journal, place):
        print(printable(line, 2000))


def _lines(journal: RoundJournal, place: Path) -> Iterator[str]:
    rounds = len(journal.rounds)
    verdict = "identical" if journal.verdict == IDENTICAL else "not reproduced"
    yield f"{verdict}, after {rounds} round{'' if rounds == 1 else 's'}: {journal.why}"
    if journal.verdict == IDENTICAL:
        yield from (f"needed: {change.option}: {change.why}" for change in journal.changes[:MOST])
    else:
        yield from (f"remains: {text}" for text in journal.remaining[:MOST])
        yield from (f"applied, and not enough: {change.option}" for change in journal.changes[:MOST])
    yield from (f"not kept: {change.option}: {change.excluded}" for change in journal.excluded[:MOST])
    yield from (f"alternative: {text}" for text in journal.alternatives[:MOST])
    yield from map(_cost, journal.costs)
    yield f"final pair: {' '.join(str(Path(shown(place)) / directory) for directory in journal.pair)}"
    yield f"journal: {Path(shown(place)) / 'journal.md'}"
    if journal.verdict == IDENTICAL:
        yield f"recipe: {Path(shown(place)) / 'recipe.toml'}"


def _cost(cost: Cost) -> str:
    text = f"time: {cost.what}: {cost.seconds:.2f} s, {cost.processor or 0.0:.2f} s of processors"
    if cost.ratio is None or cost.processor_ratio is None:
        return text
    return f"{text}: {cost.ratio:.2f} and {cost.processor_ratio:.2f} times"
