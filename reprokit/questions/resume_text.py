"""Prints the result of a study of a resumed training."""

from __future__ import annotations

from collections.abc import Iterator

import click

from reprokit.model.resumption import PartSaid, ResumeFinding
from reprokit.printable import listed, printable
from reprokit.questions.state_answers import VARIABLES

NAMED, NAMED_VARIABLES = 3, 12  # names of a part, and of the script's variables if none is proved to be missing
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
    how = "as its first parameters show" if finding.is_found else "as far as can be told: no step shows it"
    yield (
        f"  interrupted by {finding.signal} at step {finding.interrupted_at:,} of {finding.whole_steps:,}, resumed at"
        f" step {finding.resumed_at:,}, {how}; {finding.compared:,} steps compared"
    )
    yield f"  files that it was resumed on: {listed(finding.files, NAMED)}"
    if finding.first is not None:
        yield f"  the first step that differs: {finding.first.step:,}, by its {finding.first.quantity}"
    yield from (_part(part, is_proved=finding.proved) for part in finding.parts)
    yield from (f"  note: {note}" for note in finding.notes)
    if finding.runs:
        yield f"  runs: {finding.runs['whole'].rpartition('/')[0]}"


def verdict(finding: ResumeFinding) -> str:
    """Return the first line: the verdict."""
    if finding.is_exact and finding.other_files:
        return (
            f"exact in its steps, but not in all files that it wrote: {listed(finding.other_files, NAMED)}; what the"
            " script itself keeps, such as averages and logs, is in no step"
        )
    if finding.is_exact:
        return "exact: the resumed training is the whole one, bit for bit"
    if not finding.proved:
        tried = "no part of the state that was seen makes it the whole one, so that " if finding.trials else ""
        return (
            f"not exact: the resumed training is another one; {tried}it lacks something that was not seen, as the"
            " position of a loop"
        )
    missing = ", ".join(map(words_of, finding.missing))
    return (
        f"not exact: the checkpoint lacks {missing}; put in from the whole training, that makes the resumed one"
        f" identical in all of the {finding.window:,} steps compared"
    )


def _part(part: PartSaid, *, is_proved: bool) -> str:
    is_open = part.part == VARIABLES and not is_proved
    names = "" if part.names == [part.part] else f" ({listed(part.names, NAMED_VARIABLES if is_open else NAMED)})"
    idle = "; nothing draws from it" if part.idle else "; not proved to matter" if is_open else ""
    return f"  differs at the start of step {part.step:,}: {words_of(part.part)}{names}{idle}"
