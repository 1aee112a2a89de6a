"""The table of facts: what a run holds, in causal order, and how each fact is compared.

A comparison of two runs, a study of a resumed training, and what is said behind a verdict are selections of this table.
A fact has its own module in `categories/`, and one row here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from reprokit.core.difference import SIDES, Difference, IgnoredThing, Verdict
from reprokit.core.tolerance import Tolerances
from reprokit.model.resumption import OtherFact
from reprokit.model.states import SwitchedPart
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.categories import (
    command,
    console,
    continuation,
    data_reads,
    entropy,
    environment,
    evaluation,
    metrics,
    outputs,
    processes,
    random_states,
    ranks,
    samples,
    seeds,
    snapshots,
    status,
    tracker_metrics,
    trails,
    weights,
)
from reprokit.verify.categories.continuation import Continuation
from reprokit.verify.categories.declared_outputs import DeclaredIgnores
from reprokit.verify.categories.match import RunPair, match
from reprokit.verify.categories.resumption import Resumption
from reprokit.verify.categories.trails import Key, TrailPair
from reprokit.verify.comparison import Level
from reprokit.verify.ignores import Ignores
from reprokit.verify.read.metric_lines import OUTCOMES
from reprokit.verify.read.scan import MetricsScan

TRAINING = frozenset({"process metrics", "samples", "trail"})  # whose order tells causes from effects
STEPS = frozenset({"loss", "epoch", "history"})  # kinds of lines that are written for steps


@dataclass(frozen=True)
class PairedRuns:
    """Two runs that are compared, with their trails."""

    runs: RunPair

    @cached_property
    def trails(self) -> TrailPair:
        """Return the trails, whose comparison tells whether one run resumes the other."""
        return TrailPair(self.runs)

    @cached_property
    def trail_category(self) -> Difference:
        """Return the comparison of the trails."""
        return self.trails.compare()

    @property
    def resumed(self) -> Mapping[Key, Resumption]:
        """Return the series in which one run resumes the other in its middle."""
        return self.trails.resumed if self.trail_category.children else {}

    @property
    def idle(self) -> Set[Key]:
        """Return the generators that differ, although no step drew from them."""
        return self.trails.idle if self.trail_category.children else frozenset()


Categories = Sequence[Difference]


@dataclass(frozen=True)
class FactCategory:
    """One row: a category of what a run holds."""

    name: str
    level: Level
    compare: Callable[[PairedRuns], Iterable[Difference]]  # its category; none where neither run has any
    gaps: Callable[[PairedRuns, Categories], Iterable[str]] = lambda _pair, _categories: ()  # what was not seen of it
    is_result: Callable[[PairedRuns, Categories], bool] = lambda _pair, _categories: False  # whether any was compared
    later: Callable[[Continuation], Iterable[OtherFact]] | None = None  # what differs after a training is resumed
    from_start: bool = False  # whether its entries are counted from the start, by calls, steps or epochs
    switch: SwitchedPart | None = None  # what switches it off
    notes: Callable[[PairedRuns, Difference], Iterable[str]] = lambda _pair, _tree: ()  # what qualifies the verdict
    failure: Callable[[RunDirectory, MetricsScan], str] = lambda _run, _scan: ""  # how it says that a run failed
    has_values: Callable[[RunPair, Difference], bool] = lambda _runs, _tree: False  # whether any metric was compared
    why_absent: Callable[[RunPair, Categories], Iterable[str]] = lambda _runs, _categories: ()  # where nothing is
    basis: str = ""  # in words, where a verdict rests on it without metrics and weights
    is_evidence: bool = True  # whether it alone shows that something of its level was compared
    beside_trail: bool = False  # whether questions, which rest on the trail, say where it differs


def _of_processes(pair: PairedRuns, _categories: Categories) -> Iterator[str]:
    """Yield which processes were ended by others, which ranks died, and what is not known of ranks."""
    runs = pair.runs
    yield from processes.stopped(runs)
    for run, scan, side in zip(runs.directories, (runs.left, runs.right), SIDES, strict=True):
        yield from ranks.deaths(run, scan, side)
    left, right = runs.directories
    yield from ranks.notes(left, SIDES[0], right)
    yield from ranks.notes(right, SIDES[1], left)


def _of_trails(pair: PairedRuns, _categories: Categories) -> Iterator[str]:
    """Yield what trails lack, and whether optimizers were made and no step of any kind was seen."""
    runs = pair.runs
    yield from pair.trails.notes()
    if not all(run.trail is not None and run.trail.is_on for run in runs.files):
        return
    has_steps = pair.trails.has_steps or runs.has(STEPS)
    if not has_steps and runs.left.optimizers_made and runs.right.optimizers_made:
        made = "both runs made an optimizer, and neither was seen to take a step with it"
        yield f"{made}: if nothing was left to train, that the results are equal proves nothing"


def _has_values(pair: PairedRuns, _categories: Categories) -> bool:
    return pair.runs.has(OUTCOMES)


def _has_outputs(pair: PairedRuns, categories: Categories) -> bool:
    is_ignored = any(
        category.verdict is Verdict.IGNORED and all(map(is_left_out, category.leaves())) for category in categories
    )
    return any(map(outputs.comparable, pair.runs.outputs)) and not is_ignored


def child_of(tree: Difference, name: str) -> Difference:
    """Return the category of this name."""
    return next(child for child in tree.children if child.name == name)


def is_left_out(leaf: Difference) -> bool:
    """Return whether nothing of a leaf was compared."""
    is_whole = any(ignored.thing is IgnoredThing.FILE for ignored in leaf.ignored)
    return is_whole or leaf.verdict in (Verdict.NOT_RECORDED, Verdict.INFORMATION)


FACTS: tuple[FactCategory, ...] = (
    FactCategory("command", Level.EXECUTION, lambda pair: (command.compare(pair.runs),)),
    FactCategory(
        "environment",
        Level.EXECUTION,
        lambda pair: (environment.compare(pair.runs),),
        notes=lambda _, tree: data_reads.unknown_data(child_of(tree, "environment")) if tree.verdict.differs else (),
    ),
    FactCategory(
        "entropy",
        Level.EXECUTION,
        lambda pair: (entropy.compare(pair.runs),),
        notes=lambda pair, tree: entropy.advice(*pair.runs.directories) if tree.verdict.differs else (),
    ),
    FactCategory(
        "processes",
        Level.EXECUTION,
        lambda pair: (processes.compare(pair.runs),),
        gaps=_of_processes,
        failure=ranks.failure,
        beside_trail=True,
    ),
    FactCategory("seeds", Level.EXECUTION, lambda pair: (seeds.compare(pair.runs),), from_start=True),
    FactCategory(
        samples.NAME,
        Level.TRAINING,
        lambda pair: (samples.compare(pair.runs, pair.resumed),),
        gaps=lambda pair, _: (
            note for run, side in zip(pair.runs.directories, SIDES, strict=True) for note in samples.notes(run, side)
        ),
        switch="trail",
    ),
    FactCategory("trail", Level.TRAINING, lambda pair: (pair.trail_category,), gaps=_of_trails, switch="trail"),
    FactCategory(
        "process metrics",
        Level.TRAINING,
        lambda pair: (metrics.compare(pair.runs),),
        is_result=_has_values,
        has_values=lambda runs, _: runs.has(OUTCOMES),
        later=lambda runs: continuation.values(runs, "epoch", "history", "log"),
        beside_trail=True,
        from_start=True,
    ),
    FactCategory(
        "weights",
        Level.TRAINING,
        lambda pair: (weights.compare(pair.runs),),
        is_result=_has_values,
        later=continuation.weights,
        beside_trail=True,
        from_start=True,
    ),
    FactCategory(
        "evaluation metrics",
        Level.TRAINING,
        lambda pair: (evaluation.compare(pair.runs),),
        is_result=_has_values,
        later=continuation.evaluations,
        beside_trail=True,
    ),
    FactCategory(
        tracker_metrics.CATEGORY,
        Level.RESULT,
        lambda pair: tracker_metrics.compare(pair.runs),
        is_result=lambda _, categories: any(map(tracker_metrics.compared, categories)),
        has_values=lambda _, tree: any(map(tracker_metrics.compared, tree.children)),
        later=continuation.logged,
        beside_trail=True,
    ),
    FactCategory(
        random_states.NAME,
        Level.TRAINING,
        lambda pair: (random_states.compare(pair.runs, pair.idle),),
        is_evidence=False,  # of a training: a state that nobody drew from is the same in any two
    ),
    FactCategory(
        "outputs",
        Level.RESULT,
        lambda pair: (outputs.compare(pair.runs),),
        gaps=lambda pair, categories: (note for tree in categories for note in outputs.beside(pair.runs, tree)),
        notes=lambda _, tree: outputs.not_compared(child_of(tree, "outputs")),
        basis="the outputs",
        is_result=_has_outputs,
        later=continuation.files,
        beside_trail=True,
    ),
    FactCategory(
        "snapshots",
        Level.RESULT,
        lambda pair: snapshots.compare(pair.runs),
        is_result=lambda pair, _: any(map(snapshots.comparable, pair.runs.directories)),
        basis="captured states",
    ),
    FactCategory(
        console.NAME,
        Level.RESULT,
        lambda pair: (console.compare(pair.runs),),
        gaps=lambda pair, categories: (note for tree in categories for note in console.notes(pair.runs, tree)),
        is_result=lambda _, categories: any(map(console.comparable, categories)),
        why_absent=lambda runs, categories: console.why_absent(runs, categories[0]),
        basis="what was printed",
        later=continuation.printed,
        beside_trail=True,
        switch="console",
    ),
    FactCategory(
        "exit status",
        Level.EXECUTION,
        lambda pair: (status.compare(pair.runs),),
        beside_trail=True,
        notes=lambda pair, _: status.notes(*pair.runs.files),
    ),
    FactCategory("times", Level.BOOKKEEPING, lambda pair: (status.times(pair.runs),)),
)
BY_NAME = {fact.name: fact for fact in FACTS}


def later_differences(runs: Continuation) -> list[OtherFact]:
    """Return what differs beside the steps after a training was resumed; its files must still be there."""
    found = (other for fact in FACTS if fact.later is not None for other in fact.later(runs))
    return list(found)[: continuation.MAX_NAMED]


def in_causal_order(pair: PairedRuns, categories: Sequence[Difference]) -> Iterator[Difference]:
    """Yield the categories; samples, trail and process metrics ordered by which of them differs first."""
    by_name = {category.name: category for category in categories}
    for category in categories:
        if category.name not in TRAINING:
            yield category
        elif category.name == samples.NAME:
            yield from _training(pair, *(by_name[name] for name in ("trail", "process metrics", samples.NAME)))


def _training(
    pair: PairedRuns, trail_category: Difference, metrics_category: Difference, samples_category: Difference
) -> tuple[Difference, ...]:
    if pair.resumed:  # a resumed run numbers its losses' steps differently
        return trail_category, metrics_category, samples_category
    ordered = (
        (metrics_category, trail_category)
        if trails.is_after(trail_category, pair.runs)
        else (trail_category, metrics_category)
    )
    return (
        (*ordered, samples_category)
        if trails.is_before(trail_category, samples.step_of(samples_category))
        else (samples_category, *ordered)
    )


def beside_trail(left: RunDirectory, right: RunDirectory, ignores: Ignores | None = None) -> list[OtherFact]:
    """Return in which categories two runs to their ends differ beside their trails, each with its first difference."""
    pair = PairedRuns(match(left, right, Tolerances(), DeclaredIgnores(ignores or Ignores())))
    categories = [(fact.name, category) for fact in FACTS if fact.beside_trail for category in fact.compare(pair)]
    pair.runs.declared.require_obeyed()
    firsts = [(name, leaf) for name, category in categories if (leaf := category.first()) is not None]
    return [OtherFact(fact=name, name=leaf.name, detail=leaf_words(leaf)) for name, leaf in firsts]


def trail_and_console(recording: RunDirectory, replay: RunDirectory) -> tuple[Difference, Difference]:
    """Return how the trails and what was printed compare, without reading anything else of the runs."""
    pair = PairedRuns(match(recording, replay, Tolerances(), DeclaredIgnores(Ignores())))
    return pair.trail_category, console.compare(pair.runs)


def leaf_words(leaf: Difference) -> str:
    """Return how the two values of a leaf differ, without its name."""
    values = " against ".join(text or "nothing" for text in (leaf.left, leaf.right))
    return values if leaf.is_sentence or not leaf.detail else leaf.detail
