"""Compares a stream in which a launcher merges what its ranks print, as mpirun does.

Which rank comes first is a race, within lines too. So each rank's own text is compared, and of the launcher's only what
no rank gave it. Of ranks whose own text is not known, the lines are compared as a set.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from reprokit.run_files import console
from reprokit.run_files.console import ConsoleHead
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.bookkeeping.recognition import Contexts
from reprokit.verify.categories.printed_lines import LinesComparison, PrintedLine, compare_lines, printed_lines
from reprokit.verify.categories.ranks import rank_of

_DIGITS = re.compile(r"\d+")


def ranks_below(process: str, others: Iterable[str]) -> list[str]:
    """Return the ranks that a process may have launched, by their names."""
    own = rank_of(process)[0]
    prefix = f"{own}." if own else "rank"
    return [name for name in others if rank_of(name)[0].startswith(prefix)]


def is_merged(ranks: Sequence[str], heads: Mapping[str, ConsoleHead], stream: int) -> bool:
    """Return whether the launcher of these ranks prints for them: none of them printed to the command's own stream."""
    printing = [heads[rank] for rank in ranks if rank in heads]
    return bool(ranks) and (not printing or any(head.forwards(stream) for head in printing))


def texts_of(run: RunDirectory, ranks: Sequence[str], heads: Mapping[str, ConsoleHead], stream: int) -> list[bytes]:
    """Return what each rank gave to its launcher, as far as it was kept."""
    giving = [heads[rank] for rank in ranks if rank in heads and heads[rank].forwards(stream)]
    consoles = [console.read(run, head) for head in giving]
    return [console.text([*printed.first, *printed.last], stream) for printed in consoles]


def without_ranks(lines: Sequence[PrintedLine], merged: bytes, texts: Sequence[bytes]) -> list[PrintedLine]:
    """Return the lines of a merged text that no rank gave: none if it has only the characters of theirs."""
    if _characters([merged]) == _characters(texts):
        return []
    given = Counter(line.text for text in texts for line in printed_lines(text)[0])
    return _others(lines, given)


def _characters(texts: Iterable[bytes]) -> Counter[int]:
    """Count the characters of some texts; a terminal between rank and launcher adds carriage returns."""
    return sum((Counter(text.replace(b"\r", b"")) for text in texts), Counter[int]())


def compare_as_set(
    left: Sequence[PrintedLine], right: Sequence[PrintedLine], contexts: Contexts | None
) -> LinesComparison:
    """Compare lines in any order: equal ones first, then the others in the order of the words around their numbers."""
    common = Counter(line.text for line in left) & Counter(line.text for line in right)
    others = [sorted(_others(side, common), key=_words) for side in (left, right)]
    return compare_lines(others[0], others[1], contexts)


def _words(line: PrintedLine) -> str:
    """Return a line without its numbers."""
    return _DIGITS.sub("#", line.text)


def _others(lines: Iterable[PrintedLine], known: Counter[str]) -> list[PrintedLine]:
    """Return the lines beyond those that are known, each as often as it is."""
    rest, others = known.copy(), []
    for line in lines:
        if rest[line.text] > 0:
            rest[line.text] -= 1
        else:
            others.append(line)
    return others
