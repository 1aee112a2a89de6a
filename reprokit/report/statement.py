"""What was found, as in-toto Statements that can be signed: a test result, and a bitwise re-run in full.

https://github.com/in-toto/attestation/tree/main/spec/v1 describes a Statement: subjects (artifacts by their digests)
and a predicate about them. The subjects are the files that the first run wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from reprokit.errors import NothingToAttest
from reprokit.report.facts import AuditFacts

STATEMENT: Final = "https://in-toto.io/Statement/v1"
TEST_RESULT: Final = "https://in-toto.io/attestation/test-result/v0.1"
RERUN: Final = "urn:reprokit:bitwise-rerun:2"  # docs/attestations.md and schemas/rerun.schema.json describe it
PREDICATES = {"test-result": TEST_RESULT, "bitwise-rerun": RERUN}
MAX_SUBJECTS = 100_000


def statement(facts: AuditFacts, kind: str) -> dict[str, Any]:
    """A Statement with the predicate of this kind; raises NothingToAttest where no artifact has a digest."""
    if len(facts.runs) < 2:
        raise NothingToAttest("a statement is about a run and its re-run; name two runs")
    if facts.verdict.outcome == "not-compared":
        raise NothingToAttest(f"nothing was compared, so nothing can be attested ({facts.verdict.sentence})")
    subjects = list(_subjects(facts))
    if not subjects:
        raise NothingToAttest("the first run wrote no file with a digest: a statement needs something it is about")
    predicate = _test_result(facts) if kind == "test-result" else _rerun(facts)
    return {
        "_type": STATEMENT,
        "subject": subjects[:MAX_SUBJECTS],
        "predicateType": PREDICATES[kind],
        "predicate": predicate,
    }


def _subjects(facts: AuditFacts) -> Iterator[dict[str, Any]]:
    for file in facts.outputs:
        if _hex(file.digest):
            yield {"name": file.path, "digest": {"sha256": _hex(file.digest)}}


def _configuration(facts: AuditFacts) -> list[dict[str, Any]]:
    """What the runs were made of, by digests."""
    found = [{"name": f"run {run.run_id}", "digest": {"sha256": _hex(run.digest)}} for run in facts.runs if run.digest]
    for one in (*facts.trained.code, *facts.trained.data):
        digest = _hex(one.value.partition(" ")[0])
        if digest:
            found.append({"name": one.name, "digest": {"sha256": digest}})
    return found


def _hex(digest: str) -> str:
    text = digest.removeprefix("sha256:")
    return text if re.fullmatch("[0-9a-f]{64}", text) else ""


def _names(facts: AuditFacts, *verdicts: str) -> list[str]:
    return [
        f"{category.name}: {item.name}"
        for category in facts.categories
        for item in category.items
        if item.verdict in verdicts
    ]


def _test_result(facts: AuditFacts) -> dict[str, Any]:
    outcome = facts.verdict.outcome
    return {
        "result": {"identical": "PASSED", "tolerated": "WARNED"}.get(outcome, "FAILED"),
        "configuration": _configuration(facts),
        "passedTests": _names(facts, "identical"),
        "warnedTests": _names(facts, "tolerated"),
        "failedTests": _names(facts, "different", "missing"),
    }


def _rerun(facts: AuditFacts) -> dict[str, Any]:
    return {
        "verdict": facts.verdict.outcome,
        "sentence": facts.verdict.sentence,
        "attention": list(facts.attention),
        "counts": facts.verdict.counts,
        "firstDifference": facts.verdict.first_difference,
        "verifier": {"name": "reprokit", "version": facts.reprokit},
        "made": facts.made,
        "runs": [
            {
                "runId": run.run_id,
                "kind": run.kind,
                "replayOf": run.replay_of,
                "command": list(run.command),
                "started": run.started,
                "ended": run.ended,
                "state": run.state,
                "record": {"sha256": _hex(run.digest)},
            }
            for run in facts.runs
        ],
        "randomness": {
            "profile": {"sha256": _hex(facts.entropy.profile)},
            "requests": facts.entropy.requests,
            "bytes": facts.entropy.bytes,
            "fidelity": facts.entropy.fidelity or {},
            "uncovered": list(facts.entropy.uncovered),
        },
        "compared": [
            {"name": f"{category.name}: {item.name}", "verdict": item.verdict, "first": item.left, "second": item.right}
            for category in facts.categories
            for item in category.items
        ],
        "excluded": list(facts.excluded),
        "patches": [f"{patch.name} {patch.state}" for patch in facts.patches],
        "materials": _configuration(facts),
        "limits": list(facts.limits),
    }


def schema() -> dict[str, Any]:
    """The JSON schema of a bitwise re-run's predicate; reprokit/schemas/rerun.schema.json is this."""
    text, texts = {"type": "string"}, {"type": "array", "items": {"type": "string"}}
    digest = _object({"sha256": {"type": "string", "pattern": "^([0-9a-f]{64})?$"}})
    run_texts = ("runId", "kind", "replayOf", "started", "ended", "state")
    run = _object({**dict.fromkeys(run_texts, text), "command": texts, "record": digest})
    counts = {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}}
    number = {"type": "integer", "minimum": 0}
    randomness = {"profile": digest, "requests": number, "bytes": number, "fidelity": counts, "uncovered": texts}
    verdicts = ["identical", "different", "tolerated", "missing", "information", "not-recorded"]
    compared = {"name": text, "verdict": {"enum": verdicts}, "first": text, "second": text}
    properties = {
        "verdict": {"enum": ["identical", "different", "tolerated", "failed"]},
        "sentence": text,
        "attention": texts,
        "counts": counts,
        "firstDifference": text,
        "verifier": _object({"name": text, "version": text}),
        "made": text,
        "runs": {"type": "array", "items": run, "minItems": 2, "maxItems": 2},
        "randomness": _object(randomness),
        "compared": {"type": "array", "items": _object(compared)},
        "excluded": texts,
        "patches": texts,
        "materials": {"type": "array", "items": _object({"name": text, "digest": digest})},
        "limits": texts,
    }
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": RERUN}
    return {
        **head,
        "title": "Predicate of a bitwise re-run, of reprokit report --format bitwise-rerun",
        **_object(properties),
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
