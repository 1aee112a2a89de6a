"""Prints the result of a study of a resumed training."""

from __future__ import annotations

from collections.abc import Iterator

import click

from reprokit.core.printable import listed, printable
from reprokit.model.resumption import PartSaid, ResumeFinding
from reprokit.questions.state_answers import OTHERS, VARIABLES
from reprokit.verify.verdict import NOT_PROVED, resumed_line

KINDS = {"outputs": "file", "console": "what was printed"}  # of facts; others go by their names
NAMED, NAMED_VARIABLES = 3, 12  # names of a part, and of the script's variables if none is proved to be missing
MOST_OTHERS = 20
WORDS = {
    "parameters": "the parameters of the model",
    "buffers": "the buffers of the model",
    "other-models": "a further model, such as an average of weights",
    "optimizer": "the optimizer's state",
    "settings": "the optimizer's settings, such as learning rates",
    "schedule": "the learning-rate schedule",
    "scaler": "the loss scaler",
    "gradients": "the gradients accumulated so far",
    "module-settings": "numbers and flags that its modules keep",
    VARIABLES: "variables of the script",
    "loader-generator": "the data loader's generator",
    "metrics": "the metrics of the epoch under way",
    "data": "the position in the data, or their order",
}


def words_of(part: str) -> str:
    """Return what a part of the state is called in sentences."""
    return WORDS.get(part, f"the {part}")


def print_finding(finding: ResumeFinding) -> None:
    """Print the verdict and its evidence."""
    for line in lines(finding):
        click.echo(printable(line, 4000))


def lines(finding: ResumeFinding) -> Iterator[str]:
    """Yield the verdict, then how the runs differ."""
    yield verdict(finding)
    how = (
        "as its first parameters show"
        if finding.is_found
        else "the last step that is like its first one: no parameters show it"
    )
    yield (
        f"  interrupted by {finding.signal} at step {finding.interrupted_at:,} of {finding.whole_steps:,}, resumed at"
        f" step {finding.resumed_at:,}, {how}; {finding.compared:,} steps compared"
    )
    yield f"  files that it was resumed on: {listed(finding.files, NAMED)}"
    if finding.first is not None:
        yield f"  the first step that differs: {finding.first.step:,}, by its {finding.first.quantity}"
    yield from (_part(part, is_proved=finding.proved) for part in finding.parts)
    if finding.first is None:
        for other in finding.others[:MOST_OTHERS]:
            yield f"  {'differs after it' if other.compared else 'not compared'}: {other.name}: {other.detail}"
        if any(other.compared for other in finding.others):
            yield "  (left: the whole training; right: the resumed one)"
    yield from (f"  note: {note}" for note in finding.notes)
    if finding.runs:
        yield f"  runs: {finding.runs['whole'].rpartition('/')[0]}"


def verdict(finding: ResumeFinding) -> str:
    """Return the first line: the verdict."""
    return resumed_line(finding, ", ".join(_missing(finding)), _others(finding))


def _missing(finding: ResumeFinding) -> Iterator[str]:
    """Yield what the checkpoint lacks; variables of the script by their names."""
    names = {part.part: part.objects for part in finding.parts}
    for part in finding.missing:
        is_named = part in (VARIABLES, OTHERS) and finding.proved and part in names
        yield f"{words_of(part)} ({listed(names[part], NAMED)})" if is_named else words_of(part)


def _others(finding: ResumeFinding) -> str:
    """Return what else differs."""
    count = len(finding.others)
    more = f" and {count - NAMED} more" if count > NAMED else ""
    words = ", ".join(f"{other.name} ({KINDS.get(other.fact, other.fact)})" for other in finding.others[:NAMED])
    return f"{words}{more}"


def _part(part: PartSaid, *, is_proved: bool) -> str:
    is_open = part.part == VARIABLES and not is_proved
    names = "" if part.names == [part.part] else f" ({listed(part.names, NAMED_VARIABLES if is_open else NAMED)})"
    idle = "; nothing draws from it" if part.idle else NOT_PROVED if is_open else ""
    return f"  differs at the start of step {part.step:,}: {words_of(part.part)}{names}{idle}"
