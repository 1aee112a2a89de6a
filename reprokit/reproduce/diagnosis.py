"""Turns findings into settings to try, the most certain ones first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from enum import IntEnum

import msgspec

from reprokit import patches
from reprokit.core.errors import ReprokitError
from reprokit.reproduce.journal import Attempt, Change, Outcome
from reprokit.run_files.findings import AS_SET, GUILTY, OPERATOR, ORDER, SOURCE, SUSPECT, SYSTEM_CALL, Cure, Finding
from reprokit.run_files.recipe import RecipeSettings

HIDE = "--hide-rdrand"
SWITCHES = ("--clock", HIDE)  # options of record that may be tried without asking
VARYING = frozenset({"run-to-run", "timing", "uninitialized-memory"})
SINGLE = "threads=1"
PATCH = "--patch "
CLOCK_FACT = "python.clock"  # id of what is known of the functions that read the clock
MAX_LINES = 3  # that read the clock and are named
CONFIDENCE = 0.05  # accepted probability of missing a variation


class Certainty(IntEnum):
    """How well it is known that something causes the difference; lower is better."""

    GUILTY = 0  # measured to vary
    ORDER = 1  # results arrive as they are ready
    SOURCE = 2  # an unrecorded source was read; whether it matters is unknown
    SUSPECT = 3  # known to vary, not measured here
    INSTRUCTIONS = 4  # a library holds instructions that give entropy; whether they are executed is unknown
    CLOCK = 5  # no evidence, but low cost
    GENERAL = 6  # a framework's general switch, or a cure for reads of unwritten memory
    THREADS = 7  # the last resort, with the highest cost


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that can be tried."""

    option: str  # "--clock", or "--patch ID[=VALUE]"
    proof: Certainty
    why: str
    findings: tuple[str, ...] = ()
    cost: str = ""
    warning: str = ""

    @property
    def change(self) -> Change:
        """Return the candidate as the journal's change."""
        return Change(
            option=self.option, why=self.why, findings=list(self.findings), cost=self.cost, warning=self.warning
        )


def applied(settings: RecipeSettings, option: str) -> RecipeSettings:
    """Return the settings with this option added."""
    if option.startswith(PATCH):
        return msgspec.structs.replace(settings, patches=(*settings.patches, option.removeprefix(PATCH)))
    return msgspec.structs.replace(settings, **{_field(option): True})


def without(settings: RecipeSettings, option: str) -> RecipeSettings:
    """Return the settings without this option."""
    if option.startswith(PATCH):
        rest = tuple(patch for patch in settings.patches if patch != option.removeprefix(PATCH))
        return msgspec.structs.replace(settings, patches=rest)
    return msgspec.structs.replace(settings, **{_field(option): False})


def _field(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def next_candidates(
    candidates: Iterable[Candidate], settings: RecipeSettings, excluded: frozenset[str] | set[str]
) -> list[Candidate]:
    """Return all untried candidates of the best certainty that are compatible with each other and the settings."""
    open_ = [
        candidate
        for candidate in candidates
        if candidate.option not in excluded and candidate.option not in settings.words
    ]
    if not open_:
        return []
    proof = min(candidate.proof for candidate in open_)
    chosen: list[Candidate] = []
    for candidate in open_:
        if candidate.proof is proof and candidate.option not in {other.option for other in chosen}:
            extended = applied(settings, candidate.option)
            if compatible(extended):
                chosen.append(candidate)
                settings = extended
    return chosen or next_candidates(
        [candidate for candidate in open_ if candidate.proof is not proof], settings, excluded
    )


def compatible(settings: RecipeSettings) -> bool:
    """Return whether these patches exist and can be combined."""
    try:
        patches.parse(settings.patches)
    except ReprokitError:
        return False
    return True


def of_findings(findings: Sequence[Finding], under: RecipeSettings) -> Iterator[Candidate]:
    """Yield the cures of blamed findings, without those that were applied when the finding was measured."""
    for finding in findings:
        proof = _proof(finding)
        if proof is None:
            continue
        for cure in finding.cures:
            option = _option(finding, cure)
            candidate = _candidate(option, proof, _why(finding), (finding.id,), cure.cost) if option else None
            if candidate is not None and candidate.option not in under.words:
                yield candidate


def first_cures(
    candidates: Iterable[Candidate], settings: RecipeSettings, excluded: frozenset[str] | set[str]
) -> Iterator[Candidate]:
    """Yield the first usable cure of each finding, and all candidates without a finding."""
    seen: set[tuple[str, ...]] = set()
    for candidate in candidates:
        if candidate.option in excluded or (candidate.findings and candidate.findings in seen):
            continue
        if candidate.option in settings.words or compatible(applied(settings, candidate.option)):
            seen.add(candidate.findings)
            yield candidate


def _proof(finding: Finding) -> Certainty | None:
    if finding.kind in (SOURCE, SYSTEM_CALL):
        return Certainty.SOURCE if finding.blamed else None
    if finding.verdict == GUILTY:
        return Certainty.ORDER if finding.kind == ORDER else Certainty.GUILTY
    if finding.only_unwritten_memory:
        return Certainty.GENERAL
    if finding.verdict == SUSPECT:
        return Certainty.ORDER if finding.kind == ORDER else Certainty.SUSPECT
    if finding.verdict == AS_SET and VARYING.intersection(finding.shows):
        return Certainty.SUSPECT
    return None


def _option(finding: Finding, cure: Cure) -> str:
    """Return the option of record that applies this cure; "" if a person must do it."""
    if cure.patch is None:
        return next((switch for switch in SWITCHES if switch in cure.does), "")
    text = cure.patch
    if "=" not in text:
        if text == "torch-operator" and finding.kind == OPERATOR:
            text = f"{text}={finding.subject}"
        elif text == "threads":
            text = SINGLE
    return PATCH + text


def _why(finding: Finding) -> str:
    subject = f"{finding.subject}{place(finding)}"
    confirmed = finding.confirmed
    if finding.verdict == GUILTY and confirmed is not None and confirmed.results > 1:
        return f"{subject} gave {confirmed.results} results in {confirmed.repeats} repeats here"
    return f"{subject}: {finding.why}" if finding.why else subject


def place(finding: Finding) -> str:
    """Return the place in the user's code, worded to follow a subject."""
    if not finding.where:
        return ""
    first = finding.where[0]
    return f" at {first.file}:{first.line}" + (f" in {first.function}" if first.function else "")


def of_runs(attempts: Iterable[Attempt]) -> Iterator[Candidate]:
    """Yield cures for unrecorded entropy, as the runs themselves report it."""
    for attempt in attempts:
        for source in attempt.uncovered:
            option = {"instructions": HIDE, "clock": "--clock"}.get(source.source)
            if option is not None:
                yield _candidate(option, Certainty.SOURCE, f"nothing recorded this source: {source.text}")


def of_outcomes(outcomes: Iterable[Outcome]) -> Iterator[Candidate]:
    """Yield a setting for each difference in how batches were made, with the first run's value."""
    for outcome in outcomes:
        if outcome.workers is not None and not outcome.identical:
            why = f"a DataLoader had {outcome.workers} workers in one run and another number in the other"
            yield _candidate(f"{PATCH}torch-loader={outcome.workers}", Certainty.ORDER, why)
            break


def clock(findings: Iterable[Finding]) -> Iterator[Candidate]:
    """Yield the setting that is tried without evidence, with the lines that were seen to read an unrecorded clock."""
    lines = [f"{first.file}:{first.line}" for item in findings if item.fact == CLOCK_FACT for first in item.where]
    why = "native code may seed itself from a process id, or from the clock in threads of its own"
    if lines:
        why = f"the script at {', '.join(lines[:MAX_LINES])} reads the clock"
    yield _candidate("--clock", Certainty.CLOCK, why)


def general(findings: Sequence[Finding], automatic: Iterable[str]) -> Iterator[Candidate]:
    """Yield general candidates if no finding helps: the clock, the frameworks' own switches, one thread."""
    yield from clock(findings)
    for text in automatic:
        yield _candidate(PATCH + text, Certainty.GENERAL, "the framework's own switch, although nothing points at it")
    why = "what threads add up depends on who is first"
    several = [finding for finding in findings if finding.verdict == GUILTY and _repeats_on_one_thread(finding)]
    names = ", ".join(sorted({finding.subject for finding in several})[:3])
    yield _candidate(PATCH + SINGLE, Certainty.THREADS, f"{names} repeats on one thread" if names else why)


def _repeats_on_one_thread(finding: Finding) -> bool:
    return finding.confirmed is not None and finding.confirmed.threads.get("1") in ("same", "repeats")


def _candidate(option: str, proof: Certainty, why: str, findings: tuple[str, ...] = (), cost: str = "") -> Candidate:
    warning = ""
    if option == HIDE:
        proof = Certainty.INSTRUCTIONS
    if option.startswith(PATCH):
        with suppress(ReprokitError):  # an unknown patch: compatible() rejects it later
            chosen = patches.parse([option.removeprefix(PATCH)])[0]
            option, cost, warning = PATCH + chosen.text, cost or chosen.patch.cost, chosen.patch.warning
    return Candidate(option=option, proof=proof, why=why, findings=findings, cost=cost, warning=warning)


def replays_needed(finding: Finding, at_most: int) -> int | None:
    """Return the number of identical replays that show that a guilty operator does not matter; None if too many."""
    confirmed = finding.confirmed
    if confirmed is None or confirmed.results < 2 or not confirmed.repeats:
        return 0
    once = (confirmed.results - 1) / confirmed.repeats
    calls = max(1, finding.calls)
    unseen = calls * math.log1p(-min(once, 0.999))  # logarithm of the probability that two runs agree by chance
    count = math.ceil(math.log(CONFIDENCE) / unseen)
    return count if count <= at_most else None


def alternatives(
    findings: Iterable[Finding], attempts: Iterable[Attempt], outcomes: Sequence[Outcome]
) -> Iterator[str]:
    """Yield suggestions that only a person can carry out or decide."""
    for outcome in outcomes:
        yield from outcome.leftovers
    for finding in findings:
        if finding.blamed:
            for cure in finding.cures:
                if cure.patch is None and cure.does:
                    yield f"{finding.subject}{place(finding)}: {cure.does}" + (f" ({cure.cost})" if cure.cost else "")
    if outcomes and outcomes[-1].categories == ["outputs"] and outcomes[-1].volatile:
        yield (
            "only files differ, by what looks like a time or an id: if that is no result, write such a file below /tmp,"
            " or leave it out by --ignore GLOB:KEY of reprokit verify"
        )
    withheld = max((attempt.withheld for attempt in attempts), default=0)
    if withheld:
        yield (
            f"{withheld} requests of cryptographic libraries are not recorded, as they can be secret keys;"
            " --include-crypto records them"
        )


def remaining(findings: Iterable[Finding], attempts: Sequence[Attempt], outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the operators and sources that may still be the cause, and the first difference."""
    for finding in findings:
        if finding.blamed:
            yield _why(finding)
    for attempt in attempts[-1:]:
        yield from (f"{source.text}: nothing recorded it" for source in attempt.uncovered)
    for outcome in outcomes[-1:]:
        yield outcome.trail or outcome.words
