"""A comparison as a JSON document, which reprokit/schemas/verify.schema.json describes."""

from __future__ import annotations

from typing import Any

from reprokit.difference import Difference
from reprokit.rundir import RunDirectory
from reprokit.verify.compare import Comparison

FORMAT = 1


def document(comparison: Comparison) -> dict[str, Any]:
    """The whole comparison; every text as it stands in the run directories."""
    first = comparison.tree.first()
    return {
        "format": FORMAT,
        "verdict": "identical" if comparison.identical else "different",
        "left": _run(comparison.left),
        "right": _run(comparison.right),
        "first_difference": None if first is None else _node(first),
        "notes": list(comparison.notes),
        "normalisations": list(comparison.normalisations),
        "categories": [_node(child) for child in comparison.tree.children],
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


def _node(node: Difference) -> dict[str, Any]:
    return {
        "name": node.name,
        "verdict": node.verdict.value,
        "left": node.left,
        "right": node.right,
        "detail": node.detail,
        "can_change_results": node.can_change_results,
        "children": [_node(child) for child in node.children],
    }
