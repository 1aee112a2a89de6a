"""Tells what differs because a run ended early from what differs by itself: an end comes before its consequences."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase

from reprokit.core.difference import SIDES, Difference, Role, Side, Verdict
from reprokit.verify.categories import ranks, status, weights
from reprokit.verify.categories.match import RunPair
from reprokit.verify.categories.processes import ended_in_one

# Environment facts that are known only while a training runs or when its processes end.
_KNOWN_LATE = ("code.*", "compute.*", "data.*", "frameworks.*", "listing of *", "packages.*")
_WRITTEN_LATE = frozenset(["random states", "outputs", "snapshots", "console"])  # categories written up to the end
# Categories of what comes before the steps, or has an order of its own beside them.
_BEFORE_STEPS = frozenset(["command", "environment", "entropy", "processes", "seeds", "samples", "trail"])
_ENVIRONMENT, _PROCESSES, _TRAIL, _METRICS, _WEIGHTS = "environment", "processes", "trail", "process metrics", "weights"


def with_roles(runs: RunPair, tree: Difference) -> Difference:
    """Return the tree with the role of each leaf, if one of the runs or both ended early."""
    step_end = _step_end(tree)
    cut_short = _cut_short_sides(runs)
    late = _WRITTEN_LATE
    if step_end is not None and step_end.lacking is not None:
        cut_short |= {step_end.lacking}
        late = frozenset(child.name for child in tree.children) - _BEFORE_STEPS - {"exit status"}
        tree = _replace_leaf(tree, step_end, replace(step_end, role=Role.END))
    if not cut_short:
        return tree
    at_end = weights.written_at_end(runs)
    tree = replace(
        tree, children=tuple(_with_role(child, child.name, cut_short, late, at_end) for child in tree.children)
    )
    if step_end is not None or len({*map(status.ended, runs.files)}) > 1:
        tree = replace(tree, children=tuple(map(_ends_as_consequence, tree.children)))
    return _with_reason(runs, tree)


def _step_end(tree: Difference) -> Difference | None:
    """Return the leaf of a series of steps that ends in one run and goes on in the other; None if they parted first.

    Losses and logged values tell it only of runs without a trail.
    """
    for category in (child for child in tree.children if child.name in (_TRAIL, _METRICS)):
        first = category.first()
        if first is not None:
            return first if first.lacking and first.left and first.right else None
        if category.name == _TRAIL and category.verdict is not Verdict.NOT_RECORDED:
            return None
    return None


def _cut_short_sides(runs: RunPair) -> frozenset[Side]:
    """Return the runs that failed, were killed, or lost a process that finished in the other run."""
    sides: set[Side] = set()
    for run, name in zip(runs.directories, SIDES, strict=True):
        if status.failed(run.run) or run.unfinished:
            sides.add(name)
    sides.update(side for name in runs.left.processes if (side := ended_in_one(name, *runs.process(name))))
    return frozenset(sides)


def _with_role(
    node: Difference, category: str, cut_short: frozenset[Side], late: frozenset[str], at_end: frozenset[str]
) -> Difference:
    """Return the tree, where lines missing in a run that ended early, and what it wrote late, are consequences."""
    if category == _WEIGHTS and node.name in at_end:
        late |= {_WEIGHTS}
    if node.judged is None:
        children = (_with_role(child, category, cut_short, late, at_end) for child in node.children)
        return replace(node, children=tuple(children))
    if category == _ENVIRONMENT:
        is_late = any(fnmatchcase(node.name, pattern) for pattern in _KNOWN_LATE)
        if not (is_late and node.lacking in cut_short and node.can_change_results):
            return node
        detail = f"the {node.lacking} run ended before it could tell"
        return replace(node, detail=detail, can_change_results=False, role=Role.CONSEQUENCE)
    if node.role is Role.OWN and (node.lacking in cut_short or category in late):
        return replace(node, role=Role.CONSEQUENCE)
    return node


def _ends_as_consequence(category: Difference) -> Difference:
    """Return a category; ends of processes follow from the end of the steps or the exit status, if these differ."""
    if category.name != _PROCESSES:
        return category
    children = (leaf if leaf.role is Role.OWN else replace(leaf, role=Role.CONSEQUENCE) for leaf in category.children)
    return replace(category, children=tuple(children))


def _with_reason(runs: RunPair, tree: Difference) -> Difference:
    """Return the tree, where the first difference says why the run ended, if it is about the end of one."""
    first = tree.first()
    if first is None or first.role is not Role.END:
        return tree
    if first.lacking is None:
        reason = "until then nothing that was recorded differs, and what else differs may follow from it"
        return _replace_leaf(tree, first, replace(first, detail=f"{first.detail}; {reason}"))
    index = SIDES.index(first.lacking)
    run, scan = runs.directories[index], (runs.left, runs.right)[index]
    reason = f"; the {first.lacking} run {status.end_words(run.run)}" if status.failed(run.run) else ""
    killed = next((rank for rank in ranks.dead_ranks(run, scan) if rank.signal), None)
    reason += f"; of the {first.lacking} run, {killed.words}" if killed is not None else ""
    others = sum(1 for leaf in tree.leaves() if leaf.verdict.differs) > 1
    follows = "; what else differs may follow from it" if others else ""
    return _replace_leaf(tree, first, replace(first, detail=f"{first.detail}{reason}{follows}"))


def _replace_leaf(node: Difference, old: Difference, new: Difference) -> Difference:
    """Return the tree with one leaf replaced."""
    if node is old:
        return new
    return replace(node, children=tuple(_replace_leaf(child, old, new) for child in node.children))
