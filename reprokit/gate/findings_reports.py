"""Findings with file and line for code hosts: SARIF 2.1.0, and GitLab's Code Quality report."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from reprokit.core.printable import printable
from reprokit.gate.results import FAILED, PASSED, REQUIRED, Case, GateVerdict, TrainingResult
from reprokit.run_files.findings import ALARM, Finding
from reprokit.verify.verdict import RULES as RULES_OF_RUNS

MAX_RESULTS = 5000  # that GitHub shows
LEVELS = {ALARM: "error", "guilty": "error", "suspect": "warning"}
SEVERITIES = {ALARM: "major", "guilty": "major", "suspect": "minor"}
SUITE_RULES = {
    **RULES_OF_RUNS,
    REQUIRED: "What was asked for beside must hold",
}


def sarif(verdict: GateVerdict) -> dict[str, Any]:
    """A SARIF log (https://docs.oasis-open.org/sarif/sarif/v2.1.0/): what did not pass, and what is blamed for it."""
    findings, unpassed = list(_findings(verdict)), list(_unpassed(verdict))
    rules = {rule_id(finding): _rule(finding) for _, finding in findings}
    rules |= {_suite_rule(case): {"shortDescription": {"text": SUITE_RULES[case.kind]}} for _, case in unpassed}
    listed = [{"id": name, **texts} for name, texts in sorted(rules.items())]
    results = [*(_failure(*reported) for reported in unpassed), *(_result(*reported) for reported in findings)]
    driver = {"name": "reprokit", "version": verdict.reprokit, "rules": listed}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "invocations": [_invocation(verdict)], "results": results[:MAX_RESULTS]}],
    }


def _invocation(verdict: GateVerdict) -> dict[str, Any]:
    """Return whether everything could be checked, which a list of results alone does not say."""
    decided = (PASSED, FAILED)
    checked = verdict.outcome in decided and all(case.outcome in decided for _, case in verdict.unpassed())
    said: dict[str, Any] = {"executionSuccessful": checked, "exitCode": verdict.exit_status}
    if verdict.interrupted:
        said |= {"exitSignalNumber": verdict.interrupted, "exitSignalName": signal.Signals(verdict.interrupted).name}
    return said


def _unpassed(verdict: GateVerdict) -> Iterator[tuple[TrainingResult, Case]]:
    """Yield the cases that did not pass; a finding is a result of its own, at its own place."""
    return ((training, case) for training, case in verdict.unpassed() if not case.finding)


def _suite_rule(case: Case) -> str:
    return f"reprokit/{case.kind}"


def _failure(training: TrainingResult, case: Case) -> dict[str, Any]:
    outcome = "" if case.outcome == FAILED else f"{case.outcome}: "
    words = f"{training.name}: {case.suite}: {outcome}{case.words}"
    return {
        "ruleId": _suite_rule(case),
        "level": "error" if case.outcome == FAILED else "warning",
        "message": {"text": printable(words, 2000)},
        "partialFingerprints": {"reprokitCase/v1": _digest(f"{training.name}\0{case.suite}\0{case.name}")},
        "locations": [_location(_script(training), 1)],
    }


def _findings(verdict: GateVerdict) -> Iterator[tuple[TrainingResult, Finding]]:
    every = (
        (training, finding) for training in verdict.trainings for finding in training.findings if finding.is_reported
    )
    for number, training_and_finding in enumerate(every):
        if number < MAX_RESULTS:
            yield training_and_finding


def rule_id(finding: Finding) -> str:
    """Return the id of the known fact, else the finding's kind with its rule or subject."""
    return printable(finding.fact or f"{finding.kind}/{finding.rule or finding.subject}", 200)


def _rule(finding: Finding) -> dict[str, Any]:
    if finding.rule:
        text = f"{finding.rule} raised an alarm about the training"
        return {"shortDescription": {"text": printable(text)}, "help": {"text": "see 'reprokit rules'"}}
    cures = "; ".join(cure.does or f"--patch {cure.patch}" for cure in finding.cures)
    return {
        "shortDescription": {"text": printable(f"{finding.subject} may not repeat")},
        "help": {"text": printable(cures or "no cure is known", 2000)},
    }


def _result(training: TrainingResult, finding: Finding) -> dict[str, Any]:
    return {
        "ruleId": rule_id(finding),
        "level": LEVELS.get(finding.verdict, "note"),
        "message": {"text": printable(_message(finding), 2000)},
        "partialFingerprints": {"reprokitFinding/v1": _digest(finding.id)},
        "locations": [_location(*_place_or_script(training, finding))],
    }


def _location(path: str, line: int) -> dict[str, Any]:
    """Return a location, without which GitHub takes no result."""
    return {"physicalLocation": {"artifactLocation": {"uri": quote(path)}, "region": {"startLine": line}}}


def _message(finding: Finding) -> str:
    return f"{finding.title}: {finding.why}" if finding.why else f"{finding.title} may not repeat"


def _place_or_script(training: TrainingResult, finding: Finding) -> tuple[str, int]:
    places = ((_within_checkout(training, place.file), place.line) for place in finding.where if place.line > 0)
    return next(((path, line) for path, line in places if path is not None), (_script(training), 1))


def _within_checkout(training: TrainingResult, file: str) -> str | None:
    """Return a file's name from the top of the checkout; None outside of it."""
    relative = os.path.relpath(os.path.join(training.directory, file), _checkout())
    return None if relative.startswith("..") else printable(relative.replace(os.sep, "/"), 1000)


def _checkout() -> str:
    """Return the directory that code hosts count paths from: what they say, if it contains this one, else this one."""
    here = os.getcwd()
    places = (
        os.path.realpath(os.environ[name]) for name in ("GITHUB_WORKSPACE", "CI_PROJECT_DIR") if os.environ.get(name)
    )
    return next((place for place in places if os.path.commonpath((place, here)) == place), here)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]


def code_quality(verdict: GateVerdict) -> list[dict[str, Any]]:
    """Return GitLab's Code Quality report (https://docs.gitlab.com/ci/testing/code_quality/)."""
    entries = []
    for training, finding in _findings(verdict):
        path, line = _place_or_script(training, finding)
        entries.append(
            {
                "description": printable(_message(finding), 1000),
                "check_name": rule_id(finding),
                "fingerprint": _digest(finding.id),
                "severity": SEVERITIES.get(finding.verdict, "info"),
                "location": {"path": path, "lines": {"begin": line}},
            }
        )
    return entries


def _script(training: TrainingResult) -> str:
    """Return the script as the location of results that have none, which code hosts require."""
    word = next((word for word in training.command if word.endswith((".py", ".sh"))), "")
    return (word and _within_checkout(training, word)) or os.path.basename(training.command[0])


def text(content: object) -> str:
    """Return a report as the text of a JSON file."""
    return json.dumps(content, indent=2) + "\n"
