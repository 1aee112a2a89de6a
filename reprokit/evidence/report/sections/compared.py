"""States what came out of the comparison of two runs, and lists what was compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from reprokit.core.difference import Difference, Verdict
from reprokit.evidence.report import facts as audit
from reprokit.evidence.report.section import Execution, ReportedRuns
from reprokit.verify.comparison import Comparison
from reprokit.verify.show import comparison as comparisons
from reprokit.verify.show.summary import RunSummary
from reprokit.verify.verdict import sentence, shortened, verdict_line

MAX_ITEMS = 200_000  # items of all categories; further ones are only counted
ENVIRONMENT = "environment"  # the category with a section of its own in a report
BY_BITS = (
    "Numbers are compared by their bits: 0.0 and -0.0 differ, and NaN is equal to the same NaN only.",
    "Weights, predictions and output files are compared by SHA-256 digests of their bytes, with data type and shape.",
)


def section(runs: ReportedRuns) -> dict[str, Any]:
    """Return the verdict, what it rests on, and the compared items by category."""
    comparison, of_two = runs.comparison, runs.of_two
    witnessed = runs.execution or Execution()
    notes = (*witnessed.notes, *(of_two.notes if of_two is not None else ()))
    return {
        "verdict": verdict_of(runs.summaries, comparison, runs.problem, witnessed.failures),
        "compared_how": _how(runs.summaries, comparison),
        "excluded": of_two.normalizations if of_two is not None else (),
        "ignored": tuple(audit.IgnoredDifferences(**use.document()) for use in (of_two.ignores if of_two else ())),
        "notes": tuple(dict.fromkeys(notes)),
        "categories": tuple(categories(comparison, is_alone=runs.is_alone)),
    }


def verdict_of(
    summaries: Sequence[RunSummary], comparison: Comparison | None, problem: str, failures: Sequence[str] = ()
) -> audit.ReportVerdict:
    """Return the verdict on one run or two; `failures` of who executed them make it no success."""
    if len(summaries) == 1:
        state = "is not finished" if summaries[0].in_progress else "was not compared with another"
        return audit.ReportVerdict(
            outcome=audit.NOT_COMPARED, sentence=f"This run {state}: nothing is said about its reproducibility."
        )
    if comparison is None:
        return audit.ReportVerdict(outcome=audit.NOT_COMPARED, sentence=f"Nothing was compared: {problem}.")
    first = comparison.tree.decisive()
    has_failed = bool(failures) or not all(summary.succeeded for summary in summaries)
    outcome = _outcome(comparison, has_failed=has_failed)
    return audit.ReportVerdict(
        outcome=outcome,
        sentence=_sentence(verdict_line(comparison), outcome),
        counts=_counts(comparison),
        first_difference="" if first is None else sentence(first),
        causes=tuple(comparisons.causes(comparison)),
    )


def _outcome(comparison: Comparison, *, has_failed: bool) -> audit.Outcome:
    """Return the outcome; equal bits are no success if a training failed."""
    if comparison.verdict.differs:
        return "different"
    if has_failed:
        return "failed"
    if comparison.verdict is Verdict.NOT_COMPARED:
        return "not-compared"
    return "tolerated" if comparison.verdict is Verdict.TOLERATED else "identical"


def _counts(comparison: Comparison) -> dict[str, int]:
    """Return the number of compared items by verdict, without the environment, which decides nothing."""
    leaves = (leaf for child in comparison.tree.children if child.name != ENVIRONMENT for leaf in child.leaves())
    counts = Counter(leaf.verdict for leaf in leaves)
    decided = (
        *(Verdict.IDENTICAL, Verdict.BOOKKEEPING, Verdict.TOLERATED, Verdict.IGNORED),
        *(Verdict.DIFFERENT, Verdict.MISSING),
    )
    return {verdict.value: counts[verdict] for verdict in decided if counts[verdict]}


def _sentence(line: str, outcome: str) -> str:
    """Turn verify's line into a sentence, without the verdict, which the report shows above it."""
    text = line.partition(": ")[2]
    if outcome == "failed":
        return f"What both runs recorded is equal as far as it goes: {text}."
    return f"First difference: {text}." if outcome == "different" else f"{text[:1].upper()}{text[1:]}."


def _how(summaries: Sequence[RunSummary], comparison: Comparison | None) -> tuple[str, ...]:
    if len(summaries) == 1 or comparison is None:
        return ()
    first, last = summaries[0].run, summaries[-1].run
    kind = "two recordings, each with randomness of its own"
    if last.replay_of is not None and last.replay_of.run_id == first.run_id:
        kind = "a recording and its replay, which was given the recorded randomness again"
    elif first.replay_of is not None or last.replay_of is not None:
        kind = "no recording and its replay, in this order: one of them, or both, replays something else"
    return (f"The runs are {kind}.", *BY_BITS)


def categories(comparison: Comparison | None, *, is_alone: bool) -> Iterator[audit.Category]:
    """Yield what was compared by category, without the environment."""
    if comparison is None:
        return
    room = MAX_ITEMS
    for child in comparison.tree.children:
        if child.name == ENVIRONMENT:
            continue
        items = tuple(islice(items_of(child, "", is_alone=is_alone), room))
        room -= len(items)
        summary = "" if is_alone else shortened(comparisons.headline(child))
        yield audit.Category(name=child.name, verdict=_judgment(child, is_alone), summary=summary, items=items)


def items_of(node: Difference, prefix: str, *, is_alone: bool) -> Iterator[audit.Item]:
    """Yield the leaves below a node, each with the names of its groups."""
    for child in node.children:
        if child.judged is None:
            yield from items_of(child, f"{prefix}{child.name}: ", is_alone=is_alone)
        else:
            yield _item(child, prefix + child.name, is_alone)


def _item(leaf: Difference, name: str, is_alone: bool) -> audit.Item:
    return audit.Item(
        name=name,
        verdict=_judgment(leaf, is_alone),
        left=leaf.left,
        right="" if is_alone else leaf.right,
        detail=leaf.detail,
        can_change_results=leaf.can_change_results,
    )


def _judgment(node: Difference, is_alone: bool) -> Any:
    is_judged = node.verdict not in (Verdict.INFORMATION, Verdict.NOT_RECORDED)
    return audit.NOT_COMPARED if is_alone and is_judged else node.verdict.value
