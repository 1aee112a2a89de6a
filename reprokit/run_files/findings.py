"""Findings: what in a run keeps it from repeating, or goes wrong, as `profile` and `rules` write it to findings.json.

A run directory may come from somebody else: the file is read within bounds, decoded into typed structs, and its
texts are made printable by whoever shows them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec.structs import replace

from reprokit.model.run import FORMAT
from reprokit.run_files import rundir
from reprokit.run_files.rundir import RunDirectory

OPERATOR: Final = "operator"  # of a framework: a kernel that was executed
FUNCTION: Final = "function"  # of a library, by its qualified name
SETTING: Final = "setting"  # a switch of a framework, or an environment variable
SYSTEM_CALL: Final = "system-call"  # a request to the kernel
SOURCE: Final = "source"  # of entropy, a seed, or a device
COMPILED: Final = "compiled"  # code that a compiler made: what is in it is not seen
ORDER: Final = "order"  # results that arrive in the order in which they are ready
RULE: Final = "rule"  # of training: a tensor shows that it goes wrong
KINDS = (OPERATOR, FUNCTION, SETTING, SYSTEM_CALL, SOURCE, COMPILED, ORDER, RULE)

GUILTY: Final = "guilty"  # measured to vary
SUSPECT: Final = "suspect"  # known to vary, not measured here
CLEARED: Final = "cleared"  # measured, no variation seen
COVERED: Final = "covered"  # random, and given again by a replay
AS_SET: Final = "setting"  # a setting that decides how something computes
ALARM: Final = "alarm"  # raised by a rule
VERDICTS = (ALARM, GUILTY, SUSPECT, AS_SET, CLEARED, COVERED)  # the most urgent first

WORDS = {
    ALARM: "raised by rules",
    GUILTY: "guilty",
    SUSPECT: "suspected",
    AS_SET: "that depend on settings or machine",
    CLEARED: "cleared",
    COVERED: "random and covered",
}

MAX_FINDINGS = 2000  # of one run
MAX_PLACES = 16  # of one finding
MAX_BYTES = 16 << 20  # of findings.json

Count = Annotated[int, msgspec.Meta(ge=0)]
Kind = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(KINDS)})$")]
Verdict = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(VERDICTS)})$")]


class CodePlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the user's code."""

    file: str
    line: Count = 0
    function: str = ""


class Confirmed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What came out when a call was executed again on its own inputs."""

    repeats: Count = 0
    results: Count = 0  # different ones; 1: no variation was seen
    threads: dict[str, str] = {}  # by another number of threads: "same" or "different"
    capabilities: dict[str, str] = {}  # by capped processor capabilities, likewise
    problem: str = ""  # why it was not measured, or not wholly

    @property
    def races(self) -> bool:
        """Whether one number of threads gave several results, this one or another."""
        return self.results > 1 or "varies" in self.threads.values()


class Cure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What would make it repeat."""

    patch: str | None = None  # id of one of reprokit's patches
    does: str = ""  # what a person does
    cost: str = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that keeps the run from repeating or that a rule found, or that is not to blame."""

    id: str  # the same in every run of the same program: kind, subject, device, direction and place
    kind: Kind
    subject: str  # name of the operator, function, setting or source
    framework: str = ""  # as in the knowledge base
    version: str = ""
    device: str = ""
    direction: str = ""  # forward, backward or update
    where: list[CodePlace] = []  # the most frequent first
    calls: Count = 0
    processes: Count = 0
    fact: str | None = None  # id of what is known of it
    why: str = ""
    shows: list[str] = []  # run-to-run, thread-count, cpu-capability, uninitialized-memory, timing
    confirmed: Confirmed | None = None
    cures: list[Cure] = []  # in order of preference
    rank: float = 0.0  # the higher the more likely to be what makes runs differ
    verdict: Verdict = SUSPECT
    rule: str = ""  # which raised it: the subject is a tensor, why the evidence, calls the steps
    module: str = ""  # of the tensor
    step: Count = 0  # at which it was first raised

    @property
    def only_unwritten_memory(self) -> bool:
        """Whether it varies only for a program that reads memory before it has written there, as few do."""
        within = [how for how in self.shows if how not in ("thread-count", "cpu-capability")]
        return self.verdict == SUSPECT and within == ["uninitialized-memory"]

    @property
    def is_unwatched(self) -> bool:
        """Whether it names threads of native code, whose turns nothing watches."""
        return (self.kind, self.verdict) == (ORDER, AS_SET)

    @property
    def title(self) -> str:
        """Its subject; of a rule's alarm the rule too."""
        return f"{self.rule}: {self.subject}" if self.rule else self.subject

    @property
    def blamed(self) -> bool:
        """Whether it may be what makes runs differ."""
        return self.verdict in (GUILTY, SUSPECT) and not self.only_unwritten_memory

    @property
    def is_reported(self) -> bool:
        """Whether code hosts are given it."""
        return self.blamed or self.verdict == ALARM


class FindingsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """findings.json: the findings of one run, the most urgent first."""

    format: int = FORMAT
    run_id: str
    findings: list[Finding] = []
    notes: list[str] = []  # what was not looked at, and why
    rule_notes: list[str] = []  # rules that failed, or found nothing to judge


class RuleReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A line of the process that judges a run beside it: new findings, or at its end all of them."""

    raised: list[Finding] = []  # new ones that a rule raised at once
    words: str = ""  # these in a sentence
    findings: list[Finding] | None = None
    problems: list[str] = []  # that the user should know of, among the notes too
    notes: list[str] = []


def repeated(finding: Finding) -> Finding:
    """Return a finding that was raised once more."""
    return replace(finding, calls=finding.calls + 1)


def counts(content: FindingsFile | None) -> dict[str, int] | None:
    """Return how many findings there are of each verdict; None of a run that was not profiled."""
    if content is None:
        return None
    return {verdict: sum(finding.verdict == verdict for finding in content.findings) for verdict in VERDICTS}


def in_words(content: FindingsFile) -> str:
    """Return the same in one line."""
    numbers = [f"{number} {WORDS[verdict]}" for verdict, number in (counts(content) or {}).items() if number]
    return ", ".join(numbers) or "no findings"


def write(directory: Path, content: FindingsFile) -> None:
    """Put findings.json into the run directory."""
    rundir.write_json(directory / rundir.FINDINGS, content)


def read(run: RunDirectory) -> FindingsFile | None:
    """Return the findings of a run; None of one that was not profiled."""
    if not run.has(rundir.FINDINGS):
        return None
    return run.decode(rundir.FINDINGS, FindingsFile, MAX_BYTES)
