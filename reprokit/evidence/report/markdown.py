"""Writes the report as Markdown for a pull request, a wiki or a model card."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from reprokit.core.pages.markdown import code, escaped
from reprokit.evidence.report.facts import AuditFacts, Item
from reprokit.evidence.report.phrases import EXECUTED, MARKS, counted, entropy_rows, ignored_lines, outcome, run_rows

MAX_ROWS = 200  # rows per table; those that differ come first


def page(facts: AuditFacts) -> str:
    """Return the report as Markdown text."""
    return "\n".join(_lines(facts)) + "\n"


def _lines(facts: AuditFacts) -> Iterator[str]:
    for line in facts.attention:
        yield f"**{escaped(line)}**\n"
    yield f"# {outcome(facts)}\n"
    yield f"{escaped(facts.verdict.sentence, 4000)}\n"
    yield f"{EXECUTED[facts.executed_by]}\n"
    yield from [f"{counted(facts)}\n"] if counted(facts) else []
    yield from _list(facts.verdict.causes, "What can be why:\n")
    yield from _trained(facts)
    yield "## How it was compared, and what was left out\n"
    yield from _list(facts.compared_how) if facts.compared_how else ["Nothing was compared.\n"]
    if facts.excluded:
        yield f"Never compared, as they differ in every run: {escaped(', '.join(facts.excluded))}.\n"
    yield from _list(ignored_lines(facts), "Ignored, as it was declared that they may differ:\n")
    yield from _list(facts.notes, "To be kept in mind:\n")
    yield from _results(facts)
    yield from _randomness(facts)
    yield from _findings(facts)
    yield from _list(facts.divergence, "## The first divergent operator\n")
    yield from _list(facts.resumption, "## Interrupted and resumed\n")
    yield from _environment(facts)
    yield "## Limits\n"
    yield from _list(facts.limits)
    yield "## How to check it yourself\n"
    yield from (f"{number}. {escaped(step.name)}: {code(step.value)}" for number, step in enumerate(facts.check_it, 1))
    yield f"\nMade on {facts.made} by reprokit {facts.reprokit}. It is evidence for what it states."


def _trained(facts: AuditFacts) -> Iterator[str]:
    yield "## What was trained\n"
    yield f"{code(facts.trained.command, 4000)}\n"
    heads = ["what", "first run", "second run"] if len(facts.runs) > 1 else ["what", "this run"]
    yield from _table(heads, [[escaped(cell) for cell in row] for row in run_rows(facts)])
    stated = [*facts.trained.code, *facts.trained.data]
    yield from _table(["code and data", "digest or state"], [[escaped(fact.name), code(fact.value)] for fact in stated])
    yield from _list(facts.trained.seeds, "Seeds:\n")
    yield from _list(facts.trained.variables, "Variables that the script read:\n")


def _results(facts: AuditFacts) -> Iterator[str]:
    yield "## What came out\n"
    rows = [
        [escaped(category.name), MARKS[category.verdict], escaped(category.summary)] for category in facts.categories
    ]
    if len(facts.runs) > 1:
        yield from _table(["kind", "verdict", "in words"], rows)
    items = [item for item in facts.digests if item.verdict != "not-recorded"]
    items.sort(key=lambda item: item.verdict not in ("different", "missing"))
    yield from _table(["artifact", "verdict", "value"], list(map(_item, items)))


def _item(item: Item) -> list[str]:
    values = [item.left] if item.left == item.right or not item.right else [item.left or "nothing", item.right]
    return [escaped(item.name), MARKS[item.verdict], " / ".join(map(code, values))]


def _randomness(facts: AuditFacts) -> Iterator[str]:
    yield "## Randomness: who asked, and what was given again\n"
    yield from _table(["what", "how much"], [[escaped(name), escaped(value)] for name, value in entropy_rows(facts)])
    askers = [
        [escaped(asker.module), escaped(asker.call), asker.source, str(asker.requests), str(asker.bytes)]
        for asker in facts.entropy.askers
    ]
    yield from _table(["library", "call", "source", "requests", "bytes"], askers)
    yield from _list(facts.entropy.uncovered, "Not recorded:\n")


def _findings(facts: AuditFacts) -> Iterator[str]:
    yield "## Findings and patches\n"
    yield f"{escaped(facts.findings_note)}\n"
    rows = [[escaped(text) for text in (one.subject, one.verdict, one.why, one.where)] for one in facts.findings]
    yield from _table(["what", "verdict", "why", "where"], rows)
    rows = [[escaped(one.name), escaped(one.state), escaped(one.why)] for one in facts.patches]
    yield from _table(["patch", "state", "why"], rows) if rows else ["No patch was applied.\n"]


def _environment(facts: AuditFacts) -> Iterator[str]:
    yield "## Environment and software\n"
    rows = [[escaped(item.name), escaped(item.left), escaped(item.right)] for item in facts.environment]
    yield from _table(["what", "first run", "second run"], rows)
    packages = [[escaped(item.name), escaped(item.version)] for item in facts.packages if item.imported]
    yield from _table(["package that was imported", "version"], packages)


def _list(lines: Iterable[str], head: str = "") -> Iterator[str]:
    items = [f"- {escaped(line, 2000)}" for line in lines]
    if items and head:
        yield head
    yield from [*items, ""] if items else []


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if not rows:
        return
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    yield from (f"| {' | '.join(row)} |" for row in rows[:MAX_ROWS])
    if len(rows) > MAX_ROWS:
        yield f"\n{len(rows) - MAX_ROWS} more; the HTML and JSON reports have them all."
    yield ""


def model_card(facts: AuditFacts) -> str:
    """Return a section for a model's README on a model hub."""
    return "\n".join(_card(facts)) + "\n"


def _card(facts: AuditFacts) -> Iterator[str]:
    yield "## Reproducibility\n"
    yield from (f"**{escaped(line)}**\n" for line in facts.attention)
    yield f"**{outcome(facts)}.** {escaped(facts.verdict.sentence, 2000)}\n"
    yield f"{EXECUTED[facts.executed_by]}\n"
    yield f"Trained by {code(facts.trained.command, 2000)}.\n"
    rows = [[escaped(name), escaped(value)] for name, value in entropy_rows(facts)]
    whole = [item for item in facts.digests if item.left.startswith("sha256:")]
    rows += [[escaped(item.name), code(item.left)] for item in whole[:MAX_ROWS]]
    rows += [[escaped(file.path), code(file.digest)] for file in facts.outputs[:MAX_ROWS]]
    rows += [[escaped(item.name), escaped(item.value)] for item in facts.trained.code if item.name.startswith("git")]
    yield from _table(["what", "value"], rows)
    versions = ", ".join(f"{item.name} {item.version}" for item in facts.packages if item.imported)
    yield f"Software: {escaped(versions, 4000)}.\n"
    yield from _list(facts.limits[:2])
    yield f"Recorded and compared by reprokit {escaped(facts.reprokit)}."
