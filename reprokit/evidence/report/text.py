"""Prints the report on the screen: the decisive facts in some thirty lines."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.core.screen import Cells, print_rows
from reprokit.evidence.report import phrases
from reprokit.evidence.report.facts import AuditFacts
from reprokit.evidence.report.phrases import EXECUTED, MARKS, counted, entropy_rows

SHOWN = 6
STYLES = {
    "identical": "bold green",
    "different": "bold red",
    "tolerated": "bold yellow",
    "failed": "bold red",
    "not-compared": "bold",
}


def print_report(facts: AuditFacts) -> None:
    """Print warnings, the verdict, then a few lines of each part."""
    outcome = facts.verdict.outcome
    head = [*facts.attention, f"{phrases.outcome(facts)}. {facts.verdict.sentence}"]
    labels = ["" for _ in facts.attention[1:]] + ["verdict"]
    head_cells = [Cells(row) for row in zip(labels, head[1:], strict=False)]
    cells = [Cells(row) for row in _rows(facts)]
    footer = ["", *facts.limits[:SHOWN], "", f"Made on {facts.made}. --format html has all of it."]
    print_rows(head[0], [*head_cells, *cells], footer, STYLES[outcome])


def _rows(facts: AuditFacts) -> Iterator[tuple[str, str]]:
    if counted(facts):
        yield "compared", counted(facts)
    yield from (("ignored", line) for line in phrases.ignored_lines(facts))
    yield "executed", EXECUTED[facts.executed_by]
    yield "trained", facts.trained.command
    for run in facts.runs:
        yield run.kind, f"{run.path} ({run.run_id}): {run.state}, {run.started}, on {run.host}"
    yield from (("seeded", text) for text in facts.trained.seeds[:SHOWN])
    yield from (("reads", text) for text in facts.trained.variables[:SHOWN])
    for line in facts.trained.code[:SHOWN]:
        yield "code", f"{line.name} {line.value}"
    for category in facts.categories:
        if category.verdict != "not-recorded":
            words = category.summary or f"{len(category.items)} recorded"
            yield category.name, f"{MARKS[category.verdict]}: {words}"
    for name, value in entropy_rows(facts):
        yield "randomness", f"{name}: {value}"
    yield "findings", facts.findings_note
    yield from (("resumed", words) for words in facts.resumption[:1])
    yield from (("located", words) for words in facts.divergence[:1])
    for patch in facts.patches:
        yield "patch", f"{patch.name} {patch.state}"
    for step in facts.check_it[:2]:
        yield "check it", f"{step.name}: {step.value}"
