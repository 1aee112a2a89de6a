"""Compares two runs: every comparator in causal order, and what must be said beside the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from reprokit import entropy as entropy_profile
from reprokit import state_files
from reprokit.difference import SIDES, Difference, Exclusion, Role, Side, Verdict, group, overall
from reprokit.errors import NothingComparable, RunInProgress
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
from reprokit.verify.compare.match import RunPair, match
from reprokit.verify.compare.processes import ended_in_one
from reprokit.verify.read import integrity
from reprokit.verify.read.execution import SharedTrait, shared
from reprokit.verify.read.metric_lines import OUTCOMES
from reprokit.verify.read.scan import MetricsScan

STEPS = frozenset({"loss", "epoch", "history"})  # kinds of lines that tell of steps
TRAINING = frozenset({"torch", "keras", "tensorflow"})  # frameworks whose steps are seen
# Facts of the environment that become known while a training goes on, or when its processes end.
_KNOWN_LATE = ("code.*", "compute.*", "data.*", "frameworks.*", "listing of *", "packages.*")
_WRITTEN_LATE = ("random states", "outputs", "snapshots", "console")  # categories of what is written until the end
MAX_WARNINGS, MAX_READ = 20, 1000  # of a run that are named, and looked at
_ENVIRONMENT, _PROCESSES = "environment", "processes"
# Of categories, those that are counted from the start: by calls, steps or epochs.
_FROM_START = frozenset(["seeds", "process metrics", "weights"])


@dataclass(frozen=True)
class Comparison:
    """Two runs, the tree of their differences and what went into it."""

    left: RunDirectory
    right: RunDirectory
    tree: Difference
    normalizations: tuple[str, ...]
    notes: tuple[str, ...]  # what a reader must know beside the verdict
    tolerances: str = ""  # that were asked for, in words

    @property
    def shared(self) -> SharedTrait | None:
        """What shows that both directories hold one execution, which proves nothing."""
        return shared(self.left.run, self.right.run)

    @property
    def identical(self) -> bool:
        """Whether nothing that was compared differs; something was, or there were no comparison."""
        return self.verdict is Verdict.IDENTICAL

    @property
    def verdict(self) -> Verdict:
        """Identical, different, or within the tolerances that were asked for."""
        return overall(self.tree)


def require_whole(path: Path) -> None:
    """Raise RunInProgress where a run goes on, RunDamaged where its random profile is not what was recorded."""
    run = RunDirectory(path)
    run.require_finished()
    if run.orphaned and entropy_profile.being_written(path / ENTROPY):
        raise RunInProgress(f"{path}: its launcher is gone and its training still writes to it; wait for it to end")
    if run.run.has_profile:
        entropy_profile.check(path / ENTROPY, run.run.profile)


def compare(left_path: Path, right_path: Path, *, tolerances: Tolerances | None = None) -> Comparison:
    """Compare two finished runs; raises a RunError or NothingComparable where that is impossible."""
    left, right = RunDirectory(left_path), RunDirectory(right_path)
    left.require_finished()
    right.require_finished()
    for run in (left, right):
        integrity.check(run)
    runs = match(left, right, tolerances or Tolerances())
    in_files = tracker_metrics.compare(runs)
    has_results = runs.has(OUTCOMES) or any(map(outputs.comparable, runs.outputs))
    has_results = has_results or any(map(tracker_metrics.compared, in_files))
    has_results = has_results or any(map(snapshots.comparable, (left, right)))
    printed = console.compare(runs)
    if not (has_results or console.comparable(printed)):
        raise NothingComparable(_nothing(runs, printed))
    trail = trails.TrailPair(runs)
    children = (
        command.compare(runs),
        environment.compare(runs),
        entropy.compare(runs),
        processes.compare(runs),
        seeds.compare(runs),
        *_training(trail, runs),
        weights.compare(runs),
        evaluation.compare(runs),
        *in_files,
        random_states.compare(runs, trail.idle),
        outputs.compare(runs),
        *snapshots.compare(runs),
        printed,
        status.compare(runs),
        status.times(runs),
    )
    tree = told_apart(runs, group("runs", children))
    if trail.resumed:
        tree = replace(tree, children=tuple(map(_counted_apart, tree.children)))
    notes = (
        *_notes(runs, tree),
        *outputs.beside(runs),
        *console.notes(runs, printed),
        *processes.stopped(runs),
        *(note for run, scan, side in _sides(runs) for note in ranks.deaths(run, scan, side)),
        *trail.notes(),
        *(note for run, side in zip((left, right), SIDES, strict=True) for note in ranks.notes(run, side)),
        *(note for run, side in zip((left, right), SIDES, strict=True) for note in samples.notes(run, side)),
        *_untrained(runs, trail),
    )
    return Comparison(left, right, tree, runs.normalizations.applied, notes, str(tolerances or ""))


def _training(trail: trails.TrailPair, runs: RunPair) -> tuple[Difference, ...]:
    """Return samples, trail and process metrics, each of which makes the next differ unless that does so before it."""
    steps, values = trail.compare(), metrics.compare(runs)
    drawn = samples.compare(runs, trail.resumed)
    if trail.resumed:  # losses of a resumed run are at other steps
        return steps, values, drawn
    later = (values, steps) if trails.is_after(steps, runs) else (steps, values)
    return (*later, drawn) if trails.is_before(steps, samples.step_of(drawn)) else (drawn, *later)


def _sides(runs: RunPair) -> Iterator[tuple[RunDirectory, MetricsScan, Side]]:
    return zip(runs.directories, (runs.left, runs.right), SIDES, strict=True)


def _nothing(runs: RunPair, printed: Difference) -> str:
    """Why there is nothing to compare, in one line."""
    agents = (run.agent for run in runs.files)
    reasons = {agent.words for agent in agents if agent is not None and not agent.is_loaded}
    why = f" (agent {'; '.join(sorted(reasons))})" if reasons else ""
    what = "neither run recorded metrics, weights or outputs"
    about = (
        *console.notes(runs, printed),
        *map(console.unseen, runs.directories),
        "neither printed anything that is kept",
    )
    printing = next(filter(None, about))
    advice = "let the script print its results, call reprokit.log or write a file"
    return f"{what}{why}, and {printing}; an equal exit status proves nothing, {advice}"


def _untrained(runs: RunPair, trail: trails.TrailPair) -> Iterator[str]:
    """That no training may have been compared, where there was a framework to train with."""
    if not all(run.trail is not None and run.trail.is_on for run in runs.files):
        return
    seen = trail.has_steps or runs.has(STEPS)
    if not seen and any(not TRAINING.isdisjoint(side.frameworks) for side in (runs.left, runs.right)):
        yield "neither run was seen to take a step of an optimizer: if they were to train, nothing was left to train"


def _notes(runs: RunPair, tree: Difference) -> Iterator[str]:
    """Yield what qualifies the verdict."""
    left, right = runs.files
    common = shared(left, right)
    if common is not None:
        yield f"this compares a run with itself, as {common.value} is the same in both: it proves nothing"
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
    """Yield what of reprokit was not at work in a run, as data and in words."""
    for name, loaded in (("shim", run.shim), ("agent", run.agent)):
        if loaded is not None and not loaded.is_loaded:
            yield loaded, f"the {side} run's {name} was {loaded.words}"


def _limits(runs: RunPair, tree: Difference) -> Iterator[str]:
    """Yield what the comparison could not see."""
    for run, scan, side in zip(runs.files, (runs.left, runs.right), SIDES, strict=True):
        yield from (text for _, text in not_loaded(run, side))
        told = list(filter(None, (run.out_of_reach_in_words, run.unsupervised)))
        said = list(filter(None, (*told, *scan.warnings)))
        told += [one for one in dict.fromkeys(run.warnings[:MAX_READ]) if not any(text in one for text in said)]
        yield from (f"of the {side} run, {words}" for words in told[:MAX_WARNINGS])
        for warning in scan.warnings:
            yield f"the {side} run's agent warns: {warning}"
    results = next(child for child in tree.children if child.name == "outputs")
    skipped = [leaf for leaf in results.leaves() if leaf.verdict is Verdict.NOT_RECORDED]
    of_trackers = [leaf for leaf in skipped if leaf.exclusion is Exclusion.VOLATILE]
    if of_trackers:
        count = f"{len(of_trackers)} of the outputs, first {of_trackers[0].name}"
        yield f"not compared, as an experiment tracker writes times and run ids into them: {count}"
    skipped = [leaf for leaf in skipped if leaf.exclusion is None]
    if skipped:
        yield f"not compared, as not read when the runs ended: {len(skipped)} of the outputs, first {skipped[0].name}"
    if tree.verdict.differs:
        surroundings = next(child for child in tree.children if child.name == _ENVIRONMENT)
        yield from data_reads.unknown_data(surroundings)
    in_files = any(map(tracker_metrics.compared, tree.children))
    if not (in_files or runs.has(OUTCOMES)):
        bases = [("outputs", "the outputs"), ("snapshots", "captured states"), ("console", "what was printed")]
        base = [words for name, words in bases if any(_is_of(child, name) for child in tree.children)]
        yield f"no metrics and no weights were recorded: the verdict rests on {' and '.join(base)} alone"


def _is_of(category: Difference, name: str) -> bool:
    """Return whether it is the category of this name, and something in it was compared."""
    verdicts = {leaf.verdict for leaf in category.leaves()}
    return category.name == name and not verdicts <= {Verdict.NOT_RECORDED, Verdict.INFORMATION}


def told_apart(runs: RunPair, tree: Difference) -> Difference:
    """Return the tree of two runs with the role of each leaf, where one of them or both ended early."""
    cut = _cut(runs)
    if not cut:
        return tree
    tree = replace(tree, children=tuple(_marked(child, child.name, cut) for child in tree.children))
    if len({*map(status.ended, runs.files)}) > 1:
        tree = replace(tree, children=tuple(map(_as_consequence, tree.children)))
    if (first := tree.first()) is None or first.role is not Role.END:
        return tree
    detail = f"{first.detail}; until then nothing that was recorded differs, and what else differs may follow from it"
    return _with(tree, first, replace(first, detail=detail))


def _counted_apart(category: Difference) -> Difference:
    """Return a category; where one run resumes the other, what is counted from its start differs as a consequence."""
    return _as_consequences(category) if category.name in _FROM_START else category


def _as_consequences(node: Difference) -> Difference:
    role = Role.CONSEQUENCE if node.role is Role.OWN and node.judged is not None else node.role
    return replace(node, role=role, children=tuple(map(_as_consequences, node.children)))


def _cut(runs: RunPair) -> frozenset[Side]:
    """Return the runs that failed, were killed, or lost a process that the other has to its end."""
    found: set[Side] = set()
    for run, name in zip(runs.directories, SIDES, strict=True):
        if status.failed(run.run) or run.unfinished:
            found.add(name)
    found.update(side for name in runs.left.processes if (side := ended_in_one(name, *runs.process(name))))
    return frozenset(found)


def _marked(node: Difference, category: str, cut: frozenset[Side]) -> Difference:
    """Return the tree, in which what a run that ended early lacks is a consequence, and what it wrote late may be."""
    if node.judged is None:
        return replace(node, children=tuple(_marked(child, category, cut) for child in node.children))
    if category == _ENVIRONMENT:
        is_late = any(fnmatchcase(node.name, pattern) for pattern in _KNOWN_LATE)
        if not (is_late and node.lacking in cut and node.can_change_results):
            return node
        meaning = f"the {node.lacking} run ended before it could tell"
        return replace(node, detail=meaning, can_change_results=False, role=Role.CONSEQUENCE)
    if node.role is Role.OWN and (node.lacking in cut or category in _WRITTEN_LATE):
        return replace(node, role=Role.CONSEQUENCE)
    return node


def _as_consequence(category: Difference) -> Difference:
    """Return a category; the ends of processes follow from the exit status, where that says how a run ended."""
    if category.name != _PROCESSES:
        return category
    children = (leaf if leaf.role is Role.OWN else replace(leaf, role=Role.CONSEQUENCE) for leaf in category.children)
    return replace(category, children=tuple(children))


def _with(node: Difference, old: Difference, new: Difference) -> Difference:
    """Return the tree with one leaf in the place of another."""
    if node is old:
        return new
    return replace(node, children=tuple(_with(child, old, new) for child in node.children))
