"""Compares two runs by every comparator in causal order, and collects the notes beside the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from reprokit import entropy as entropy_profile
from reprokit import state_files
from reprokit.difference import SIDES, Difference, Exclusion, IgnoredThing, Role, Side, Verdict, group, overall
from reprokit.errors import NothingComparable, RunInProgress
from reprokit.model.agent_warning import by_cause
from reprokit.model.run import NO_END, RunFile
from reprokit.model.states import Loading
from reprokit.plan import REPLAY
from reprokit.rundir import ENTROPY, RunDirectory
from reprokit.tolerance import Tolerances
from reprokit.verify.compare import (
    command,
    console,
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
from reprokit.verify.compare.declared_outputs import DeclaredIgnores
from reprokit.verify.compare.ends import with_roles
from reprokit.verify.compare.match import RunPair, match
from reprokit.verify.ignores import Ignores, IgnoreUse, uses
from reprokit.verify.read import integrity
from reprokit.verify.read.execution import SharedTrait, shared
from reprokit.verify.read.metric_lines import OUTCOMES
from reprokit.verify.read.scan import MetricsScan

STEPS = frozenset({"loss", "epoch", "history"})  # kinds of lines that are written for steps
MAX_WARNINGS, MAX_READ = 20, 1000  # warnings of a run that are shown, and that are read
_ENVIRONMENT = "environment"
# Categories whose entries are counted from the start, by calls, steps or epochs.
_FROM_START = frozenset(["seeds", "process metrics", "weights"])


class Level(Enum):
    """What a category is about."""

    EXECUTION = "execution"  # what went in, and how the processes ran and ended
    TRAINING = "training"
    RESULT = "result"
    BOOKKEEPING = "bookkeeping"  # of the run itself: never compared


LEVELS = {
    "command": Level.EXECUTION,
    _ENVIRONMENT: Level.EXECUTION,
    "entropy": Level.EXECUTION,
    "processes": Level.EXECUTION,
    "seeds": Level.EXECUTION,
    "samples": Level.TRAINING,
    "trail": Level.TRAINING,
    "process metrics": Level.TRAINING,
    "weights": Level.TRAINING,
    "evaluation metrics": Level.TRAINING,
    random_states.NAME: Level.TRAINING,
    tracker_metrics.CATEGORY: Level.RESULT,
    "outputs": Level.RESULT,
    "snapshots": Level.RESULT,
    "console": Level.RESULT,
    "exit status": Level.EXECUTION,
    "times": Level.BOOKKEEPING,
}


@dataclass(frozen=True)
class Comparison:
    """Two runs, the tree of their differences and its context."""

    left: RunDirectory
    right: RunDirectory
    tree: Difference
    normalizations: tuple[str, ...]
    notes: tuple[str, ...]  # what the user must know beside the verdict
    tolerances: str = ""  # requested tolerances, in words
    ignores: tuple[IgnoreUse, ...] = ()  # the user's rules, and how often each applied
    failures: tuple[str, str] = ("", "")  # how either run failed, in words; empty if it did not

    @property
    def shared(self) -> SharedTrait | None:
        """Return what shows that both directories hold the same execution, which proves nothing; else None."""
        return shared(self.left.run, self.right.run)

    @property
    def levels(self) -> frozenset[Level]:
        """Return the levels of which anything was compared and is the same; a random state alone is no training."""
        categories = (child for child in self.tree.children if child.name != random_states.NAME)
        compared = (child for child in categories if any(leaf.verdict.is_same for leaf in child.leaves()))
        return frozenset(LEVELS[category.name] for category in compared)

    @property
    def identical(self) -> bool:
        """Return whether nothing that was compared differs but bookkeeping."""
        return self.verdict is Verdict.IDENTICAL

    @property
    def verdict(self) -> Verdict:
        """Return whether the runs are identical, different, not compared, or within the requested tolerances."""
        return overall(self.tree)


def require_whole(path: Path) -> None:
    """Raise RunInProgress if a run is in progress, RunDamaged if its random profile was altered."""
    run = RunDirectory(path)
    run.require_finished()
    if run.orphaned and entropy_profile.being_written(path / ENTROPY):
        raise RunInProgress(f"{path}: its launcher is gone and its training still writes to it; wait for it to end")
    if run.run.has_profile:
        entropy_profile.check(path / ENTROPY, run.run.profile)


def compare(
    left_path: Path,
    right_path: Path,
    *,
    tolerances: Tolerances | None = None,
    ignores: Ignores | None = None,
    strict_console: bool = False,
) -> Comparison:
    """Compare two finished runs; raise a RunError or NothingComparable if that is impossible."""
    left, right = RunDirectory(left_path), RunDirectory(right_path)
    left.require_finished()
    right.require_finished()
    for run in (left, right):
        integrity.check(run)
    ignores = ignores or Ignores()
    runs = match(left, right, tolerances or Tolerances(), DeclaredIgnores(ignores), strict_console=strict_console)
    tracker_categories = tracker_metrics.compare(runs)
    outputs_category, console_category = outputs.compare(runs), console.compare(runs)
    runs.declared.require_obeyed()
    has_results = runs.has(OUTCOMES) or (
        any(map(outputs.comparable, runs.outputs)) and not _is_ignored(outputs_category)
    )
    has_results = has_results or any(map(tracker_metrics.compared, tracker_categories))
    has_results = has_results or any(map(snapshots.comparable, (left, right)))
    if not (has_results or console.comparable(console_category)):
        raise NothingComparable(_nothing_reason(runs, console_category))
    trail_pair = trails.TrailPair(runs)
    categories = (
        command.compare(runs),
        environment.compare(runs),
        entropy.compare(runs),
        processes.compare(runs),
        seeds.compare(runs),
        *_training(trail_pair, runs),
        weights.compare(runs),
        evaluation.compare(runs),
        *tracker_categories,
        random_states.compare(runs, trail_pair.idle),
        outputs_category,
        *snapshots.compare(runs),
        console_category,
        status.compare(runs),
        status.times(runs),
    )
    tree = with_roles(runs, group("runs", categories))
    if trail_pair.resumed:
        tree = replace(tree, children=tuple(map(_resumed_as_consequence, tree.children)))
    notes = (
        *_notes(runs, tree),
        *outputs.beside(runs),
        *console.notes(runs, console_category),
        *processes.stopped(runs),
        *(note for run, scan, side in _sides(runs) for note in ranks.deaths(run, scan, side)),
        *trail_pair.notes(),
        *ranks.notes(left, SIDES[0], right),
        *ranks.notes(right, SIDES[1], left),
        *(note for run, side in zip((left, right), SIDES, strict=True) for note in samples.notes(run, side)),
        *_untrained_note(runs, trail_pair),
    )
    applied = uses(ignores, tree)
    failures = ranks.failure(left, runs.left), ranks.failure(right, runs.right)
    return Comparison(
        left,
        right,
        tree,
        runs.normalizations.applied,
        notes,
        str(tolerances or ""),
        applied,
        failures,
    )


def _training(trail_pair: trails.TrailPair, runs: RunPair) -> tuple[Difference, ...]:
    """Return samples, trail and process metrics, ordered by which of them differs first."""
    trail_category, metrics_category = trail_pair.compare(), metrics.compare(runs)
    samples_category = samples.compare(runs, trail_pair.resumed)
    if trail_pair.resumed:  # a resumed run numbers its losses' steps differently
        return trail_category, metrics_category, samples_category
    ordered = (
        (metrics_category, trail_category)
        if trails.is_after(trail_category, runs)
        else (trail_category, metrics_category)
    )
    return (
        (*ordered, samples_category)
        if trails.is_before(trail_category, samples.step_of(samples_category))
        else (samples_category, *ordered)
    )


def _sides(runs: RunPair) -> Iterator[tuple[RunDirectory, MetricsScan, Side]]:
    return zip(runs.directories, (runs.left, runs.right), SIDES, strict=True)


def _nothing_reason(runs: RunPair, console_category: Difference) -> str:
    """Return why there is nothing to compare, in one line."""
    agents = (run.agent for run in runs.files)
    reasons = {agent.words for agent in agents if agent is not None and not agent.is_loaded}
    agent_words = f" (agent {'; '.join(sorted(reasons))})" if reasons else ""
    problem = "neither run recorded metrics, weights or outputs"
    about_console = (
        *console.notes(runs, console_category),
        *(text for run in runs.directories for text in console.unseen(run)),
        "neither printed anything that is kept",
    )
    first_reason = about_console[0]
    advice = "let the script print its results, call reprokit.log or write a file"
    return f"{problem}{agent_words}, and {first_reason}; an equal exit status proves nothing, {advice}"


def _untrained_note(runs: RunPair, trail_pair: trails.TrailPair) -> Iterator[str]:
    """Yield a note if optimizers were made, and no step of any kind was seen."""
    if not all(run.trail is not None and run.trail.is_on for run in runs.files):
        return
    has_steps = trail_pair.has_steps or runs.has(STEPS)
    if not has_steps and runs.left.optimizers_made and runs.right.optimizers_made:
        made = "both runs made an optimizer, and neither was seen to take a step with it"
        yield f"{made}: if nothing was left to train, that the results are equal proves nothing"


def _notes(runs: RunPair, tree: Difference) -> Iterator[str]:
    """Yield notes that qualify the verdict."""
    left, right = runs.files
    shared_trait = shared(left, right)
    if shared_trait is not None:
        yield f"this compares a run with itself, as {shared_trait.value} is the same in both: it proves nothing"
    if left.kind == right.kind == REPLAY:
        yield "both runs are replays, which can agree and be wrong alike: compare one with its recording"
    for run, side in zip(runs.directories, SIDES, strict=True):
        if run.unfinished:
            yield f"the {side} run {NO_END}; what it had recorded is compared"
    if status.failed(left) and status.failed(right) and status.ended(left) == status.ended(right):
        yield f"both runs failed: {status.ended(left)}"
    if tree.verdict.differs and (text := entropy.advice(*runs.directories)):
        yield text
    yield from state_files.sentences(*runs.directories)
    yield from _limits(runs, tree)


def not_loaded(run: RunFile, side: Side) -> Iterator[tuple[Loading, str]]:
    """Yield the parts of reprokit that were not loaded in a run, as data and in words."""
    for name, loaded in (("shim", run.shim), ("agent", run.agent)):
        if loaded is not None and not loaded.is_loaded:
            yield loaded, f"the {side} run's {name} was {loaded.words}"


def _limits(runs: RunPair, tree: Difference) -> Iterator[str]:
    """Yield what the comparison could not cover."""
    for run, side in zip(runs.files, SIDES, strict=True):
        yield from (text for _, text in not_loaded(run, side))
        run_notes = filter(None, (run.out_of_reach_in_words, run.unsupervised, *run.warnings[:MAX_READ]))
        yield from (f"of the {side} run, {words}" for words in list(dict.fromkeys(run_notes))[:MAX_WARNINGS])
    yield from _agent_warnings(runs)
    outputs_category = next(child for child in tree.children if child.name == "outputs")
    skipped = [leaf for leaf in outputs_category.leaves() if leaf.verdict is Verdict.NOT_RECORDED]
    tracker_leaves = [leaf for leaf in skipped if leaf.exclusion is Exclusion.VOLATILE]
    if tracker_leaves:
        count = f"{len(tracker_leaves)} of the outputs, first {tracker_leaves[0].name}"
        yield f"not compared, as an experiment tracker writes times and run ids into them: {count}"
    skipped = [leaf for leaf in outputs_category.leaves() if leaf.verdict is Verdict.NOT_COMPARED]
    if skipped:
        yield f"not compared, as not read when the runs ended: {len(skipped)} of the outputs, first {skipped[0].name}"
    if tree.verdict.differs:
        environment_category = next(child for child in tree.children if child.name == _ENVIRONMENT)
        yield from data_reads.unknown_data(environment_category)
    has_tracker_metrics = any(map(tracker_metrics.compared, tree.children))
    if not (has_tracker_metrics or runs.has(OUTCOMES)):
        bases = [("outputs", "the outputs"), ("snapshots", "captured states"), ("console", "what was printed")]
        compared_bases = [words for name, words in bases if any(_was_compared(child, name) for child in tree.children)]
        yield f"no metrics and no weights were recorded: the verdict rests on {' and '.join(compared_bases)} alone"


def _agent_warnings(runs: RunPair) -> Iterator[str]:
    """Yield what the agents of either run warn of, each thing once."""
    causes = (by_cause(scan.warnings) for scan in (runs.left, runs.right))
    sides = [{warning.code or warning.text: warning for warning in warnings} for warnings in causes]
    for about, warning in {**sides[1], **sides[0]}.items():
        whose = "both runs' agents warn" if about in sides[0] and about in sides[1] else ""
        whose = whose or f"the {'left' if about in sides[0] else 'right'} run's agent warns"
        if warning.text:
            yield f"{whose}: {warning.text}"


def _was_compared(category: Difference, name: str) -> bool:
    """Return whether this is the category of that name, and something in it was compared."""
    return category.name == name and not all(map(_is_left_out, category.leaves()))


def _is_ignored(category: Difference) -> bool:
    """Return whether nothing is left of a category beside files that are ignored as a whole."""
    return category.verdict is Verdict.IGNORED and all(map(_is_left_out, category.leaves()))


def _is_left_out(leaf: Difference) -> bool:
    is_whole = any(ignored.thing is IgnoredThing.FILE for ignored in leaf.ignored)
    return is_whole or leaf.verdict in (Verdict.NOT_RECORDED, Verdict.INFORMATION)


def _resumed_as_consequence(category: Difference) -> Difference:
    """Return a category of a resumed run; what is counted from its start differs as a consequence."""
    return _all_consequences(category) if category.name in _FROM_START else category


def _all_consequences(node: Difference) -> Difference:
    role = Role.CONSEQUENCE if node.role is Role.OWN and node.judged is not None else node.role
    return replace(node, role=role, children=tuple(map(_all_consequences, node.children)))
