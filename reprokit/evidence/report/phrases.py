"""Provides words and rows that several presenters share."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from reprokit.evidence.report.facts import AuditFacts, RunReport
from reprokit.verify.verdict import BUT_FOR_DECLARED, OUTCOMES

if TYPE_CHECKING:
    from reprokit.evidence.report.several import SeveralFacts

EXECUTED = {
    "unknown": "This was made from run directories alone. Whoever made it did not execute what they describe, and"
    " cannot tell whether it was executed as they say.",
    "signer": "Both runs were executed by the process that made this.",
}
JUDGMENTS = {
    "identical": "identical",
    "bookkeeping": "the same but for bookkeeping",
    "different": "different",
    "missing": "on one side only",
    "tolerated": "within tolerance",
    "ignored": "ignored as declared",
    "information": "for information",
    "not-recorded": "not recorded",
    "not-compared": "not compared",
}
_GLYPHS = {
    "identical": "\N{CHECK MARK} ",
    "bookkeeping": "\N{CHECK MARK} ",
    "different": "\N{MULTIPLICATION X} ",
    "missing": "\N{MULTIPLICATION X} ",
    "tolerated": "\N{ALMOST EQUAL TO} ",
    "ignored": "\N{ALMOST EQUAL TO} ",
}
MARKS = {verdict: _GLYPHS.get(verdict, "") + word for verdict, word in JUDGMENTS.items()}
_RUN_ROWS: tuple[tuple[str, Callable[[RunReport], str]], ...] = (
    ("kind", lambda run: run.kind),
    ("command", lambda run: shlex.join(run.command)),
    ("how it ended", lambda run: run.state),
    ("run id", lambda run: run.run_id),
    ("run directory", lambda run: run.path),
    ("working directory", lambda run: run.working_directory),
    ("started", lambda run: run.started),
    ("ended", lambda run: run.ended),
    ("took", lambda run: "" if run.seconds is None else f"{run.seconds:,.2f} s"),
    ("machine", lambda run: run.host),
    ("recorded by", lambda run: f"reprokit {run.reprokit}"),
)


def outcome(facts: AuditFacts) -> str:
    """Return what came out in a few words."""
    if facts.verdict.outcome == "identical" and any(rule.times for rule in facts.ignored):
        return BUT_FOR_DECLARED
    return OUTCOMES[facts.verdict.outcome]


def ignored_lines(facts: AuditFacts | SeveralFacts) -> list[str]:
    """Return a line for each rule by which differences do not count, with how often it applied."""
    return [
        f"{rule.option} {shlex.quote(rule.rule)} ({rule.origin}): {counted_times(rule.times)}" for rule in facts.ignored
    ]


def counted_times(times: int) -> str:
    """Return a number of differences in words."""
    return f"{times:,} difference{'' if times == 1 else 's'}"


def run_rows(facts: AuditFacts) -> Iterator[tuple[str, ...]]:
    """Yield a row for each fact of the runs, side by side."""
    for title, value in _RUN_ROWS:
        yield (title, *(value(run) or "unknown" for run in facts.runs))


def counted(facts: AuditFacts) -> str:
    """Return the number of compared items in a sentence; empty if there were none."""
    counts = facts.verdict.counts
    if not counts:
        return ""
    by_verdict = ", ".join(f"{count:,} {JUDGMENTS[verdict]}" for verdict, count in counts.items())
    return f"{sum(counts.values()):,} things were compared, each by itself: {by_verdict}."


def entropy_rows(facts: AuditFacts) -> Iterator[tuple[str, str]]:
    """Yield the randomness of the runs in numbers."""
    entropy = facts.entropy
    yield "requests for random bytes", f"{entropy.requests:,}"
    yield "bytes given", f"{entropy.bytes:,}"
    yield "processes and threads that asked", f"{entropy.processes:,} and {entropy.threads:,}"
    if entropy.withheld:
        yield "requests of cryptographic libraries, whose bytes are never kept", f"{entropy.withheld:,}"
    yield "random profile", entropy.profile or "not sealed, as the run did not come to its end"
    if entropy.keyed:
        yield "how", "keyed: every request is answered from a 256-bit key"
    if entropy.fidelity_sentence:
        yield "answered in the replay", entropy.fidelity_sentence
    if entropy.proof:
        yield "proof beside the recording, by strace", entropy.proof
