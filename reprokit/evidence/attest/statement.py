"""Makes in-toto Statements that can be signed: a test result, and a complete bitwise re-run.

https://github.com/in-toto/attestation/tree/main/spec/v1 describes a Statement: subjects (artifacts by their digests)
and a predicate about them. The subjects are the files that the first run wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, TypeVar

import msgspec

from reprokit.core.errors import NothingToAttest
from reprokit.evidence.attest import predicate
from reprokit.evidence.attest.predicate import RERUN, TEST_RESULT, DigestSet, PredicateRun, Rerun, TestResult
from reprokit.evidence.report.facts import AuditFacts, Item
from reprokit.evidence.report.facts import RunReport as RunFacts

STATEMENT: Final = "https://in-toto.io/Statement/v1"
PREDICATES: Final = {"test-result": TEST_RESULT, "bitwise-rerun": RERUN}
MAX_SUBJECTS = 100_000
Part = TypeVar("Part", bound=msgspec.Struct)


def statement(facts: AuditFacts, kind: str) -> dict[str, Any]:
    """Return a Statement with the predicate of this kind; raises NothingToAttest if there is nothing to state."""
    if len(facts.runs) < 2:
        raise NothingToAttest("a statement is about a run and its re-run; name two runs")
    if facts.verdict.outcome == "not-compared":
        raise NothingToAttest(f"{facts.verdict.sentence} Nothing can be attested; replay the recording, and name both")
    subjects = list(_subjects(facts))
    if not subjects:
        raise NothingToAttest("the first run wrote no file with a digest: a statement needs something it is about")
    left_out = len(subjects) - MAX_SUBJECTS
    rerun = _rerun(facts, (f"{left_out} more files are not subjects of this statement",) if left_out > 0 else ())
    content = msgspec.to_builtins(rerun if kind == "bitwise-rerun" else _test_result(facts, rerun))
    try:
        predicate.read(PREDICATES[kind], content)
    except ValueError as error:  # the run directory was not written by reprokit
        raise NothingToAttest(f"the runs hold what no statement may: {error}") from None
    return {
        "_type": STATEMENT,
        "subject": subjects[:MAX_SUBJECTS],
        "predicateType": PREDICATES[kind],
        "predicate": content,
    }


def _subjects(facts: AuditFacts) -> Iterator[dict[str, Any]]:
    for file in facts.outputs:
        if _hex(file.digest):
            yield {"name": file.path, "digest": {"sha256": _hex(file.digest)}}


def _materials(facts: AuditFacts) -> Iterator[predicate.Material]:
    """Return code, data and run records with their digests."""
    digests = [(f"run {run.run_id}", run.digest) for run in facts.runs]
    digests += [(fact.name, fact.value.partition(" ")[0]) for fact in (*facts.trained.code, *facts.trained.data)]
    return (predicate.Material(name=name, digest=_digest(digest)) for name, digest in digests if _hex(digest))


def _hex(digest: str) -> str:
    text = digest.removeprefix("sha256:")
    return text if re.fullmatch("[0-9a-f]{64}", text) else ""


def _digest(text: str) -> DigestSet:
    return DigestSet(sha256=_hex(text))


def _names(facts: AuditFacts, *verdicts: str) -> tuple[str, ...]:
    return tuple(name for name, verdict in _items(facts) if verdict in verdicts)


def _items(facts: AuditFacts) -> Iterator[tuple[str, str]]:
    """Return all compared items with verdicts, and the categories without any."""
    for category in facts.categories:
        yield from ((f"{category.name}: {_title(item)}", item.verdict) for item in category.items)
        if not category.items and category.verdict == "not-recorded":
            yield f"{category.name}: neither run recorded any", category.verdict


def _title(item: Item) -> str:
    """Return the name of an item; of one that was not recorded also why."""
    return f"{item.name}: {item.detail}" if item.verdict == "not-recorded" and item.detail else item.name


def _test_result(facts: AuditFacts, rerun: Rerun) -> TestResult:
    return TestResult(
        result=rerun.result,  # type: ignore[arg-type]
        configuration=rerun.materials,
        passed_tests=_names(facts, "identical", "bookkeeping"),
        warned_tests=_names(facts, "tolerated", "ignored"),
        failed_tests=_names(facts, "different", "missing"),
        rerun=rerun,
    )


def _rerun(facts: AuditFacts, notes: tuple[str, ...]) -> Rerun:
    return Rerun(
        verdict=facts.verdict.outcome,  # type: ignore[arg-type]  # runs were compared
        sentence=facts.verdict.sentence,
        executed_by=facts.executed_by,
        attention=facts.attention,
        notes=(*facts.notes, *notes),
        counts=facts.verdict.counts,
        first_difference=facts.verdict.first_difference,
        verifier=predicate.Verifier(name="reprokit", version=facts.reprokit),
        made=facts.made,
        runs=tuple(map(_run, facts.runs)),
        randomness=_taken(
            predicate.Randomness,
            facts.entropy,
            profile=_digest(facts.entropy.profile),
            fidelity=facts.entropy.fidelity or {},
        ),
        compared=tuple(
            predicate.Compared(
                name=f"{category.name}: {item.name}",
                verdict=item.verdict,
                first=item.left,
                second=item.right,
            )
            for category in facts.categories
            for item in category.items
            if item.verdict != "not-compared"
        ),
        not_compared=_names(facts, "not-recorded", "not-compared"),
        environment_differences=tuple(
            predicate.EnvironmentDifference(
                name=item.name, first=item.left, second=item.right, can_change_results=item.can_change_results
            )
            for item in facts.environment
            if item.left != item.right
        ),
        excluded=facts.excluded,
        ignored=tuple(_taken(predicate.Ignored, rule) for rule in facts.ignored),
        patches=tuple(f"{patch.name} {patch.state}" for patch in facts.patches),
        seeds=facts.trained.seeds,
        packages=tuple(_taken(predicate.PackageVersion, package) for package in facts.packages),
        materials=tuple(_materials(facts)),
        limits=facts.limits,
    )


def _run(run: RunFacts) -> PredicateRun:
    source = _taken(predicate.PredicateSource, run.source, changes=_digest(run.source.changes))
    return _taken(PredicateRun, run, source=source, record=_digest(run.digest))


def _taken(kind: type[Part], facts: object, **others: Any) -> Part:
    """Make a part of the predicate from equally named fields of the facts, and further values."""
    same = {name: getattr(facts, name) for name in kind.__struct_fields__ if name not in others}
    return kind(**same, **others)
