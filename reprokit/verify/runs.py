"""Compares two runs by the table of facts, and collects the notes beside the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reprokit import entropy as entropy_profile
from reprokit.core.difference import SIDES, Difference, Exclusion, Role, Side, Verdict, group, overall
from reprokit.core.errors import NothingComparable, RunInProgress
from reprokit.core.tolerance import Tolerances
from reprokit.model.agent_warning import by_cause
from reprokit.model.plan import REPLAY
from reprokit.model.run import NO_END, RunFile
from reprokit.model.states import Loading, SwitchOption, off_in
from reprokit.run_files import state_files
from reprokit.run_files.rundir import ENTROPY, RunDirectory
from reprokit.verify.categories import (
    console,
    data_reads,
    entropy,
    random_states,
    ranks,
    samples,
    status,
    tracker_metrics,
    trails,
)
from reprokit.verify.categories.declared_outputs import DeclaredIgnores
from reprokit.verify.categories.ends import with_roles
from reprokit.verify.categories.match import RunPair, match
from reprokit.verify.facts import BY_NAME, FACTS, FactCategory, Level, PairedRuns, is_left_out
from reprokit.verify.ignores import Ignores, IgnoreUse, uses
from reprokit.verify.read import integrity
from reprokit.verify.read.execution import SharedTrait, shared
from reprokit.verify.read.metric_lines import OUTCOMES

MAX_WARNINGS, MAX_READ = 20, 1000  # warnings of a run that are shown, and that are read
_TRAINING = frozenset(["process metrics", "samples", "trail"])  # whose order tells causes from effects


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
    def switched_off(self) -> list[SwitchOption]:
        """Return what the user switched off in either run."""
        return off_in((*self.left.run.switched_off, *self.right.run.switched_off))

    @property
    def levels(self) -> frozenset[Level]:
        """Return the levels of which anything was compared and is the same; a random state alone is no training."""
        categories = (child for child in self.tree.children if child.name != random_states.NAME)
        compared = (child for child in categories if any(leaf.verdict.is_same for leaf in child.leaves()))
        return frozenset(BY_NAME[category.name].level for category in compared)

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
    pair = PairedRuns(runs)
    found = {fact: [_switched_off(runs, fact, category) for category in fact.compare(pair)] for fact in FACTS}
    runs.declared.require_obeyed()
    if not any(fact.is_result(pair, categories) for fact, categories in found.items()):
        raise NothingComparable(_nothing_reason(runs, found[BY_NAME[console.NAME]][0]))
    categories = [category for of_fact in found.values() for category in of_fact]
    tree = with_roles(runs, group("runs", tuple(_in_causal_order(pair, categories))))
    if pair.resumed:
        tree = replace(tree, children=tuple(map(_resumed_as_consequence, tree.children)))
    notes = (
        *_notes(runs, tree),
        *(note for fact, categories in found.items() for note in fact.gaps(pair, categories)),
        *(option.sentence for option in off_in(part for run in runs.files for part in run.switched_off)),
    )
    applied = uses(ignores, tree)
    failures = ranks.failure(left, runs.left), ranks.failure(right, runs.right)
    applied_normalizations, unique = runs.normalizations.applied, tuple(dict.fromkeys(notes))
    return Comparison(left, right, tree, applied_normalizations, unique, str(tolerances or ""), applied, failures)


def _in_causal_order(pair: PairedRuns, categories: Sequence[Difference]) -> Iterator[Difference]:
    """Yield the categories; samples, trail and process metrics ordered by which of them differs first."""
    by_name = {category.name: category for category in categories}
    for category in categories:
        if category.name not in _TRAINING:
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


def _switched_off(runs: RunPair, fact: FactCategory, category: Difference) -> Difference:
    """Return a category; one without entries says so where the user switched it off."""
    parts = [part for run in runs.files for part in run.switched_off if part == fact.switch]
    option = next(iter(off_in(parts)), None)
    if category.children or option is None:
        return category
    return group(category.name, (Difference(option.lost, Verdict.NOT_RECORDED, detail=option.reason),))


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
    yield from status.date_problems(left, right)
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
        unseen = run.out_of_reach_in_words, run.outliving_in_words, run.unsupervised
        run_notes = filter(None, (*unseen, *run.warnings[:MAX_READ]))
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
        environment_category = next(child for child in tree.children if child.name == "environment")
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
    return category.name == name and not all(map(is_left_out, category.leaves()))


def _resumed_as_consequence(category: Difference) -> Difference:
    """Return a category of a resumed run; what is counted from its start differs as a consequence."""
    return _all_consequences(category) if BY_NAME[category.name].from_start else category


def _all_consequences(node: Difference) -> Difference:
    role = Role.CONSEQUENCE if node.role is Role.OWN and node.judged is not None else node.role
    return replace(node, role=role, children=tuple(map(_all_consequences, node.children)))
