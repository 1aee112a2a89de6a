"""``reprokit knowledge``: searches what is known of operations and settings that do not repeat."""

from __future__ import annotations

import json
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import get_args

import click
import msgspec

from reprokit import knowledge
from reprokit.cli import options
from reprokit.core.errors import KnowledgeError, UsageError
from reprokit.core.screen import Cells, print_rows
from reprokit.knowledge import Fact

DOCUMENT_FORMAT = 1
MOST_ROWS = 30  # on one screen
WIDTH = 100
VERDICTS = get_args(knowledge.Verdict)


@click.command(epilog="Example: reprokit knowledge scatter_add --device cuda")
@click.argument("words", nargs=-1)
@click.option(
    "--framework",
    metavar="NAME",
    shell_complete=options.COMPLETE_FRAMEWORKS,
    help="Only of this framework or library: pytorch, tensorflow, blas, ...",
)
@click.option("--device", type=click.Choice(get_args(knowledge.Device)), help="Only what shows on this device.")
@options.flag("--all", "List more than one screen of facts.", "everything")
@options.json_option("Print the facts found as one JSON document.")
def command(words: tuple[str, ...], framework: str | None, device: str | None, everything: bool, as_json: bool) -> None:
    """Search what is known of operations and settings that do not repeat.

    A fact is found where all WORDS occur in it: names of operators and functions, settings, environment
    variables, patches, verdicts. The only fact found, or the one whose id is given, is shown in full.
    Without words: how many facts there are of what.

    A verdict says what a fact is about: what varies; what varies and raises where determinism is asked for;
    what repeats; what is random, and covered by record and replay; a setting on which results depend.
    """
    facts = knowledge.load()
    chosen = tuple(fact for fact in facts if fact.applies(_known(facts, framework), device=device or ""))
    facts_shown = _found(chosen, words)
    if as_json:
        document = {"format": DOCUMENT_FORMAT, "facts": list(map(knowledge.document, facts_shown))}
        click.echo(json.dumps(document, indent=2))
    elif len(facts_shown) == 1:
        lines = _lines(facts_shown[0])
        rows = map(Cells, lines) if sys.stdout.isatty() else _wrapped(lines)  # a terminal's width is not ours to choose
        print_rows(f"{facts_shown[0].id}: {facts_shown[0].title}", list(rows))
    elif words or framework or device or everything:
        _list(facts_shown, len(facts_shown) if everything else MOST_ROWS)
    else:
        _summarize(facts)


def _known(facts: Sequence[Fact], framework: str | None) -> str:
    """Return the framework asked for, if there are facts of it."""
    frameworks = sorted({fact.framework for fact in facts})
    if framework and framework not in frameworks:
        raise UsageError(f"there are no facts of {framework!r}, but of {', '.join(frameworks)}")
    return framework or ""


def _found(facts: Sequence[Fact], words: Sequence[str]) -> tuple[Fact, ...]:
    exact = tuple(fact for fact in facts if len(words) == 1 and fact.id == words[0])
    matching = exact or knowledge.search(facts, words)
    if not matching:
        near = knowledge.near(facts, " ".join(words))
        advice = (
            f"did you mean {' or '.join(near)}?"
            if near
            else "'reprokit knowledge' lists the frameworks that have facts"
        )
        raise KnowledgeError(f"no fact has {' and '.join(map(repr, words)) or 'that'}; {advice}")
    return matching


def _summarize(facts: Sequence[Fact]) -> None:
    counts = {name: Counter[str]() for name in dict.fromkeys(fact.framework for fact in facts)}
    for fact in facts:
        counts[fact.framework][fact.verdict] += 1
    heading = Cells(("", "facts", *VERDICTS))
    rows = [
        Cells((name, str(verdicts.total()), *(str(verdicts[verdict]) for verdict in VERDICTS)))
        for name, verdicts in counts.items()
    ]
    measured = sum(fact.measured for fact in facts)
    footer = [f"{measured} of them measured, the others read in a source or reported"]
    print_rows(f"{len(facts)} facts", [heading, *rows], [*footer, "reprokit knowledge WORDS searches them"])


def _list(facts: Sequence[Fact], most: int) -> None:
    rows = [Cells((fact.id, fact.verdict, ",".join(fact.devices), fact.title)) for fact in facts[:most]]
    footer = ["reprokit knowledge ID shows a fact in full"]
    if len(facts) > most:
        footer.insert(0, f"and {len(facts) - most} more: give more words, or --all")
    print_rows(f"{len(facts)} facts", rows, footer)


def _wrapped(labeled: Iterable[tuple[str, str]]) -> Iterator[Cells]:
    for label, text in labeled:
        for number, line in enumerate(textwrap.wrap(text, WIDTH) or [""]):
            yield Cells(("" if number else label, line))


def _lines(fact: Fact) -> Iterator[tuple[str, str]]:
    """Yield what there is in a fact, by its label."""
    yield "verdict", fact.verdict + (f", shows {' and '.join(fact.shows)}" if fact.shows else "")
    yield "versions", fact.versions or "all that are known"
    yield "devices", ", ".join(fact.devices)
    if fact.direction:
        yield "direction", ", ".join(fact.direction)
    if fact.threads:
        yield "threads", f"{fact.threads} or more"
    if fact.why:
        yield "why", fact.why
    for label, named in msgspec.structs.asdict(fact.match).items():
        if named:
            pairs = [f"{name} = {value}" for name, value in named.items()] if isinstance(named, Mapping) else named
            yield label, ", ".join(pairs)
    for way in fact.mitigation:
        patch = f"--patch {way.patch}" if way.patch else ""
        yield "mitigation", "; ".join(filter(None, [patch, way.does, way.cost and f"cost: {way.cost}"]))
    for evidence in fact.evidence:
        yield f"{evidence.how}", evidence.source + (f": {evidence.note}" if evidence.note else "")
