"""Writes environment and outputs of a training as a CycloneDX 1.6 bill of materials for machine learning.

https://cyclonedx.org/docs/1.6/json/ describes it. The library has no classes for model cards, so the document is
built as plain data and validated against the library's strict schema.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from typing import Any, Final

from reprokit.core.errors import ReprokitError, needed_for
from reprokit.evidence.report.facts import AuditFacts, Package
from reprokit.evidence.report.phrases import ignored_lines

VERSION: Final = "1.6"
NAMESPACE = uuid.UUID("5f7a2f0e-3f52-5c6a-9a4b-6f1f0b5f2d11")  # of serial numbers, which follow from the run ids
MODEL = "model"
MAX_FILES = 1000  # of outputs: the validator holds each component against all the others


def document(facts: AuditFacts) -> str:
    """Return the bill of materials as JSON text, valid by the strict schema."""
    text = json.dumps(_content(facts), indent=2) + "\n"
    problem = validator().validate_str(text)
    if problem is not None:
        raise ReprokitError(f"the bill of materials is not valid CycloneDX {VERSION}: {problem}"[:400])
    return text


def validator() -> Any:
    """Return what checks bills of materials; ExtraMissing if it is not installed."""
    with needed_for("CycloneDX", "cyclonedx-python-lib[json-validation]"):
        from cyclonedx.schema import SchemaVersion
        from cyclonedx.validation.json import JsonStrictValidator
    return JsonStrictValidator(SchemaVersion.V1_6)


def _content(facts: AuditFacts) -> dict[str, Any]:
    serial = uuid.uuid5(NAMESPACE, " ".join(run.run_id for run in facts.runs))
    packages = list(_packages(facts))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": VERSION,
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "timestamp": facts.made,
            "lifecycles": [{"phase": "build"}],
            "tools": {"components": [{"type": "application", "name": "reprokit", "version": facts.reprokit}]},
            "component": _model(facts),
        },
        "components": [*packages, *_files(facts)],
        "dependencies": [
            {"ref": MODEL, "dependsOn": [package["bom-ref"] for package in packages if package["scope"] == "required"]}
        ],
        "formulation": [_formula(facts)],
    }


def _model(facts: AuditFacts) -> dict[str, Any]:
    """Return the component of the trained model."""
    return {
        "type": "machine-learning-model",
        "bom-ref": MODEL,
        "name": f"model of run {facts.runs[0].run_id}",
        "version": facts.runs[0].run_id,
        "description": " ".join([*facts.attention, facts.verdict.sentence]),
        "modelCard": {
            "quantitativeAnalysis": {"performanceMetrics": list(_metrics(facts))},
            "considerations": {"technicalLimitations": list(facts.limits)},
            "properties": list(_properties(facts)),
        },
    }


def _metrics(facts: AuditFacts) -> Iterator[dict[str, str]]:
    """Yield the last value of each metric."""
    for curve in facts.curves:
        if curve.left and curve.left[-1].value is not None:
            yield {"type": curve.name, "value": repr(curve.left[-1].value)}


def _properties(facts: AuditFacts) -> Iterator[dict[str, str]]:
    yield _property("reproducibility", facts.verdict.outcome)
    for line in ignored_lines(facts):
        yield _property("ignored", line)
    yield _property("random-profile", facts.entropy.profile)
    yield _property("replay-fidelity", facts.entropy.fidelity_sentence)
    if len(facts.outputs) > MAX_FILES:
        yield _property("outputs-left-out", str(len(facts.outputs) - MAX_FILES))
    for run in facts.runs:
        yield _property(f"{run.side}-run", f"{run.kind} {run.run_id}: {run.state}")
    for item in facts.environment:
        if item.name in ("cpu.model", "cpu.usable", "gpus", "system.kernel", "system.libc", "python of the training"):
            yield _property(item.name, item.left)


def _property(name: str, value: str) -> dict[str, str]:
    return {"name": f"reprokit:{name}", "value": value}


def _packages(facts: AuditFacts) -> Iterator[dict[str, Any]]:
    for package in facts.packages:
        yield {
            "type": "library",
            "bom-ref": purl(package),
            "name": package.name,
            "version": package.version,
            "purl": purl(package),
            "scope": "required" if package.imported else "optional",
        }


def purl(package: Package) -> str:
    """Return where a package of Python's index is, as a package URL."""
    name = re.sub(r"[-_.]+", "-", package.name).lower()
    return f"pkg:pypi/{_quoted(name)}@{_quoted(package.version)}"


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe=".+-_~", errors="surrogatepass")


def _files(facts: AuditFacts) -> Iterator[dict[str, Any]]:
    """Return the data that was read and the files that were written."""
    for number, stated in enumerate(facts.trained.data):
        digest = stated.value.partition(" ")[0].removeprefix("sha256:")
        component: dict[str, Any] = {"type": "data", "bom-ref": f"data-{number}", "name": stated.name}
        if re.fullmatch("[0-9a-f]{64}", digest):
            component["hashes"] = [{"alg": "SHA-256", "content": digest}]
        yield {**component, "data": [{"type": "dataset", "name": stated.name}]}
    for number, file in enumerate(facts.outputs[:MAX_FILES]):
        if file.digest:
            hashes = [{"alg": "SHA-256", "content": file.digest.removeprefix("sha256:")}]
            yield {"type": "file", "bom-ref": f"output-{number}", "name": file.path, "hashes": hashes}


def _formula(facts: AuditFacts) -> dict[str, Any]:
    """Return the workflow of one task that made the files: the command."""
    run = facts.runs[0]
    task = {
        "bom-ref": "training",
        "uid": run.run_id,
        "name": "training",
        "taskTypes": ["build"],
        "steps": [{"name": "training", "commands": [{"executed": facts.trained.command}]}],
        "timeStart": run.started,
    }
    if run.ended:
        task["timeEnd"] = run.ended
    return {"workflows": [{"bom-ref": "workflow", "uid": run.run_id, "taskTypes": ["build"], "tasks": [task]}]}
