"""Words and rows that several presenters share."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.report.facts import AuditFacts

OUTCOMES = {
    "identical": "Identical, bit for bit",
    "different": "Different",
    "tolerated": "Not identical, within the tolerance asked for",
    "not-compared": "Not compared",
}
MARKS = {
    "identical": "\N{CHECK MARK} identical",
    "different": "\N{MULTIPLICATION X} different",
    "missing": "\N{MULTIPLICATION X} on one side only",
    "tolerated": "\N{ALMOST EQUAL TO} within tolerance",
    "information": "for information",
    "not-recorded": "not recorded",
    "not-compared": "not compared",
}
_RUN_ROWS = (
    ("kind", "kind"),
    ("state", "how it ended"),
    ("run_id", "run id"),
    ("path", "run directory"),
    ("working_directory", "working directory"),
    ("started", "started"),
    ("ended", "ended"),
    ("host", "machine"),
)


def run_rows(facts: AuditFacts) -> Iterator[tuple[str, ...]]:
    """The runs beside each other: what, and the value of each."""
    for name, title in _RUN_ROWS:
        yield (title, *(getattr(run, name) or "unknown" for run in facts.runs))


def entropy_rows(facts: AuditFacts) -> Iterator[tuple[str, str]]:
    """The randomness of the runs in numbers."""
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
