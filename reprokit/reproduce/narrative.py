"""Presents a reproduction: round by round in journal.md, and its end on the screen."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from reprokit.core.pages.markdown import code, escaped
from reprokit.core.printable import printable
from reprokit.reproduce import journal as journals
from reprokit.reproduce.diagnosis import place
from reprokit.reproduce.journal import Attempt, Change, Cost, Outcome, Round, RoundJournal
from reprokit.run.rundirectory import shown
from reprokit.run_files.findings import CLEARED, COVERED, GUILTY, ORDER, SUSPECT, Finding
from reprokit.verify.verdict import REPRODUCED, comparisons_needed, settings_were_enough

VERDICTS = {
    journals.RUNNING: "still running",
    journals.IDENTICAL: REPRODUCED,
    journals.DIFFERENT: "**not reproduced**",
    journals.INTERRUPTED: "interrupted",
    journals.FAILED: "stopped by an error",
}
MOST = 8  # limit of lines of a kind on the screen
KINDS = {"record": "recorded", "replay": "replayed", "profile": "profiled"}


def markdown(journal: RoundJournal) -> str:
    """Return the whole journal."""
    return "\n".join(_lines(journal)) + "\n"


def _lines(journal: RoundJournal) -> Iterator[str]:
    yield f"# How {code(shlex.join(journal.command))} was made to repeat"
    yield ""
    yield f"- Directory: {code(journal.directory)}"
    yield f"- Started: {journal.started}" + (f", ended: {journal.ended}" if journal.ended else "")
    bounds = f"{comparisons_needed(journal.pairs)}; rounds that search: at most {journal.max_rounds}"
    yield f"- reprokit {journal.reprokit}; {bounds}"
    yield f"- Verdict: {VERDICTS[journal.verdict]}" + (f": {escaped(journal.why)}" if journal.why else "")
    yield ""
    printed_notes: set[str] = set()  # notes that hold for every round are printed once
    for round_ in journal.rounds:
        yield from _round(round_, printed_notes)
    if journal.verdict == journals.IDENTICAL:
        yield from _recipe(journal)
    elif journal.verdict == journals.DIFFERENT:
        yield from _open_causes(journal)
    yield from _excluded(journal.excluded)
    yield from _costs(journal)
    if journal.pair:
        yield from ("## The final pair", "")
        yield from (f"- {code(directory)}" for directory in journal.pair)
        yield from ("", f"    reprokit verify {printable(shlex.join(journal.pair))}", "")


def _round(round_: Round, printed_notes: set[str]) -> Iterator[str]:
    yield f"## Round {round_.number}: {escaped(round_.title)}"
    yield ""
    yield from (f"- {line}" for line in _events(round_))
    notes = dict.fromkeys(_notes(round_))
    yield from (f"- Note: {escaped(note)}" for note in notes if note not in printed_notes)
    printed_notes.update(notes)
    yield ""
    if round_.conclusion:
        yield f"**{escaped(round_.conclusion[:1].upper() + round_.conclusion[1:])}.**"
        yield ""


def _notes(round_: Round) -> Iterator[str]:
    for outcome in round_.outcomes:
        yield from (*outcome.leftovers, *outcome.notes)
    for attempt in round_.attempts:
        yield from (f"nothing recorded this source: {source.text}" for source in attempt.uncovered)


def _events(round_: Round) -> Iterator[str]:
    for change in round_.changes:
        yield (
            f"Applied: {change_in_words(change)}" if round_.phase != "smallest" else f"Left out: {code(change.option)}"
        )
    for attempt in round_.attempts:
        yield from _attempt(attempt)
    for words, alike in groupby(round_.outcomes, lambda outcome: outcome.words):
        outcomes = list(alike)
        yield f"Verify: {escaped(words)}" + (f" ({len(outcomes)} times)" if len(outcomes) > 1 else "")
        yield from _outcome(outcomes[0])
    if round_.phase in (journals.LOCATE, journals.PROFILE):
        yield from _findings(round_.findings)
    yield from (escaped(note) for note in round_.notes)


def change_in_words(change: Change) -> str:
    """Describe a change, why it was made, and what it costs."""
    text = f"{code(change.option)}, since {escaped(change.why.rstrip('.'))}"
    text += f"; cost: {escaped(change.cost)}" if change.cost else ""
    return text + (f"; beware: {escaped(change.warning)}" if change.warning else "")


def _attempt(attempt: Attempt) -> Iterator[str]:
    seconds = f" in {attempt.seconds:.2f} s" if attempt.seconds is not None else ""
    gone = "" if attempt.kept else " (removed since)"
    entropy = f"; requests for entropy: {escaped(attempt.fidelity)}" if attempt.fidelity else ""
    yield f"Run: {KINDS[attempt.kind]}{seconds}, {code(attempt.directory)}{gone}{entropy}"
    if attempt.failed:
        yield f"It ended {escaped(attempt.ended)}"
    for patch in attempt.patches:
        if patch.state != "applied":
            yield f"Patch {code(patch.text)} was {patch.state}: {escaped(patch.why)}"


def _outcome(outcome: Outcome) -> Iterator[str]:
    if outcome.trail and outcome.trail not in outcome.words:
        yield f"The steps part: {escaped(outcome.trail)}"
    if outcome.categories:
        yield f"Different, causes before effects: {escaped(', '.join(outcome.categories))}"
    yield from (f"Likely cause: {escaped(cause)}" for cause in outcome.causes)
    yield from (f"Ignored as declared: {escaped(use)}" for use in outcome.ignored)


def _findings(findings: list[Finding]) -> Iterator[str]:
    shown = [finding for finding in findings if finding.blamed]
    yield from (f"Found: {finding_in_words(finding)}" for finding in shown[: journals.LISTED])
    if len(shown) > journals.LISTED:
        yield f"And {len(shown) - journals.LISTED} more, see findings.json"
    cleared = sum(1 for finding in findings if finding.verdict == CLEARED)
    covered = sum(1 for finding in findings if finding.verdict == COVERED)
    if cleared or covered:
        yield f"Cleared, as no variation was seen: {cleared}; random, and given again by a replay: {covered}"


def finding_in_words(finding: Finding) -> str:
    """Describe a finding: what, where, how often, and why it is blamed."""
    text = code(finding.subject)
    about = ", ".join(part for part in (finding.framework, finding.device, finding.direction) if part)
    text += f" ({escaped(about)})" if about else ""
    text += escaped(place(finding)) + (f", {finding.calls} calls" if finding.calls else "")
    return f"{text}: {_blame(finding)}" + (f". {escaped(finding.why)}" if finding.why else "")


def _blame(finding: Finding) -> str:
    confirmed = finding.confirmed
    if finding.verdict == GUILTY and confirmed is not None and confirmed.results > 1:
        return f"measured, gave {confirmed.results} results in {confirmed.repeats} repeats here"
    if finding.kind == ORDER:
        return "arrives in the order of completion"
    return "measured to vary" if finding.verdict == GUILTY else "known" if finding.verdict == SUSPECT else "a setting"


def _recipe(journal: RoundJournal) -> Iterator[str]:
    yield from ("## The recipe", "")
    words = " ".join(journal.settings.words)
    if not words:
        yield "Nothing has to be done to the training: `reprokit record` and `reprokit replay` are enough."
    for change in journal.changes:
        yield f"- {change_in_words(change)}"
    yield from ("", f"    reprokit record --recipe recipe.toml -- {printable(shlex.join(journal.command))}")
    yield from ("", settings_were_enough(journal.identical), "")


def _open_causes(journal: RoundJournal) -> Iterator[str]:
    yield from ("## What remains", "")
    yield from (f"- {escaped(text)}" for text in journal.remaining or ["nothing that the profile could name"])
    yield ""
    if journal.changes:
        yield from ("Applied, and not enough:", "", *(f"- {change_in_words(change)}" for change in journal.changes), "")
    if journal.alternatives:
        yield from ("## What you can do", "", *(f"- {escaped(text)}" for text in journal.alternatives), "")


def _excluded(changes: Iterable[Change]) -> Iterator[str]:
    lines = [f"- {code(change.option)}: {escaped(change.excluded)}" for change in changes]
    if lines:
        yield from ("## Tried, and not kept", "", *lines, "")


def _costs(journal: RoundJournal) -> Iterator[str]:
    if not journal.costs:
        return
    yield from ("## What it costs", "", "One run each; processor time is that of all its processes.", "")
    yield from ("| run | seconds | ratio | seconds of processors | ratio |", "|---|---|---|---|---|")
    for cost in journal.costs:
        seconds, processor = _figure(cost.seconds, cost.ratio), _figure(cost.processor, cost.processor_ratio)
        yield f"| {escaped(cost.what)} | {seconds} | {processor} |"
    yield ""


def _figure(seconds: float | None, ratio: float | None) -> str:
    if seconds is None:
        return "| "
    return f"{seconds:.2f} | {ratio:.2f}" if ratio is not None else f"{seconds:.2f} | 1"


def print_journal(journal: RoundJournal, place: Path) -> None:
    """Print the verdict, the changes made or the open causes, and the paths of the files."""
    for line in _screen(journal, place):
        print(printable(line, 2000))


def _screen(journal: RoundJournal, place: Path) -> Iterator[str]:
    rounds = len(journal.rounds)
    verdict = "identical" if journal.verdict == journals.IDENTICAL else "not reproduced"
    yield f"{verdict}, after {rounds} round{'' if rounds == 1 else 's'}: {journal.why}"
    if journal.verdict == journals.IDENTICAL:
        yield from (f"needed: {change.option}: {change.why}" for change in journal.changes[:MOST])
    else:
        yield from (f"remains: {text}" for text in journal.remaining[:MOST])
        yield from (f"applied, and not enough: {change.option}" for change in journal.changes[:MOST])
    outcomes = [outcome for round_ in journal.rounds for outcome in round_.outcomes]
    yield from (f"ignored: {use}" for use in (outcomes[-1].ignored[:MOST] if outcomes else ()))
    yield from (f"not kept: {change.option}: {change.excluded}" for change in journal.excluded[:MOST])
    yield from (f"alternative: {text}" for text in journal.alternatives[:MOST])
    yield from map(_cost_in_words, journal.costs)
    yield f"final pair: {' '.join(str(Path(shown(place)) / directory) for directory in journal.pair)}"
    yield f"journal: {Path(shown(place)) / 'journal.md'}"
    if journal.verdict == journals.IDENTICAL:
        yield f"recipe: {Path(shown(place)) / 'recipe.toml'}"


def _cost_in_words(cost: Cost) -> str:
    text = f"time: {cost.what}: {cost.seconds:.2f} s, {cost.processor or 0.0:.2f} s of processors"
    if cost.ratio is None or cost.processor_ratio is None:
        return text
    return f"{text}: {cost.ratio:.2f} and {cost.processor_ratio:.2f} times"
