"""Says in one line what came out of a comparison: no other module of verify has these words.

What was compared comes from the table of levels: a line names the training only if something of it was compared.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from reprokit.difference import BookkeepingKind, Difference, Verdict
from reprokit.sample_ledgers import BatchUse
from reprokit.verify.ignores import behind_verdict

if TYPE_CHECKING:
    from reprokit.verify.compare.hosts import HostsComparison
    from reprokit.verify.compare.runs import Comparison
    from reprokit.verify.compare.samples import EpochCoverage

NOT_BITWISE = "not bitwise identical; within the tolerance asked for"
NOT_KNOWN = "nothing that was compared differs, but both runs changed what could not be compared"
EVERYTHING = "everything that was recorded and is compared is the same"

_LONG_DIGEST = re.compile(r"(sha256:[0-9a-f]{12})[0-9a-f]{52}")


def shortened(text: str) -> str:
    """Return the text with shortened digests; --all and --json show them whole."""
    return _LONG_DIGEST.sub(r"\1...", text)


def sentence(leaf: Difference) -> str:
    """Return a leaf as a sentence."""
    if leaf.is_sentence:
        return leaf.detail
    values = f"{leaf.left or 'absent'} against {leaf.right or 'absent'}" if leaf.left or leaf.right else ""
    return ": ".join(filter(None, (leaf.name, values, leaf.detail)))


def counted_bookkeeping(counts: Counter[BookkeepingKind]) -> str:
    """Return the numbers of values that are bookkeeping, such as "3 durations and 1 directory name"."""
    words = [kind.counted(counts[kind]) for kind in BookkeepingKind if counts[kind]]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def verdict_line(comparison: Comparison) -> str:
    """Return the result of a comparison of two runs in one line, with how much the user's rules ignored."""
    return _verdict_words(comparison) + behind_verdict(comparison.ignores)


def _verdict_words(comparison: Comparison) -> str:
    first = comparison.tree.first()
    if first is not None:
        return f"different: {shortened(sentence(first))}"
    not_compared = comparison.tree.first_of(Verdict.NOT_COMPARED)
    if not_compared is not None:
        return f"not-compared: {NOT_KNOWN}, first {shortened(sentence(not_compared))}"
    tolerated = comparison.tree.first_tolerated()
    if tolerated is not None:
        return f"tolerated: {NOT_BITWISE}; first {shortened(sentence(tolerated))}{_but_for([comparison])}"
    if comparison.shared is not None:
        return "identical: this is one run compared with itself, which proves nothing"
    causes = sum(1 for leaf in comparison.tree.leaves() if leaf.can_change_results)
    count = "one fact" if causes == 1 else f"{causes} facts"
    addition = f", although {count} could have changed it" if causes else ""
    but_for = _but_for([comparison])
    return f"identical: {_compared(comparison) if but_for else EVERYTHING}, bit for bit{but_for}{addition}"


def tensors_proof(steps: int, seen: int, agreed: int, gaps: Mapping[str, Sequence[str]], is_all: bool) -> Iterator[str]:
    """Yield what is known of tensors that a replay saved, which is its run in so many steps by the trail.

    ``gaps`` are the values that are not proved, by reason; ``is_all`` says whether all that was asked for was saved.
    """
    is_run = f"the replay is that run in each of {steps:,} steps"
    if seen and is_all and not (agreed or gaps):
        yield f"proved: {is_run}"
    elif seen or agreed or gaps:
        yield f"{is_run}: of what the trail sees, {seen:,} values are proved"
    if agreed:
        yield f"{agreed:,} values, which the trail does not see, are the same in a second replay"
    for reason, names in gaps.items():
        yield f"not proved: {len(names):,} values, first {names[0]}: the trail does not see them, and {reason}"


def coverage_words(batches: int, uses: Mapping[BatchUse, int]) -> str:
    """Return what is known of an epoch that drew each sample once, from what updates are known to have had."""
    wholly, partly, reached, unwatched = (
        uses.get(use, 0) for use in (BatchUse.WHOLLY, BatchUse.PARTLY, BatchUse.REACHED, BatchUse.UNWATCHED)
    )
    if wholly == batches:
        return "each once"
    if unwatched == batches:
        return "each drawn once; whether batches reached an update is not known"
    parts = [f"{wholly + partly + reached:,} of {batches:,} batches were seen to reach an update"]
    parts += [f"{partly:,} in part"] if partly else []
    parts += [f"{reached:,} with samples that are not known"] if reached else []
    parts += [f"of {unwatched:,} it is not known"] if unwatched else []
    return f"each drawn once; {', '.join(parts)}"


def epochs_headline(epochs: Sequence[EpochCoverage]) -> str:
    """Return what is known of the epochs of a ledger that gives no reason to look at it."""
    if not all(row.is_complete for row in epochs):
        return "nothing to look at"
    return "nothing seen twice or left out" if all(row.is_used for row in epochs) else "nothing drawn twice or never"


def hosts_line(result: HostsComparison) -> str:
    """Return the result of a comparison of runs on several hosts in one line."""
    if result.lacking:
        name, side = result.lacking[0]
        return f"different: the {side} run has no part of host {name}"
    name, comparison = next(item for item in result.hosts.items() if item[1].verdict is result.verdict)
    if result.verdict is Verdict.IDENTICAL:
        but_for = _but_for(result.hosts.values())
        what = _compared(comparison) if but_for else EVERYTHING
        return f"identical: on each of {len(result.hosts)} hosts {what}{but_for}{behind_verdict(result.ignores)}"
    return verdict_line(comparison).replace(": ", f": host {name}: ", 1)


def files_line(tree: Difference) -> str:
    """Return the result of a comparison of two files or directories in one line."""
    first = tree.first()
    if first is not None:
        return f"different: {sentence(first)}"
    tolerated = tree.first_tolerated()
    if tolerated is not None:
        return f"tolerated: {NOT_BITWISE}; first {sentence(tolerated)}"
    files = sum(1 for leaf in tree.leaves() if leaf.left != "directory")
    content = f"{files} files hold the same" if tree.children else tree.detail or "the same bytes"
    return f"identical: {content}"


def _but_for(comparisons: Iterable[Comparison]) -> str:
    """Return the bookkeeping that differs; empty if there is none."""
    counts: Counter[BookkeepingKind] = Counter()
    for comparison in comparisons:
        counts.update(comparison.tree.bookkeeping())
    number = sum(counts.values())
    return f"; {counted_bookkeeping(counts)} differ{'s' if number == 1 else ''} (listed)" if number else ""


def _compared(comparison: Comparison) -> str:
    """Return what was compared, by levels."""
    from reprokit.verify.compare.runs import Level

    levels = comparison.levels
    if Level.TRAINING in levels:
        return "the training and its results" if Level.RESULT in levels else "the training"
    return "the results"
