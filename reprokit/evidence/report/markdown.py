"""Writes the report as Markdown for a pull request, a wiki or a model card."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence

from reprokit.core.pages.markdown import code, escaped
from reprokit.core.printable import printable
from reprokit.evidence.report.facts import AuditFacts, Item
from reprokit.evidence.report.phrases import EXECUTED, MARKS, counted, entropy_rows, ignored_lines, outcome, run_rows

_BARE_BAR, _BAR = re.compile(r"(?<!\\)\|"), r"\\|"  # in a table also code ends at one
# Names that hubs have for libraries, by package: what builds on others comes first.
HUB_LIBRARIES = {
    **{
        name: name for name in ("diffusers", "sentence-transformers", "setfit", "peft", "transformers", "timm", "keras")
    },
    "scikit-learn": "sklearn",
}
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
    yield from bulleted(facts.verdict.causes, "What can be why:\n")
    yield from _trained(facts)
    yield "## How it was compared, and what was left out\n"
    yield from bulleted(facts.compared_how) if facts.compared_how else ["Nothing was compared.\n"]
    if facts.excluded:
        yield f"Never compared, as they differ in every run: {escaped(', '.join(facts.excluded))}.\n"
    yield from bulleted(ignored_lines(facts), "Ignored, as it was declared that they may differ:\n")
    yield from bulleted(facts.notes, "To be kept in mind:\n")
    yield from _results(facts)
    yield from _randomness(facts)
    yield from _findings(facts)
    yield from bulleted(facts.divergence, "## The first divergent operator\n")
    yield from bulleted(facts.resumption, "## Interrupted and resumed\n")
    yield from _environment(facts)
    yield "## Limits\n"
    yield from bulleted(facts.limits)
    yield "## How to check it yourself\n"
    yield from (f"{number}. {escaped(step.name)}: {code(step.value)}" for number, step in enumerate(facts.check_it, 1))
    yield f"\nMade on {facts.made} by reprokit {facts.reprokit}. It is evidence for what it states."


def _trained(facts: AuditFacts) -> Iterator[str]:
    yield "## What was trained\n"
    yield f"{code(facts.trained.command, 4000)}\n"
    heads = ["what", "first run", "second run"] if len(facts.runs) > 1 else ["what", "this run"]
    yield from table(heads, [[escaped(cell) for cell in row] for row in run_rows(facts)])
    stated = [*facts.trained.code, *facts.trained.data]
    yield from table(["code and data", "digest or state"], [[escaped(fact.name), code(fact.value)] for fact in stated])
    yield from bulleted(facts.trained.seeds, "Seeds:\n")
    yield from bulleted(facts.trained.variables, "Variables that the script read:\n")


def _results(facts: AuditFacts) -> Iterator[str]:
    yield "## What came out\n"
    rows = [
        [escaped(category.name), MARKS[category.verdict], escaped(category.summary)] for category in facts.categories
    ]
    if len(facts.runs) > 1:
        yield from table(["kind", "verdict", "in words"], rows)
    items = [item for item in facts.digests if item.verdict != "not-recorded"]
    items.sort(key=lambda item: item.verdict not in ("different", "missing"))
    yield from table(["artifact", "verdict", "value"], list(map(_item, items)))


def _item(item: Item) -> list[str]:
    values = [item.left] if item.left == item.right or not item.right else [item.left or "nothing", item.right]
    return [escaped(item.name), MARKS[item.verdict], " / ".join(map(code, values))]


def _randomness(facts: AuditFacts) -> Iterator[str]:
    yield "## Randomness: who asked, and what was given again\n"
    yield from table(["what", "how much"], [[escaped(name), escaped(value)] for name, value in entropy_rows(facts)])
    purposes = [
        [escaped(asked.library), escaped(asked.purpose), f"{asked.requests:,}", f"{asked.bytes:,}"]
        for asked in facts.entropy.purposes
    ]
    yield from table(["library", "for what (inferred)", "requests", "bytes"], purposes)
    yield from bulleted(facts.entropy.uncovered, "Not recorded:\n")


def _findings(facts: AuditFacts) -> Iterator[str]:
    yield "## Findings and patches\n"
    yield f"{escaped(facts.findings_note)}\n"
    rows = [[escaped(text) for text in (one.subject, one.verdict, one.why, one.where)] for one in facts.findings]
    yield from table(["what", "verdict", "why", "where"], rows)
    rows = [[escaped(one.name), escaped(one.state), escaped(one.why)] for one in facts.patches]
    yield from table(["patch", "state", "why"], rows) if rows else ["No patch was applied.\n"]


def _environment(facts: AuditFacts) -> Iterator[str]:
    yield "## Environment and software\n"
    rows = [[escaped(item.name), escaped(item.left), escaped(item.right)] for item in facts.environment]
    yield from table(["what", "first run", "second run"], rows)
    packages = [[escaped(item.name), escaped(item.version)] for item in facts.packages if item.imported]
    yield from table(["package that was imported", "version"], packages)


def bulleted(lines: Iterable[str], head: str = "") -> Iterator[str]:
    """Yield an item for each line, below a head; nothing where there is none."""
    items = [f"- {escaped(line, 2000)}" for line in lines]
    if items and head:
        yield head
    yield from [*items, ""] if items else []


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table, of as many rows as can be read; nothing where there is none."""
    if not rows:
        return
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    yield from (f"| {' | '.join(_BARE_BAR.sub(_BAR, cell) for cell in row)} |" for row in rows[:MAX_ROWS])
    if len(rows) > MAX_ROWS:
        yield f"\n{len(rows) - MAX_ROWS} more; the JSON report has them all."
    yield ""


def model_card(facts: AuditFacts) -> str:
    """Return a model's README, or a section of it, for a model hub, with the metadata that hubs read at its top."""
    return "\n".join([*_metadata(facts), *_card(facts)]) + "\n"


def _metadata(facts: AuditFacts) -> Iterator[str]:
    """Yield the block of metadata: YAML whose texts are quoted as in JSON, as huggingface_hub reads it."""
    source, imported = facts.runs[0].source, {package.name.lower() for package in facts.packages if package.imported}
    stated = {
        "verdict": facts.verdict.outcome,
        "executed_by": facts.executed_by,
        "runs": ", ".join(run.run_id for run in facts.runs),
        "random_profile": facts.entropy.profile,
        "repository": source.repository,
        "commit": source.commit,
        "source": source.state,
        "version": facts.reprokit,
    }
    library = next((name for package, name in HUB_LIBRARIES.items() if package in imported), "")
    yield "---"
    yield from [f"library_name: {_quoted(library)}"] if library else []
    yield 'tags:\n- "reprokit"\n- "reproducibility"'
    yield "reprokit:"
    yield from (f"  {name}: {_quoted(value)}" for name, value in stated.items() if value)
    yield "---\n"


def _quoted(text: str) -> str:
    return json.dumps(printable(text, 400), ensure_ascii=False)  # YAML reads no pairs of surrogates


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
    yield from table(["what", "value"], rows)
    versions = ", ".join(f"{item.name} {item.version}" for item in facts.packages if item.imported)
    yield f"Software: {escaped(versions, 4000)}.\n"
    yield from bulleted(facts.limits[:2])
    yield f"Recorded and compared by reprokit {escaped(facts.reprokit)}."
