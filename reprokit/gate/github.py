"""Presents a verdict on GitHub: a job summary in Markdown and annotations, within GitHub's limits.

https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands: a summary above 1 MiB is
refused, and ten annotations of a kind are shown per step.
"""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.core.pages.markdown import escaped
from reprokit.core.printable import bounded, printable
from reprokit.gate.results import FAILED, NOT_CHECKED, PASSED, SUITES, TROUBLE, Case, GateVerdict

MAX_SUMMARY = 900 << 10  # bytes
MAX_ANNOTATIONS = 10
SHOWN = 50  # cases of a training that did not pass
MARKS = {
    PASSED: "\N{WHITE HEAVY CHECK MARK}",
    FAILED: "\N{CROSS MARK}",
    TROUBLE: "\N{WARNING SIGN}",
    NOT_CHECKED: "\N{WARNING SIGN}",
    None: "",
}
WORDS = {
    PASSED: "identical",
    FAILED: "different",
    TROUBLE: "trouble",
    NOT_CHECKED: "not checked",
    None: "not asked for",
}


def summary(verdict: GateVerdict) -> str:
    """Return the job summary."""
    lines = list(_summary(verdict))
    while len("\n".join(lines).encode()) > MAX_SUMMARY:
        lines = [*lines[: len(lines) // 2], "", "The rest was left out, as it is too long for a summary."]
    return "\n".join(lines) + "\n"


def _summary(verdict: GateVerdict) -> Iterator[str]:
    yield f"## {MARKS[verdict.outcome]} reprokit gate: {verdict.outcome}"
    yield ""
    yield "| training | run against replay | varied | golden | required | cases | seconds |"
    yield "|---|---|---|---|---|---|---|"
    for training in verdict.trainings:
        outcomes = [training.outcome(suite) for suite in SUITES]
        cells = [f"{MARKS[outcome]} {WORDS[outcome]}".strip() for outcome in outcomes]
        yield f"| {escaped(training.name)} | {' | '.join(cells)} | {len(training.cases)} | {training.seconds:.0f} |"
    for training in verdict.trainings:
        unpassed = training.unpassed
        if not (unpassed or training.notes or training.ignores):
            continue
        yield ""
        yield f"### {escaped(training.name)}"
        yield ""
        cases = bounded(unpassed, SHOWN, line=_case)
        notes = (f"note: {escaped(note)}" for note in training.notes)
        ignored = (f"ignored: {escaped(str(use))}" for use in training.ignores)
        yield from (f"- {line}" for line in (*cases, *notes, *ignored))


def _case(case: Case) -> str:
    return f"{MARKS[case.outcome]} " + ": ".join(map(escaped, (case.suite, case.words)))


def workflow_commands(verdict: GateVerdict) -> Iterator[str]:
    """Yield workflow commands; the last one counts those beyond the limit."""
    unpassed = list(verdict.unpassed())
    room = MAX_ANNOTATIONS if len(unpassed) <= MAX_ANNOTATIONS else MAX_ANNOTATIONS - 1
    for training, case in unpassed[:room]:
        yield _annotation(f"{training.name}: {case.suite}", case.words)
    if len(unpassed) > room:
        yield _annotation("reprokit gate", f"and {len(unpassed) - room} more; the job summary has them")


def _annotation(title: str, message: str) -> str:
    title = _data(printable(title)).replace(":", "%3A").replace(",", "%2C")
    return f"::error title={title}::{_data(printable(message, 1000))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
