"""Findings with file and line for code hosts: SARIF 2.1.0, and GitLab's Code Quality report."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any

from reprokit.findings import Finding
from reprokit.gate.results import Judged, Verdict
from reprokit.printable import printable

MAX_RESULTS = 5000  # that GitHub shows
LEVELS = {"guilty": "error", "suspect": "warning"}
SEVERITIES = {"guilty": "major", "suspect": "minor"}


def sarif(verdict: Verdict) -> dict[str, Any]:
    """A SARIF log (https://docs.oasis-open.org/sarif/sarif/v2.1.0/): rules are subjects, results findings."""
    found = list(_findings(verdict))
    rules = {rule_id(finding): finding for _, finding in found}
    driver = {
        "name": "reprokit",
        "version": verdict.reprokit,
        "rules": [_rule(name, finding) for name, finding in sorted(rules.items())],
    }
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": [_result(*one) for one in found]}],
    }


def _findings(verdict: Verdict) -> Iterator[tuple[Judged, Finding]]:
    every = ((one, finding) for one in verdict.trainings for finding in one.findings if finding.blamed)
    for number, found in enumerate(every):
        if number < MAX_RESULTS:
            yield found


def rule_id(finding: Finding) -> str:
    """What is known of it, or its kind and subject."""
    return printable(finding.fact or f"{finding.kind}/{finding.subject}", 200)


def _rule(name: str, finding: Finding) -> dict[str, Any]:
    cures = "; ".join(cure.does or f"--patch {cure.patch}" for cure in finding.cures)
    return {
        "id": name,
        "shortDescription": {"text": printable(f"{finding.subject} may not repeat")},
        "help": {"text": printable(cures or "no cure is known", 2000)},
    }


def _result(training: Judged, finding: Finding) -> dict[str, Any]:
    result = {
        "ruleId": rule_id(finding),
        "level": LEVELS.get(finding.verdict, "note"),
        "message": {"text": printable(_message(finding), 2000)},
        "partialFingerprints": {"reprokitFinding/v1": _fingerprint(finding)},
    }
    place = _place(training, finding)
    if place is None:
        return result
    path, line = place
    location = {"artifactLocation": {"uri": path}, "region": {"startLine": line}}
    return {**result, "locations": [{"physicalLocation": location}]}


def _message(finding: Finding) -> str:
    return f"{finding.subject}: {finding.why}" if finding.why else f"{finding.subject} may not repeat"


def _place(training: Judged, finding: Finding) -> tuple[str, int] | None:
    """File and line, from the top of the checkout; None outside of it."""
    for place in finding.where:
        path = os.path.normpath(os.path.join(training.directory, place.file))
        relative = os.path.relpath(path, _checkout())
        if not relative.startswith("..") and place.line > 0:
            return printable(relative.replace(os.sep, "/"), 1000), place.line
    return None


def _checkout() -> str:
    """Where code hosts count paths from: what they say themselves, if this is below it, or this directory."""
    here = os.getcwd()
    told = (
        os.path.realpath(os.environ[name]) for name in ("GITHUB_WORKSPACE", "CI_PROJECT_DIR") if os.environ.get(name)
    )
    return next((place for place in told if os.path.commonpath((place, here)) == place), here)


def _fingerprint(finding: Finding) -> str:
    return hashlib.sha256(finding.id.encode("utf-8", "backslashreplace")).hexdigest()[:32]


def code_quality(verdict: Verdict) -> list[dict[str, Any]]:
    """GitLab's Code Quality report (https://docs.gitlab.com/ci/testing/code_quality/)."""
    entries = []
    for training, finding in _findings(verdict):
        path, line = _place(training, finding) or (_script(training), 1)
        entries.append(
            {
                "description": printable(_message(finding), 1000),
                "check_name": rule_id(finding),
                "fingerprint": _fingerprint(finding),
                "severity": SEVERITIES.get(finding.verdict, "info"),
                "location": {"path": path, "lines": {"begin": line}},
            }
        )
    return entries


def _script(training: Judged) -> str:
    """What stands for a finding without a place of its own, as GitLab wants one."""
    return next((word for word in training.command if word.endswith((".py", ".sh"))), training.command[0])


def text(content: object) -> str:
    """As a file of JSON."""
    return json.dumps(content, indent=2) + "\n"
