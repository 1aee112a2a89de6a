"""Lists what the runs ran on and with: facts of the environment, and packages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reprokit.core.untrusted_json import object_in
from reprokit.evidence.report import facts as audit
from reprokit.evidence.report.section import ReportedRuns
from reprokit.evidence.report.sections.compared import ENVIRONMENT, items_of
from reprokit.verify.comparison import Comparison
from reprokit.verify.show.summary import RunSummary


def section(runs: ReportedRuns) -> dict[str, Any]:
    """Return the environment and the packages of the first run."""
    facts = environment(runs.comparison, runs.first, is_alone=runs.is_alone)
    return {"environment": tuple(facts), "packages": tuple(_packages(runs.first))}


def environment(comparison: Comparison | None, first: RunSummary, *, is_alone: bool) -> Iterator[audit.Item]:
    """Yield the facts of the environment; those that differ come first."""
    if comparison is None:
        yield from (audit.Item(name=name, verdict=audit.NOT_COMPARED, left=value) for name, value in _host(first))
        return
    tree = next(child for child in comparison.tree.children if child.name == ENVIRONMENT)
    items = [item for item in items_of(tree, "", is_alone=is_alone) if item.verdict != "not-recorded"]
    yield from sorted(items, key=lambda item: (not item.can_change_results, item.left == item.right))


def _host(summary: RunSummary) -> Iterator[tuple[str, str]]:
    """Yield the facts of the environment of a run without a comparison."""
    from reprokit.verify.categories.environment import flat

    skipped = ("packages.", "check", "format", "imported")
    yield from (pair for pair in flat(summary.environment) if pair[1] and not pair[0].startswith(skipped))


def _packages(summary: RunSummary) -> Iterator[audit.Package]:
    imported = summary.environment.get("imported")
    names = set(map(str, imported)) if isinstance(imported, list) else set()
    for name, version in sorted(object_in(summary.environment, "packages").items()):
        yield audit.Package(name=str(name), version=str(version), imported=str(name) in names)
