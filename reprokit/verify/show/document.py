"""A comparison as a JSON document, which reprokit/schemas/verify.schema.json describes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reprokit.difference import Difference, Role

if TYPE_CHECKING:
    from reprokit.rundir import RunDirectory
    from reprokit.verify.compare.runs import Comparison

FORMAT = 1


def document(comparison: Comparison) -> dict[str, Any]:
    """The whole comparison; every text as it stands in the run directories."""
    first = comparison.tree.first() or comparison.tree.first_tolerated()
    return {
        "format": FORMAT,
        "verdict": comparison.verdict.value,
        "left": _run(comparison.left),
        "right": _run(comparison.right),
        "first_difference": None if first is None else node(first),
        **({"tolerances": comparison.tolerances} if comparison.tolerances else {}),
        "notes": list(comparison.notes),
        "normalisations": list(comparison.normalisations),
        "categories": [node(child) for child in comparison.tree.children],
    }


def _run(run: RunDirectory) -> dict[str, Any]:
    facts = run.run
    return {
        "path": str(run.path),
        "run_id": facts.run_id,
        "kind": facts.kind,
        "command": facts.command,
        "status": facts.status,
        "exit_code": facts.exit_code,
        "signal": facts.signal,
        "started": facts.started,
        "duration": facts.duration,
    }


def node(difference: Difference) -> dict[str, Any]:
    """A node of the tree with all below it."""
    found = {
        "name": difference.name,
        "verdict": difference.verdict.value,
        "left": difference.left,
        "right": difference.right,
        "detail": difference.detail,
        "can_change_results": difference.can_change_results,
        "children": [node(child) for child in difference.children],
    }
    if difference.role is not Role.OWN:
        found["role"] = difference.role.name.lower()
    return {**found, "figures": dict(difference.figures)} if difference.figures else found
