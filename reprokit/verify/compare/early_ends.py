"""Tells a run that ended early from what may follow from that, so that one cause is named and not its consequences."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase

from reprokit.difference import SIDES, Difference, Role, Side
from reprokit.verify.compare import status
from reprokit.verify.compare.match import RunPair
from reprokit.verify.compare.processes import ended_in_one

# Facts of the environment that become known while a training goes on, or when its processes end.
_KNOWN_LATE = ("code.*", "compute.*", "data.*", "frameworks.*", "listing of *", "packages.*")
_WRITTEN_LATE = ("random states", "outputs", "snapshots")  # categories of what is written until the end
_ENVIRONMENT, _PROCESSES = "environment", "processes"


def told_apart(runs: RunPair, tree: Difference) -> Difference:
    """The tree of two runs with the role of each leaf, where one of them or both ended early."""
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


def _cut(runs: RunPair) -> frozenset[Side]:
    """The runs that failed, were killed, or lost a process that the other has to its end."""
    found: set[Side] = set()
    for run, name in zip(runs.directories, SIDES, strict=True):
        if status.failed(run.run) or run.unfinished:
            found.add(name)
    found.update(side for name in runs.left.processes if (side := ended_in_one(name, *runs.process(name))))
    return frozenset(found)


def _marked(node: Difference, category: str, cut: frozenset[Side]) -> Difference:
    """What a run that ended early lacks is a consequence, and so may be what it wrote until then."""
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
    """Where the exit status says how a run ended, the ends of its processes follow from that."""
    if category.name != _PROCESSES:
        return category
    children = (leaf if leaf.role is Role.OWN else replace(leaf, role=Role.CONSEQUENCE) for leaf in category.children)
    return replace(category, children=tuple(children))


def _with(node: Difference, old: Difference, new: Difference) -> Difference:
    """The tree with one leaf in the place of another."""
    if node is old:
        return new
    return replace(node, children=tuple(_with(child, old, new) for child in node.children))
