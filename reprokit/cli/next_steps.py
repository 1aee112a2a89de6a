"""Chooses the command that usually follows a verdict: the one that cures what differs, where that is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from reprokit.core.difference import Role

if TYPE_CHECKING:
    from reprokit.verify.comparison import Comparison

# What a step finds when it begins: if the trail differs there first, no operator of the step is why.
INPUTS = frozenset(["batch", "random state", "tensors", "parameters before"])


class NextStep(Enum):
    """What to do after a verdict."""

    REPORT = auto()
    SHOW = auto()  # the run that ended early
    LOCATE = auto()  # the operator by which the steps part
    REPLAY = auto()  # two recordings, or two commands, say nothing about a replay
    CLEAN = auto()  # start each run from the same files
    CLOCK = auto()
    HIDE_RDRAND = auto()
    REPRODUCE = auto()


@dataclass(frozen=True)
class VerdictFacts:
    """What the next step depends on."""

    differs: bool = True
    category: str = ""  # of the first difference
    quantity: str = ""  # of the trail, if that differs first
    ended_early: bool = False  # first of all
    is_locatable: bool = False
    is_separate: bool = False  # each run had entropy of its own
    shares_state: bool = False  # one run read what the other had written
    sources: frozenset[str] = frozenset()  # that were seen in either run and not recorded
    has_clock: bool = False  # it was recorded
    hides_rdrand: bool = False


def chosen(facts: VerdictFacts) -> NextStep:
    """Return the next step."""
    reads_clock = "clock" in facts.sources and not facts.has_clock
    if not facts.differs:
        return NextStep.REPORT
    if facts.ended_early:
        return NextStep.SHOW
    if facts.is_locatable and not (reads_clock and facts.quantity in INPUTS):
        return NextStep.LOCATE
    if facts.is_separate or facts.category == "command":
        return NextStep.REPLAY
    if facts.shares_state:
        return NextStep.CLEAN
    if reads_clock:
        return NextStep.CLOCK
    if "instructions" in facts.sources and not facts.hides_rdrand:
        return NextStep.HIDE_RDRAND
    return NextStep.REPRODUCE


def facts_of(comparison: Comparison) -> VerdictFacts:
    """Return what the next step after a comparison depends on."""
    from reprokit.questions.locate import is_locatable
    from reprokit.run_files import state_files
    from reprokit.verify.categories import entropy

    first, runs = comparison.tree.first(), (comparison.left, comparison.right)
    if first is None:
        return VerdictFacts(differs=False)
    quantity = first.figures.get("quantity")
    return VerdictFacts(
        category=next(child.name for child in comparison.tree.children if child.first() is first),
        quantity=quantity if isinstance(quantity, str) else "",
        ended_early=first.role is Role.END,
        is_locatable=is_locatable(*runs),
        is_separate=entropy.is_separate(*runs),
        shares_state=bool(state_files.handed_on(*runs)),
        sources=frozenset(source.source for run in runs for source in run.run.uncovered),
        has_clock=all(run.run.clock for run in runs),
        hides_rdrand=all(run.run.hide_rdrand for run in runs),
    )


def words(comparison: Comparison, names: Sequence[str]) -> list[str]:
    """Return the command of the next step; `names` are those of both runs."""
    step, command = chosen(facts_of(comparison)), comparison.left.run.command
    recorded = {NextStep.CLOCK: "--clock", NextStep.HIDE_RDRAND: "--hide-rdrand"}
    if step in recorded:
        return ["reprokit", "record", recorded[step], "--", *command]
    if step is NextStep.REPORT:
        return ["reprokit", "report", *names, "-o", "report.html"]
    if step is NextStep.SHOW:
        return ["reprokit", "show", names[_ended_early(comparison)]]
    if step is NextStep.LOCATE:
        return ["reprokit", "locate", *names]
    if step is NextStep.REPLAY:
        origin = comparison.left.run.replay_of
        return ["reprokit", "replay", names[0] if origin is None else origin.path]
    return ["reprokit", *(["gate", "--clean"] if step is NextStep.CLEAN else ["reproduce"]), "--", *command]


def _ended_early(comparison: Comparison) -> int:
    """Return which run ended early: the one that lacks something, else the one that did not end with status 0."""
    first = comparison.tree.first()
    if first is not None and first.lacking is not None:
        return 0 if first.lacking == "left" else 1
    return 1 if comparison.left.run.exit_code == 0 else 0
