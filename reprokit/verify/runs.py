"""Compares two runs by the table of facts, and collects the notes beside the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from reprokit import entropy as entropy_profile
from reprokit.core.difference import SIDES, Difference, Role, Side, Verdict, group
from reprokit.core.errors import NothingComparable, RunInProgress
from reprokit.core.tolerance import Tolerances
from reprokit.model.plan import REPLAY
from reprokit.model.run import NO_END, RunFile
from reprokit.model.run_warning import by_cause
from reprokit.model.states import Loading, off_in
from reprokit.run_files import state_files
from reprokit.run_files.rundir import ENTROPY, RunDirectory
from reprokit.verify.categories.declared_outputs import DeclaredIgnores
from reprokit.verify.categories.ends import with_roles
from reprokit.verify.categories.match import RunPair, match
from reprokit.verify.comparison import Comparison, Level
from reprokit.verify.facts import BY_NAME, FACTS, FactCategory, PairedRuns, in_causal_order, is_left_out
from reprokit.verify.ignores import Ignores, uses
from reprokit.verify.read import integrity
from reprokit.verify.read.execution import shared
from reprokit.verify.read.scan import MetricsScan

MAX_WARNINGS, MAX_READ = 20, 1000  # warnings of a run that are shown, and that are read


def require_whole(path: Path) -> None:
    """Raise RunInProgress if a run is in progress, RunDamaged if its random profile was altered."""
    run = RunDirectory(path)
    run.require_finished()
    if run.orphaned and entropy_profile.being_written(path / ENTROPY):
        raise RunInProgress(f"{path}: its launcher is gone and its training still writes to it; wait for it to end")
    if run.run.has_profile:
        entropy_profile.check(path / ENTROPY, run.run.profile)


def compare(
    left_path: Path | RunDirectory,
    right_path: Path | RunDirectory,
    *,
    tolerances: Tolerances | None = None,
    ignores: Ignores | None = None,
    strict_console: bool = False,
) -> Comparison:
    """Compare two finished runs; raise a RunError or NothingComparable if that is impossible."""
    left, right = (run if isinstance(run, RunDirectory) else RunDirectory(run) for run in (left_path, right_path))
    left.require_finished()
    right.require_finished()
    for run in dict.fromkeys((left, right)):
        integrity.check(run)
    ignores = ignores or Ignores()
    runs = match(left, right, tolerances or Tolerances(), DeclaredIgnores(ignores), strict_console=strict_console)
    pair = PairedRuns(runs)
    found = {fact: [_switched_off(runs, fact, category) for category in fact.compare(pair)] for fact in FACTS}
    runs.declared.require_obeyed()
    if not any(fact.is_result(pair, categories) for fact, categories in found.items()):
        raise NothingComparable(_nothing_reason(runs, found))
    categories = [category for of_fact in found.values() for category in of_fact]
    tree = with_roles(runs, group("runs", tuple(in_causal_order(pair, categories))))
    if pair.resumed:
        tree = replace(tree, children=tuple(map(_resumed_as_consequence, tree.children)))
    notes = (
        *_notes(runs),
        *(note for fact in FACTS for note in fact.notes(pair, tree)),
        *state_files.sentences(*runs.directories),
        *_limits(runs, tree),
        *(note for fact, categories in found.items() for note in fact.gaps(pair, categories)),
        *(option.sentence for option in off_in(part for run in runs.files for part in run.switched_off)),
    )
    applied = uses(ignores, tree)
    failures = _failure(left, runs.left), _failure(right, runs.right)
    normalizations, unique, levels = runs.normalizations.applied, tuple(dict.fromkeys(notes)), frozenset(_levels(tree))
    return Comparison(left, right, tree, normalizations, unique, str(tolerances or ""), applied, failures, levels)


def _failure(run: RunDirectory, scan: MetricsScan) -> str:
    """Return how a run failed, in words; empty if it did not."""
    return next(filter(None, (fact.failure(run, scan) for fact in FACTS)), "")


def _levels(tree: Difference) -> Iterator[Level]:
    """Yield the levels of which anything was compared and is the same."""
    for category in tree.children:
        fact = BY_NAME[category.name]
        if fact.is_evidence and any(leaf.verdict.is_same for leaf in category.leaves()):
            yield fact.level


def _switched_off(runs: RunPair, fact: FactCategory, category: Difference) -> Difference:
    """Return a category; one without entries says so where the user switched it off."""
    parts = [part for run in runs.files for part in run.switched_off if part == fact.switch]
    option = next(iter(off_in(parts)), None)
    if category.children or option is None:
        return category
    return group(category.name, (Difference(option.lost, Verdict.NOT_RECORDED, detail=option.reason),))


def _nothing_reason(runs: RunPair, found: Mapping[FactCategory, Sequence[Difference]]) -> str:
    """Return why there is nothing to compare, in one line."""
    agents = (run.agent for run in runs.files)
    reasons = {agent.words for agent in agents if agent is not None and not agent.is_loaded}
    agent_words = f" (agent {'; '.join(sorted(reasons))})" if reasons else ""
    problem = "neither run recorded metrics, weights or outputs"
    absent = (text for fact, categories in found.items() for text in fact.why_absent(runs, categories))
    advice = "let the script print its results, call reprokit.log or write a file"
    return f"{problem}{agent_words}, and {next(absent)}; an equal exit status proves nothing, {advice}"


def _notes(runs: RunPair) -> Iterator[str]:
    """Yield notes on how the runs belong together, which qualify the verdict."""
    left, right = runs.files
    shared_trait = shared(left, right)
    if shared_trait is not None:
        yield f"this compares a run with itself, as {shared_trait.value} is the same in both: it proves nothing"
    if left.kind == right.kind == REPLAY:
        yield "both runs are replays, which can agree and be wrong alike: compare one with its recording"
    for run, side in zip(runs.directories, SIDES, strict=True):
        if run.unfinished:
            yield f"the {side} run {NO_END}; what it had recorded is compared"


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
        run_notes = filter(None, (*unseen, *(warning.text for warning in run.warnings[:MAX_READ])))
        yield from (f"of the {side} run, {words}" for words in list(dict.fromkeys(run_notes))[:MAX_WARNINGS])
    yield from _agent_warnings(runs)
    has_values = any(fact.has_values(runs, tree) for fact in FACTS)
    bases = [BY_NAME[child.name].basis for child in tree.children if not all(map(is_left_out, child.leaves()))]
    if not has_values:
        words = " and ".join(filter(None, bases))
        yield f"no metrics and no weights were recorded: the verdict rests on {words} alone"


def _agent_warnings(runs: RunPair) -> Iterator[str]:
    """Yield what the agents of either run warn of, each thing once."""
    causes = (by_cause(scan.warnings) for scan in (runs.left, runs.right))
    sides = [{warning.cause: warning for warning in warnings} for warnings in causes]
    for about, warning in {**sides[1], **sides[0]}.items():
        whose = "both runs' agents warn" if about in sides[0] and about in sides[1] else ""
        whose = whose or f"the {'left' if about in sides[0] else 'right'} run's agent warns"
        if warning.text:
            yield f"{whose}: {warning.text}"


def _resumed_as_consequence(category: Difference) -> Difference:
    """Return a category of a resumed run; what is counted from its start differs as a consequence."""
    return _all_consequences(category) if BY_NAME[category.name].from_start else category


def _all_consequences(node: Difference) -> Difference:
    role = Role.CONSEQUENCE if node.role is Role.OWN and node.judged is not None else node.role
    return replace(node, role=role, children=tuple(map(_all_consequences, node.children)))
